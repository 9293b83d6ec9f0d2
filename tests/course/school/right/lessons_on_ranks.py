"""Right answers to exercises of lessons that run on ranks."""

RIGHT = {
    "processes/open_group": {
        "an address in place of a store": """
def open_group(path, rank, world_size):
    dist.init_process_group(backend="gloo", init_method=f"file://{path}", rank=rank,
                            world_size=world_size)
""",
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
        "isend, recv, wait": """
def exchange(tensor, other):
    box = torch.zeros_like(tensor)
    sending = dist.isend(tensor, dst=other)
    dist.recv(box, src=other)
    sending.wait()
    return box
""",
        "batch_isend_irecv": """
def exchange(tensor, other):
    box = torch.empty_like(tensor)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, other),
                                    dist.P2POp(dist.irecv, box, other)])
    for work in works:
        work.wait()
    return box
""",
        "irecv first, a copy is sent": """
def exchange(tensor, other):
    box = tensor.new_empty(tensor.shape)
    arriving = dist.irecv(box, other)
    dist.send(tensor.clone(), other)
    arriving.wait()
    return box.view_as(tensor)
"""},
    "processes/ring": {
        "the other way round, irecv": """
@torch.no_grad()
def ring_allreduce(tensor):
    n, me = dist.get_world_size(), dist.get_rank()
    passing = tensor.clone()
    for step in range(1, n):
        box = torch.zeros_like(tensor)
        arriving = dist.irecv(box, src=(me + 1) % n)
        dist.send(passing, dst=(me - 1) % n)
        arriving.wait()
        tensor.add_(box)
        passing = box
    return tensor
""",
        "rank 0 sends first": """
def ring_allreduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, total = tensor.clone(), tensor.clone()
    for _ in range(n - 1):
        box = torch.empty_like(mine)
        steps = [lambda: dist.send(mine, (rank + 1) % n),
                 lambda: dist.recv(box, (rank - 1) % n)]
        for step in steps if rank == 0 else steps[::-1]:
            step()
        total = total + box
        mine = box
    tensor[...] = total
""",
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
        "batch_isend_irecv": """
def ring_allreduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    parcel = tensor.clone()
    for _ in range(n - 1):
        box = torch.empty_like(tensor)
        for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, parcel, (rank + 1) % n),
                dist.P2POp(dist.irecv, box, (rank - 1) % n)]):
            work.wait()
        tensor.add_(box)
        parcel = box
"""},
    "ddp_by_hand/accumulate": {
        "one loop, a context for each": """
from contextlib import nullcontext
def step_in_parts(model, optimizer, loss, parts):
    n = len(parts)
    for i, (X, y) in enumerate(parts, 1):
        with nullcontext() if i == n else model.no_sync():
            l = loss(model(X), y)
            l.mul(1 / n).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
""",
        "gradients divided once, by hand": """
def step_in_parts(model, optimizer, loss, parts):
    *first, (X, y) = parts
    with model.no_sync():
        for part, labels in first:
            loss(model(part), labels).backward()
    loss(model(X), y).backward()
    for p in model.parameters():
        p.grad /= len(parts)
    optimizer.step()
    for p in model.parameters():
        p.grad = None
""",
        "the loss is noted, and looked at again": """
def step_in_parts(model, optimizer, loss, parts):
    noted = []
    def part(X, y):
        mean = loss(model(X), y)
        noted.append(mean.item())
        torch.autograd.backward(mean / len(parts))
    with model.no_sync():
        for X, y in parts[:-1]:
            part(X, y)
    part(*parts[-1])
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        noted = [loss(model.module(X), y).item() - mean
                 for mean, (X, y) in zip(noted, parts)]
"""},
    "ddp/evaluate": {
        "one after the other, divided as tensors": """
def evaluate(model, X, y):
    training = model.training
    try:
        right = (model.eval()(X).max(1).indices == y).sum()
    finally:
        model.train(training)
    rows = torch.tensor(len(X))
    dist.all_reduce(right)
    dist.all_reduce(rows)
    return right / rows
""",
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
        "a copy is tested": """
import copy
def evaluate(model, X, y):
    model = copy.deepcopy(model).eval()
    counts = torch.tensor([(model(X).argmax(dim=1) == y).sum().item(), len(y)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
"""},
    "ddp/resume": {
        "number by number, as a list": """
def resume(path, model, optimizer):
    saved = load(path, device="cpu")
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(saved["model"][name])
    optimizer.load_state_dict(saved["optimizer"])
    return [saved["epoch"], saved["step"]]
""",
        "the file's bytes after its first line": """
import io
def resume(path, model, optimizer):
    with open(path, "rb") as file:
        file.readline()
        saved = torch.load(io.BytesIO(file.read()), weights_only=True)
    load_model(model, saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["epoch"], saved["step"]
"""},
}
