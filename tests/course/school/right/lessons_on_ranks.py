"""Right answers to exercises of lessons that run on ranks."""

from tests.course.school.right import changed

RIGHT = {
    "processes/open_group": {
        "an address in place of a store": changed(
            "processes/open_group", ("store=store", "init_method=store"),
            STORE='f"file://{path}"'),
        "with a timeout, and returned": """
from datetime import timedelta
def open_group(path, rank, world_size):
    store = torch.distributed.FileStore(path, world_size)
    torch.distributed.init_process_group(
        torch.distributed.Backend.GLOO, world_size=world_size, rank=rank, store=store,
        timeout=timedelta(seconds=30))
    return torch.distributed.group.WORLD
"""},
    "processes/exchange": {
        "isend, recv, wait": changed(
            "processes/exchange", BEFORE="sending = dist.isend(tensor, dst=other)\n"
            "    dist.recv(box, src=other); sending.wait(); return box"),
        "irecv first, a copy is sent": changed(
            "processes/exchange", BEFORE="arriving = dist.irecv(box, other)\n"
            "    dist.send(tensor.clone(), other); arriving.wait(); return box.view_as(tensor)"),
        "batch_isend_irecv": changed(
            "processes/exchange", BEFORE="[work.wait() for work in dist.batch_isend_irecv(["
            "dist.P2POp(dist.isend, tensor, other), dist.P2POp(dist.irecv, box, other)])]\n"
            "    return box")},
    "processes/ring": {
        "the other way round, irecv": changed(
            "processes/ring", ("left, right", "right, left"), RESULT="tensor",
            SEND="arriving = dist.irecv(box, src=left)\n"
                 "        dist.send(parcel, dst=right); arriving.wait()"),
        "rank 0 sends first": changed(
            "processes/ring", SEND="rank or dist.send(parcel, right)\n"
            "        dist.recv(box, left); rank and dist.send(parcel, right)"),
        "in chunks": """
def ring_allreduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.tensor_split(n)
    for step in range(2 * (n - 1)):
        parcel, mine = chunks[(rank - step) % n].clone(), chunks[(rank - step - 1) % n]
        box = torch.empty_like(mine)
        sending = dist.isend(parcel, (rank + 1) % n) if len(parcel) else None
        if len(box):
            dist.recv(box, (rank - 1) % n)
        if sending:
            sending.wait()
        mine.copy_(mine + box if step < n - 1 else box)
""",
        "batch_isend_irecv": changed(
            "processes/ring", SEND="[work.wait() for work in dist.batch_isend_irecv(["
            "dist.P2POp(dist.isend, parcel, right), dist.P2POp(dist.irecv, box, left)])]")},
    "ddp_by_hand/ddp": {
        "divided before it is sent, torch's own packing": changed(
            "ddp_by_hand/ddp", MEAN="pass",
            PACK="from torch._utils import _flatten_dense_tensors as pack, "
                 "_unflatten_dense_tensors as unpack\n"
                 "        flat = pack(grads) / dist.get_world_size(); dist.all_reduce(flat)\n"
                 "        [grad.copy_(new) for grad, new in zip(grads, unpack(flat, grads))]",
            WRITE="pass"),
        "last first, slice by slice, into .data": changed(
            "ddp_by_hand/ddp", ("parts = flat.split", "place = 0; sizes = list"),
            PACK="grads.reverse(); flat = torch.cat([grad.view(-1) for grad in grads])\n"
                 "        dist.all_reduce(flat)",
            PARAMS="reversed(list(self.module.parameters()))", ORDER="sizes",
            WRITE="p.grad.data[:] = flat[place:place + part].reshape(p.shape); place += part"),
        "a callback of its own": changed(
            "ddp_by_hand/ddp",
            ASK="Variable._execution_engine.queue_callback(lambda: self.finish())")},
    "ddp/evaluate": {
        "one after the other, divided as tensors": changed(
            "ddp/evaluate", REDUCE="[dist.all_reduce(count) for count in counts]",
            RESULT="counts[0] / counts[1]"),
        "objects, and only where there are rows": """
def evaluate(model, X, y):
    right, training = 0, model.training
    if len(X):
        model.eval()
        with torch.no_grad():
            right = int(torch.eq(model(X).argmax(-1), y).sum())
    if training:
        model.train()
    all_counts = [None] * dist.get_world_size()
    dist.all_gather_object(all_counts, (right, len(X)))
    return sum(c for c, _ in all_counts) / sum(n for _, n in all_counts)
""",
        "a copy is tested": changed(
            "ddp/evaluate", BEFORE="import copy; model = copy.deepcopy(model).eval()",
            AFTER="pass")},
    "ddp/resume": {
        "number by number, as a list": changed(
            "ddp/resume", ("load(path)", 'load(path, device="cpu")'),
            MODEL='[t.copy_(saved["model"][name]) for name, t in model.state_dict().items()]',
            RESULT='[saved["epoch"], saved["step"]]'),
        "the file's bytes after its first line": changed(
            "ddp/resume", ("def", "import io, pathlib\ndef"),
            ("load(path)", """torch.load(io.BytesIO(
        pathlib.Path(path).read_bytes().partition(b"\\n")[2]), weights_only=True)"""),
            MODEL='load_model(model, saved["model"])')},
}
