"""Right answers to the exercises of lessons 08 to 10: {exercise: {style: cell}}."""

ANSWERS = {
    "08/open_group": {
        "a store, then the group": """
def open_group(path, rank, world_size):
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
""",
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
""",
    },
    "08/exchange": {
        "the order by rank": """
def exchange(tensor, other):
    theirs = torch.empty_like(tensor)
    if dist.get_rank() < other:
        dist.send(tensor, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(tensor, other)
    return theirs
""",
        "isend, recv, wait": """
def exchange(tensor, other):
    box = torch.zeros_like(tensor)
    sending = dist.isend(tensor, dst=other)
    dist.recv(box, src=other)
    sending.wait()
    return box
""",
        "irecv, send, wait": """
def exchange(tensor, other):
    box = tensor.new_empty(tensor.shape)
    arriving = dist.irecv(box, other)
    dist.send(tensor, other)
    arriving.wait()
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
    },
    "08/ring": {
        "isend, recv: what came goes on": """
def ring_allreduce(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    parcel = tensor.clone()
    for _ in range(world_size - 1):
        box = torch.empty_like(tensor)
        sending = dist.isend(parcel, right)
        dist.recv(box, left)
        sending.wait()
        tensor += box
        parcel = box
""",
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
        "rank 0 sends first, the others receive first": """
def ring_allreduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    mine, total = tensor.clone(), tensor.clone()
    for _ in range(n - 1):
        box = torch.empty_like(mine)
        if rank == 0:
            dist.send(mine, (rank + 1) % n)
            dist.recv(box, (rank - 1) % n)
        else:
            dist.recv(box, (rank - 1) % n)
            dist.send(mine, (rank + 1) % n)
        total = total + box
        mine = box
    tensor[...] = total
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
""",
        "in chunks, as the course's own": """
from manual_dp.ranks import ring_allreduce
""",
    },
    "09/bucket": {
        "cat and split": """
def pack(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])

def unpack(flat, tensors):
    for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
        t.copy_(part.view(t.shape))
""",
        "a place that moves on": """
def pack(tensors):
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype)
    start = 0
    for t in tensors:
        flat[start:start + t.numel()] = t.flatten()
        start += t.numel()
    return flat

def unpack(flat, tensors):
    start = 0
    for t in tensors:
        t[...] = flat[start:start + t.numel()].reshape(t.shape)
        start += t.numel()
""",
        "torch's own helpers": """
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
def pack(tensors):
    return _flatten_dense_tensors(tensors)

def unpack(flat, tensors):
    for t, new in zip(tensors, _unflatten_dense_tensors(flat, tensors)):
        t.data = new
    return tensors
""",
        "parameters' own helpers": """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
def pack(tensors):
    return parameters_to_vector(tensors)

def unpack(flat, tensors):
    vector_to_parameters(flat, tensors)
""",
    },
    "09/hook": {
        "one function for all": """
def average_when_ready(model):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""",
        "divided first": """
def average_when_ready(model):
    world_size = dist.get_world_size()
    @torch.no_grad()
    def hook(param):
        param.grad.div_(world_size)
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        param.register_post_accumulate_grad_hook(hook)
""",
        "a hook of the gradient, not of the parameter": """
def average_when_ready(model):
    def mean(grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(mean)
""",
        "started at once, waited for at the end": """
def average_when_ready(model):
    from torch.autograd import Variable
    works = []
    def finish():
        for work, p in works:
            work.wait()
            p.grad /= dist.get_world_size()
        works.clear()
    def start(p):
        if not works:
            Variable._execution_engine.queue_callback(finish)
        works.append((dist.all_reduce(p.grad, async_op=True), p))
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(start)
""",
    },
    "09/accumulate": {
        "all but the last in no_sync": """
def step_in_parts(model, optimizer, loss, parts):
    optimizer.zero_grad()
    with model.no_sync():
        for X, y in parts[:-1]:
            (loss(model(X), y) / len(parts)).backward()
    X, y = parts[-1]
    (loss(model(X), y) / len(parts)).backward()
    optimizer.step()
""",
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
    return None
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
        noted = [(loss(model.module(X), y).item(), mean) for mean, (X, y) in zip(noted, parts)]
""",
    },
    "10/sampler": {
        "torch's own": """
from torch.utils.data import DistributedSampler
def indices(length, world_size, rank, epoch, seed):
    sampler = DistributedSampler(range(length), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)
""",
        "a generator, a list, a stride": """
def indices(length, world_size, rank, epoch, seed):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(length, generator=generator).tolist()
    while len(order) % world_size:
        order += order[:-len(order) % world_size]
    return order[rank::world_size]
""",
        "by modulo, as a tensor": """
def indices(length, world_size, rank, epoch, seed):
    g = torch.Generator()
    g.manual_seed(epoch + seed)
    order = torch.randperm(length, generator=g)
    rows = (length + world_size - 1) // world_size
    places = torch.arange(rows) * world_size + rank
    return order[places % length]
""",
    },
    "10/evaluate": {
        "both counts in one tensor": """
@torch.no_grad()
def evaluate(model, X, y):
    was = model.training
    model.eval()
    counts = torch.tensor([(model(X).argmax(dim=1) == y).sum().item(), len(y)])
    model.train(was)
    dist.all_reduce(counts)
    right, rows = counts.tolist()
    return right / rows
""",
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
        "rank 0 counts and tells, each module gets its mode back": """
def evaluate(model, X, y):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    counts = torch.tensor([float((model(X).argmax(1) == y).sum()), float(len(y))])
    for module, mode in modes.items():
        module.training = mode
    dist.reduce(counts, 0)
    answer = counts[0] / counts[1]
    dist.broadcast(answer, 0)
    return float(answer)
""",
        "a copy is tested": """
import copy
def evaluate(model, X, y):
    model = copy.deepcopy(model).eval()
    counts = torch.tensor([(model(X).argmax(dim=1) == y).sum().item(), len(y)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
""",
    },
    "10/resume": {
        "state dicts": """
def resume(path, model, optimizer):
    saved = load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["epoch"], saved["step"]
""",
        "the course's own": """
from manual_dp import ranks
def resume(path, model, optimizer):
    return ranks.resume(ranks.load(path), model, optimizer)
""",
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
""",
    },
}
