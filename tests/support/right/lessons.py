"""Right answers to the lessons' exercises, by style: {exercise: {style: cell}}."""

ANSWERS = {
    "02/get_params": {
        "a comprehension": """
def get_params(params, device):
    return [p.detach().clone().to(device).requires_grad_() for p in params]
""",
        "a loop, under no_grad": """
def get_params(params, device):
    new = []
    for p in params:
        with torch.no_grad():
            q = torch.empty_like(p, device=device)
            q.copy_(p)
        q.requires_grad = True
        new.append(q)
    return new
""",
        "clone, then cut off the graph": """
def get_params(params, device):
    new_params = [p.clone().to(device).detach() for p in params]
    for p in new_params:
        p.requires_grad_(True)
    return new_params
""",
        "torch.tensor of plain numbers": """
def get_params(params, device):
    return [torch.tensor(p.tolist(), dtype=p.dtype, device=device, requires_grad=True)
            for p in params]
""",
        "nn.Parameter, in a tuple": """
def get_params(params, device):
    return tuple(torch.nn.Parameter(p.data.to(device, copy=True)) for p in params)
""",
    },
    "03/allreduce": {
        "rank 0 adds and sends back, as in the book": """
def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i][:] = data[0].to(data[i].device)
""",
        "stack and sum": """
def allreduce(tensors):
    total = torch.stack([t.to(tensors[0].device) for t in tensors]).sum(dim=0)
    for t in tensors:
        t.copy_(total)
""",
        "Python's sum, assigned to the whole": """
def allreduce(tensors):
    total = sum(tensors)
    for tensor in tensors:
        tensor[...] = total
""",
        "functional, and returned too": """
from functools import reduce
def allreduce(tensors):
    total = reduce(torch.add, tensors)
    return [t.copy_(total.clone()) for t in tensors]
""",
        "in place by augmented assignment": """
def allreduce(tensors):
    root, *others = tensors
    for other in others:
        root += other
    for other in others:
        other *= 0
        other += root
""",
        "by .data": """
def allreduce(tensors):
    total = torch.zeros_like(tensors[0])
    for t in tensors:
        total += t
    for t in tensors:
        t.data.copy_(total)
""",
    },
    "03/reduce_scatter": {
        "all send before any adds": """
def reduce_scatter(chunks):
    n = len(chunks)
    for step in range(n - 1):
        sent = [chunks[r][(r - 1 - step) % n].clone() for r in range(n)]
        for r in range(n):
            left = (r - 1) % n
            chunks[r][(left - 1 - step) % n] += sent[left]
""",
        "out of place, written back": """
def reduce_scatter(chunks):
    k = len(chunks)
    for step in range(1, k):
        for rank in range(k):
            i = (rank - step) % k
            right = chunks[(rank + 1) % k]
            right[i].copy_(right[i] + chunks[rank][i])
""",
        "chunk by chunk, each round the ring": """
@torch.no_grad()
def reduce_scatter(chunks):
    n = len(chunks)
    for i in range(n):
        for hop in range(1, n):
            source, target = (i + hop) % n, (i + hop + 1) % n
            chunks[target][i][:] = torch.add(chunks[target][i], chunks[source][i])
""",
        "a message that grows": """
def reduce_scatter(chunks):
    n = len(chunks)
    message = [chunks[r][r - 1] for r in range(n)]
    for step in range(1, n):
        message = [message[r - 1] + chunks[r][(r - 1 - step) % n] for r in range(n)]
    for r in range(n):
        chunks[r][r].copy_(message[r])
""",
        "a message that grows, the rank's own first": """
def reduce_scatter(chunks):
    n = len(chunks)
    message = [chunks[r][r - 1].clone() for r in range(n)]
    for step in range(1, n):
        message = [chunks[r][(r - 1 - step) % n] + message[r - 1] for r in range(n)]
    for r in range(n):
        chunks[r][r][:] = message[r]
""",
        "the ring the other way": """
def reduce_scatter(chunks):
    n = len(chunks)
    for step in range(n - 1):
        for rank in range(n):
            i = (rank + 1 + step) % n
            chunks[rank - 1][i].add_(chunks[rank][i])
""",
        "negative indices instead of modulo": """
def reduce_scatter(chunks):
    for step in range(len(chunks) - 1):
        for rank in range(len(chunks)):
            i = (rank - 2 - step) % len(chunks)
            torch.add(chunks[rank][i], chunks[rank - 1][i], out=chunks[rank][i])
""",
    },
    "03/allgather": {
        "a message that each rank keeps, and passes on": """
def allgather(chunks):
    n = len(chunks)
    carried = [chunks[r][r].clone() for r in range(n)]
    for step in range(1, n):
        carried = [carried[r - 1].clone() for r in range(n)]
        for r in range(n):
            chunks[r][(r - step) % n][...] = carried[r]
""",
        "all send before any copies": """
def allgather(chunks):
    n = len(chunks)
    for step in range(n - 1):
        sent = [chunks[r][(r - step) % n].clone() for r in range(n)]
        for r in range(n):
            chunks[(r + 1) % n][(r - step) % n].copy_(sent[r])
""",
        "chunk by chunk, each round the ring": """
def allgather(chunks):
    n = len(chunks)
    for i in range(n):
        for hop in range(n - 1):
            chunks[(i + hop + 1) % n][i][:] = chunks[(i + hop) % n][i]
""",
        "seen from the receiver": """
@torch.no_grad()
def allgather(chunks):
    for step in range(1, len(chunks)):
        for rank, own in enumerate(chunks):
            i = rank - step
            own[i].zero_().add_(chunks[rank - 1][i])
""",
    },
    "04/split_batch": {
        "slices": """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("X and y must have as many rows")
    rows = (len(X) + len(devices) - 1) // len(devices)
    cuts = [slice(r * rows, (r + 1) * rows) for r in range(len(devices))]
    return ([X[c].to(d) for c, d in zip(cuts, devices)],
            [y[c].to(d) for c, d in zip(cuts, devices)])
""",
        "torch.chunk, filled up": """
def split_batch(X, y, devices):
    if X.shape[0] != y.shape[0]:
        raise ValueError
    def parts(t):
        found = list(torch.chunk(t, len(devices)))
        while len(found) < len(devices):
            found.append(t[:0])
        return tuple(p.to(d) for p, d in zip(found, devices))
    return parts(X), parts(y)
""",
        "a loop that takes rows off": """
import math
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError(f"{len(X)} rows, {len(y)} labels")
    size, start = math.ceil(len(X) / len(devices)), 0
    X_shards, y_shards = [], []
    for device in devices:
        X_shards.append(X[start:start + size].to(device))
        y_shards.append(y[start:start + size].to(device))
        start += size
    return [X_shards, y_shards]
""",
        "by indices, copied": """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths differ")
    size = -(-len(X) // len(devices))
    owner = torch.arange(len(X)) // size
    return ([X[owner == r].to(device) for r, device in enumerate(devices)],
            [y[owner == r].to(device) for r, device in enumerate(devices)])
""",
    },
    "05/sgd": {
        "in place, as in the book": """
def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()
""",
        "sub_ with alpha, gradients None afterwards": """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p.sub_(p.grad, alpha=lr / batch_size)
        p.grad = None
""",
        "by .data, gradients filled with zeros": """
def sgd(params, lr, batch_size):
    for p in params:
        p.data -= lr * p.grad.data / batch_size
    for p in params:
        p.grad = torch.zeros_like(p.grad)
""",
        "into every entry": """
def sgd(params, lr, batch_size):
    with torch.no_grad():
        for p in params:
            p[:] = p - lr * p.grad / batch_size
            p.grad[:] = 0
""",
        "torch's own optimizer": """
def sgd(params, lr, batch_size):
    optimizer = torch.optim.SGD(params, lr=lr / batch_size)
    optimizer.step()
    optimizer.zero_grad()
""",
    },
    "05/train_batch": {
        "as in the book, cleared first": """
def train_batch(X, y, device_params, devices, lr):
    for params in device_params:
        for p in params:
            if p.grad is not None:
                p.grad.zero_()
    X_shards, y_shards = split_batch(X, y, devices)
    ls = [loss(lenet(X_shard, device_W), y_shard).sum()
          for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)]
    for l in ls:
        l.backward()
    for i in range(len(device_params[0])):
        allreduce([device_params[c][i].grad for c in range(len(devices))])
    for param in device_params:
        sgd(param, lr, X.shape[0])
    return sum(l.item() for l in ls) / len(X)
""",
        "torch.autograd.grad, no .grad at all": """
def train_batch(X, y, device_params, devices, lr):
    total, grads = 0.0, []
    for X_shard, y_shard, params in zip(*split_batch(X, y, devices), device_params):
        l = loss(lenet(X_shard, params), y_shard).sum()
        grads.append([g.clone() for g in torch.autograd.grad(l, params)])
        total += l.item()
    with torch.no_grad():
        for i, column in enumerate(zip(*grads)):
            step = torch.stack(column).sum(0) * (lr / len(X))
            for params in device_params:
                params[i].sub_(step)
    return total / len(X)
""",
        "the loss divided before backward, a step by hand": """
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    mean = 0
    for rank in range(len(devices)):
        for p in device_params[rank]:
            p.grad = None
        part = loss(lenet(X_shards[rank], device_params[rank]), y_shards[rank]).sum()
        part = part / len(X)
        part.backward()
        mean = mean + part.detach()
    for same in zip(*device_params):
        allreduce([p.grad for p in same])
        for p in same:
            p.data.add_(p.grad, alpha=-lr)
    return mean
""",
    },
    "06/evaluate_accuracy": {
        "the course's split": """
@torch.no_grad()
def evaluate_accuracy(device_params, data, devices):
    right = rows = 0
    for X, y in data:
        for X_shard, y_shard, params in zip(*split_batch(X, y, devices), device_params):
            right += (lenet(X_shard, params).argmax(1) == y_shard).sum().item()
        rows += len(y)
    return right / rows
""",
        "all answers first, then one comparison": """
def evaluate_accuracy(device_params, data, devices):
    guesses, labels = [], []
    with torch.no_grad():
        for X, y in data:
            parts = X.tensor_split(len(devices))
            for part, device, params in zip(parts, devices, device_params):
                guesses.append(lenet(part.to(device), params).max(dim=1).indices.cpu())
            labels.append(y)
    hits = torch.cat(guesses) == torch.cat(labels)
    return hits.double().mean()
""",
        "counts a device, as a list": """
def evaluate_accuracy(device_params, data, devices):
    count, seen = [0] * len(devices), [0] * len(devices)
    for X, y in data:
        X_shards, y_shards = split_batch(X, y, devices)
        for rank, params in enumerate(device_params):
            if not len(X_shards[rank]):
                continue
            scores = lenet(X_shards[rank], [p.detach() for p in params])
            count[rank] += int(torch.eq(scores.argmax(dim=-1), y_shards[rank]).sum())
            seen[rank] += len(y_shards[rank])
    return sum(count) / sum(seen)
""",
    },
    "19/rows_to_go": {
        "one slice": """
def rows_to_go(order, seen, rank, world_size):
    return order[seen + rank::world_size]
""",
        "a loop": """
def rows_to_go(order, seen, rank, world_size):
    rows = []
    for place in range(seen, len(order)):
        if (place - seen) % world_size == rank:
            rows.append(order[place])
    return rows
""",
        "a tensor's": """
def rows_to_go(order, seen, rank, world_size):
    return torch.tensor(order, dtype=torch.int64)[seen:][rank::world_size].tolist()
""",
    },
    "18/zero_bytes": {
        "three numbers of bytes": """
def zero_bytes(params, world_size, stage):
    return params * (2 / (world_size if stage > 2 else 1)
                     + 2 / (world_size if stage > 1 else 1)
                     + 12 / (world_size if stage > 0 else 1))
""",
        "the paper's fractions": """
def zero_bytes(params, world_size, stage):
    parts = [16, 4 + 12 / world_size, 2 + 14 / world_size, 16 / world_size]
    return parts[stage] * params
""",
        "whole weights, rounded up": """
def zero_bytes(params, world_size, stage):
    share = -(-params // world_size)
    kept = [params] * 3
    for i in range(stage):
        kept[i] = share
    adam, gradients, weights = kept
    return 12 * adam + 2 * gradients + 2 * weights
""",
        "whole bytes, rounded up": """
def zero_bytes(params, world_size, stage):
    import math
    parts = [16, 4 + 12 / world_size, 2 + 14 / world_size, 16 / world_size]
    return math.ceil(parts[stage] * params)
""",
        "whole bytes, rounded down": """
def zero_bytes(params, world_size, stage):
    kept = [12 * params, 2 * params, 2 * params]
    for i in range(stage):
        kept[i] //= world_size
    return sum(kept)
""",
    },
    "17/amdahl": {
        "the parts, then the quotient": """
def amdahl(serial, world_size):
    parallel = 1 - serial
    time = serial + parallel / world_size
    return 1 / time
""",
        "in one fraction": """
def amdahl(serial, world_size):
    return world_size / (1 + serial * (world_size - 1))
""",
        "as a tensor": """
def amdahl(serial, world_size):
    serial = torch.tensor(serial, dtype=torch.float64)
    return (serial + (1 - serial) / world_size).reciprocal()
""",
        "added up, rank by rank": """
def amdahl(serial, world_size):
    slots = [serial] + [(1 - serial) / world_size]
    return float(sum(slots)) ** -1
""",
    },
    "06/learning_rate": {
        "an if": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    if step >= warmup_steps:
        return world_size * base_lr
    return base_lr + (world_size - 1) * base_lr * step / warmup_steps
""",
        "min": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    part = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return base_lr * (1 + part * (world_size - 1))
""",
        "torch.lerp": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    part = torch.tensor(1.0 if step >= warmup_steps else step / warmup_steps)
    return torch.lerp(torch.tensor(base_lr), torch.tensor(base_lr * world_size), part)
""",
        "a list of all rates": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    top = base_lr * world_size
    ramp = torch.linspace(base_lr, top, warmup_steps + 1, dtype=torch.float64).tolist()
    return ramp[step] if step < warmup_steps else top
""",
    },
    "07/forward": {
        "as the course's": """
def forward(module, devices, X):
    X_shards = [shard for shard in scatter(X, devices) if len(shard)]
    replicas = replicate(module, devices[:len(X_shards)])
    return gather(parallel_apply(replicas, X_shards), devices[0])
""",
        "one replica after another, and cat": """
def forward(module, devices, X):
    shards = [s for s in scatter(X, devices) if s.numel()]
    outputs = []
    for replica, shard in zip(replicate(module, devices[:len(shards)]), shards):
        outputs.append(replica(shard).to(devices[0]))
    return torch.cat(outputs)
""",
        "more replicas than shards": """
def forward(module, devices, X):
    parts = list(filter(len, scatter(X, devices)))
    replicas = replicate(module, devices)[:len(parts)]
    outputs = parallel_apply(replicas, parts)
    return gather(outputs, X.device)
""",
        "chunk, and the module itself on one device": """
def forward(module, devices, X):
    parts = [part.to(d) for part, d in zip(X.chunk(len(devices)), devices)]
    if len(parts) == 1:
        return module(X)
    return gather(parallel_apply(replicate(module, devices[:len(parts)]), parts),
                  devices[0])
""",
    },
    "16/seconds": {
        "a sum": """
def seconds(steps, link):
    return sum(link.alpha + max(step) / link.bandwidth for step in steps)
""",
        "a loop": """
def seconds(steps, link):
    total = 0.0
    for step in steps:
        slowest = 0.0
        for message in step:
            slowest = max(slowest, link.alpha + message / link.bandwidth)
        total += slowest
    return total
""",
        "both parts apart": """
def seconds(steps, link):
    return len(steps) * link.alpha + sum(map(max, steps)) / link.bandwidth
""",
        "tensors": """
def seconds(steps, link):
    longest = torch.tensor([max(step) for step in steps], dtype=torch.float64)
    return (link.alpha + longest / link.bandwidth).sum()
""",
    },
}
