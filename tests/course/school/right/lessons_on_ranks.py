"""Right answers to exercises of lessons that run on ranks."""

from tests.course.school.right import changed

RIGHT = {
    "processes/exchange": {
        "isend, recv, wait": changed(
            "processes/exchange",
            BEFORE="sending = dist.isend(tensor, dst=other)\n"
            "    dist.recv(box, src=other); sending.wait(); return box",
        ),
        "irecv first, a copy is sent": changed(
            "processes/exchange",
            BEFORE="arriving = dist.irecv(box, other)\n"
            "    dist.send(tensor.clone(), other); arriving.wait(); return box.view_as(tensor)",
        ),
    },
    "processes/ring": {
        "the other way round, irecv": changed(
            "processes/ring",
            ("left, right", "right, left"),
            RESULT="tensor",
            SEND="arriving = dist.irecv(box, src=left)\n"
            "        dist.send(parcel, dst=right); arriving.wait()",
        ),
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
    },
    "ddp_by_hand/ddp": {
        "divided before it is sent, torch's own packing": changed(
            "ddp_by_hand/ddp",
            MEAN="pass",
            PACK="from torch._utils import _flatten_dense_tensors as pack, "
            "_unflatten_dense_tensors as unpack\n"
            "        flat = pack(grads) / dist.get_world_size(); dist.all_reduce(flat)\n"
            "        [grad.copy_(new) for grad, new in zip(grads, unpack(flat, grads))]",
            WRITE="pass",
        ),
        "last first, slice by slice, into .data": changed(
            "ddp_by_hand/ddp",
            ("parts = flat.split", "place = 0; sizes = list"),
            PACK="grads.reverse(); flat = torch.cat([grad.view(-1) for grad in grads])\n"
            "        dist.all_reduce(flat)",
            PARAMS="reversed(list(self.module.parameters()))",
            ORDER="sizes",
            WRITE="p.grad.data[:] = flat[place:place + part].reshape(p.shape); place += part",
        ),
    },
    "ddp_program/evaluate": {
        "one after the other, divided as tensors": changed(
            "ddp_program/evaluate",
            REDUCE="[dist.all_reduce(count) for count in counts]",
            RESULT="counts[0] / counts[1]",
        ),
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
    },
    "how_often/local_sgd": {
        "the mean by AVG": changed(
            "how_often/local_sgd", COUNT="1", WHAT="data, op=dist.ReduceOp.AVG"
        ),
        "one flat tensor, counted by hand": """
def local_sgd(model, optimizer, loss, batches, every):
    alone = 0
    for X, y in iter(batches):
        loss(model(X), y).backward() if optimizer.zero_grad() is None else None
        optimizer.step()
        alone += 1
        if alone == every:
            flat = nn.utils.parameters_to_vector(model.parameters()).detach()
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())
            alone = 0
""",
    },
    "together/any_rank": {
        "the largest of all": changed("together/any_rank", BEFORE="pass"),
        "counted": """
def any_rank(flag):
    count = torch.tensor([1 if flag else 0])
    dist.all_reduce(count)
    return count.item() > 0
""",
        "the product of all that is false, as a tensor": """
def any_rank(flag):
    none = 1 - torch.as_tensor(flag, dtype=torch.float64)
    torch.distributed.all_reduce(none, op=dist.ReduceOp.PRODUCT)
    return none[...] == 0
""",
    },
    "keep_only_a_part/step": {
        "divided first, and nothing is kept": changed(
            "keep_only_a_part/step",
            MEAN="grads[rank].div_(n)",
            ADD="[grad.div_(n) for grad in grads]; reduce_scatter(grads); grads[rank] *= n",
            GATHER="shard.grad = None; allgather(weights)",
        ),
        "torch's own gather": changed(
            "keep_only_a_part/step",
            GATHER="dist.all_gather(weights, weights[rank].clone())",
        ),
    },
    "keep_only_a_part/reduce": {
        "divided first, then copied": changed(
            "keep_only_a_part/reduce",
            ADD="grads[0].div_(1); flat /= n; grads = list(F.pad("
            "flat, (0, -len(flat) % n)).chunk(n)); reduce_scatter(grads)",
            RESULT="grads[rank].clone()",
        ),
        "reduced whole, one chunk kept": changed(
            "keep_only_a_part/reduce",
            ADD="[dist.all_reduce(grad) for grad in grads]",
            RESULT="grads[rank].div_(n).clone()",
        ),
    },
}
