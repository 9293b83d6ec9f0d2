"""Right answers to exercises of lessons: {exercise: {style: cell}}."""

RIGHT = {
    "allreduce/reduce_scatter": {
        "a message that grows": """
def reduce_scatter(chunks):
    n = len(chunks)
    message = [chunks[r][r - 1] for r in range(n)]
    for step in range(1, n):
        message = [message[r - 1] + chunks[r][(r - 1 - step) % n] for r in range(n)]
    for r in range(n):
        chunks[r][r].copy_(message[r])
""",
        "the ring the other way": """
def reduce_scatter(chunks):
    n = len(chunks)
    for step in range(n - 1):
        for rank in range(n):
            i = (rank + 1 + step) % n
            chunks[rank - 1][i].add_(chunks[rank][i])
""",
        "torch.add into what was there": """
def reduce_scatter(chunks):
    for step in range(len(chunks) - 1):
        for rank in range(len(chunks)):
            i = (rank - 2 - step) % len(chunks)
            torch.add(chunks[rank][i], chunks[rank - 1][i], out=chunks[rank][i])
"""},
    "allreduce/allgather": {
        "all send before any copies": """
def allgather(chunks):
    n = len(chunks)
    for step in range(n - 1):
        sent = [chunks[r][(r - step) % n].clone() for r in range(n)]
        for r in range(n):
            chunks[(r + 1) % n][(r - step) % n].copy_(sent[r])
""",
        "seen from the receiver": """
@torch.no_grad()
def allgather(chunks):
    for step in range(1, len(chunks)):
        for rank, own in enumerate(chunks):
            i = rank - step
            own[i].zero_().add_(chunks[rank - 1][i])
"""},
    "dataparallel/forward": {
        "only as many devices as there are shards": """
def forward(module, devices, X):
    shards = X.chunk(len(devices))
    used = devices[:len(shards)]
    replicas = replicate(module, used)
    outputs = [replica(shard.to(device))
               for replica, shard, device in zip(replicas, shards, used)]
    return torch.cat([output.to(devices[0]) for output in outputs])
""",
        "one device needs no replica": """
def forward(module, devices, X):
    shards = [shard for shard in scatter(X, devices) if shard.shape[0] > 0]
    if len(shards) == 1:
        return module(X)
    return gather(parallel_apply(replicate(module, devices[:len(shards)]), shards),
                  devices[0])
""",
        "torch.func, with parameters that are moved": """
from torch.func import functional_call
def forward(module, devices, X):
    import copy
    outputs = []
    for device, shard in zip(devices, scatter(X, devices)):
        if len(shard):
            params = {name: p.to(device) for name, p in module.named_parameters()}
            outputs.append(functional_call(copy.deepcopy(module), params, (shard,)))
    return gather(outputs, devices[0])
"""},
    "ddp_by_hand/bucket": {
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
        "a list of numbers, an iterator": """
def pack(tensors):
    numbers = []
    for t in tensors:
        numbers.extend(t.reshape(-1).tolist())
    return torch.tensor(numbers, dtype=torch.float64)

def unpack(flat, tensors):
    numbers = iter(flat)
    for t in tensors:
        for i in range(t.numel()):
            t.view(-1)[i] = next(numbers)
"""},
    "ddp/sampler": {
        "torch's own": """
from torch.utils.data import DistributedSampler
def indices(length, world_size, rank, epoch, seed):
    sampler = DistributedSampler(range(length), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)
""",
        "by modulo, as a tensor": """
def indices(length, world_size, rank, epoch, seed):
    g = torch.Generator()
    g.manual_seed(epoch + seed)
    order = torch.randperm(length, generator=g)
    rows = (length + world_size - 1) // world_size
    places = torch.arange(rows) * world_size + rank
    return order[places % length]
"""},
    "predict_before_you_pay/seconds": {
        "a loop": """
def seconds(steps, link):
    total = 0.0
    for step in steps:
        longest = 0
        for size in step:
            longest = size if size > longest else longest
        total += link.alpha
        total += longest / link.bandwidth
    return total
""",
        "all alphas, then all bytes, as a tensor": """
def seconds(steps, link):
    longest = torch.tensor([sorted(step)[-1] for step in steps], dtype=torch.float64)
    return len(steps) * link.alpha + longest.sum() / link.bandwidth
"""},
    "the_clock/amdahl": {
        "one fraction": """
def amdahl(serial, world_size):
    return world_size / (serial * world_size + 1 - serial)
""",
        "exact fractions": """
from fractions import Fraction
def amdahl(serial, world_size):
    s = Fraction(serial)
    return 1 / (s + (1 - s) / world_size)
"""},
    "keep_only_a_part/zero_bytes": {
        "the paper's fractions": """
def zero_bytes(params, world_size, stage):
    parts = [16, 4 + 12 / world_size, 2 + 14 / world_size, 16 / world_size]
    return parts[stage] * params
""",
        "whole weights, rounded up": """
def zero_bytes(params, world_size, stage):
    share = -(-params // world_size)
    adam, gradients, weights = [share] * stage + [params] * (3 - stage)
    return 12 * adam + 2 * gradients + 2 * weights
"""},
    "many_machines/rows_to_go": {
        "one slice": """
def rows_to_go(order, seen, rank, world_size):
    return order[seen + rank::world_size]
""",
        "a tensor's": """
def rows_to_go(order, seen, rank, world_size):
    return torch.tensor(order, dtype=torch.int64)[seen:][rank::world_size]
""",
        "dealt out by hand": """
def rows_to_go(order, seen, rank, world_size):
    hands = [[] for _ in range(world_size)]
    for place, row in enumerate(order[seen:]):
        hands[place % world_size].append(row)
    return tuple(hands[rank])
"""},
}
