"""Right answers to problem set 1, and to lessons: {exercise: {style: cell}}."""

from tests.course.school.right import changed

FUNCTIONAL = """
def {name}(X, y, {args}device_params, devices, lr):
    cut = split_batch(X, y, devices)
    {weights}
    def of_shard(params, X_shard, y_shard, w):
        return (w * loss(lenet(X_shard, params), y_shard)).sum()
    steps = torch.func.grad_and_value(of_shard)
    found = [steps(tuple(q), *shard) for q, *shard in zip(device_params, *cut, w_shards)]
    grads = [torch.cat([g.flatten() for g in own]) for own, _ in found]
    allreduce(grads)
    with torch.no_grad():
        for q, grad in zip(device_params, grads):
            for p, g in zip(q, grad.split([p.numel() for p in q])):
                p -= lr / {whole} * g.view_as(p)
    return sum(l.item() for _, l in found) / {whole}
"""
RIGHT = {
    "replicas/get_params": {
        # the warning that torch writes here was once taken for a failure
        "torch.tensor of a tensor": """
def get_params(params, device):
    return [torch.tensor(p, device=device).requires_grad_() for p in params]
"""
    },
    "allreduce/allreduce": {
        "a star, each rank's own device": """
@torch.no_grad()
def allreduce(tensors):
    for rank in range(1, len(tensors)):
        tensors[0] += tensors[rank].to(tensors[0].device)
    for rank in range(1, len(tensors)):
        tensors[rank][...] = tensors[0].to(tensors[rank].device)
""",
        "torch.stack, zeroed, then added": """
def allreduce(tensors):
    total = torch.stack(list(tensors)).sum(dim=0)
    [tensor.zero_().add_(total) for tensor in tensors]
    return tensors
""",
    },
    "split_the_batch/split_batch": {
        "split, and empty ones at its end": """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError(f"{len(X)} images, {len(y)} labels")
    rows = (len(X) + len(devices) - 1) // len(devices)
    def cut(tensor):
        parts = [*tensor.split(rows)]
        parts += [tensor[:0]] * (len(devices) - len(parts))
        return [part.to(device) for part, device in zip(parts, devices)]
    return cut(X), cut(y)
""",
        "rank by rank, tuples": """
import math
def split_batch(X, y, devices):
    if X.shape[0] != y.shape[0]:
        raise ValueError("lengths")
    rows = math.ceil(len(X) / len(devices))
    pairs = [(X[rank * rows:][:rows].to(device), y[rank * rows:][:rows].to(device))
             for rank, device in enumerate(devices)]
    return tuple(zip(*pairs))
""",
    },
    "one_step/train_batch": {
        "gradients by torch.func": FUNCTIONAL.format(
            name="train_batch",
            args="",
            weights="w_shards = [1] * len(devices)",
            whole="len(X)",
        ),
        "gradients by autograd.grad, one mean at the end": """
def train_batch(X, y, device_params, devices, lr):
    total, summed = 0, None
    for A, b, q in zip(*split_batch(X, y, devices), device_params):
        l = loss(lenet(A, q), b).sum()
        grads = torch.autograd.grad(l, q)
        summed = grads if summed is None else [s + g for s, g in zip(summed, grads)]
        total += l.detach()
    for q in device_params:
        for p, grad in zip(q, summed):
            p.data.sub_(grad / len(X), alpha=lr)
    return total / len(X)
""",
    },
    "one_step/stepwise": {
        "the course's order of things": changed(
            "one_step/stepwise",
            START="get_params(replicas[-1], devices[-1])",
            STEP="step(X, y, device_params=replicas, devices=devices, lr=lr)",
            RESULT="float(torch.tensor(found).max())",
        ),
        "flat weights, a running maximum": """
def stepwise(X, y, params, devices, lr, steps, step):
    def flat(replica):
        return torch.cat([p.detach().cpu().flatten() for p in replica])
    replicas, worst = [get_params(params, device) for device in devices], torch.zeros(())
    while steps:
        before, steps = [p.detach().clone() for p in replicas[0]], steps - 1
        step(X, y, replicas, devices, lr)
        one = get_params(before, "cpu")
        train_batch(X, y, [one], ["cpu"], lr)
        for replica in replicas:
            worst = torch.maximum(worst, (flat(replica) - flat(one)).abs().max())
    return worst
""",
    },
    "ps1/largest_difference": {
        "pairs, prints": """%%time
from itertools import combinations
def largest_difference(device_params):
    found = [torch.dist(p, q, p=float("inf")) for one, other in
             combinations(device_params, 2) for p, q in zip(one, other)]
    print(len(found), "pairs")
    return max(found, default=torch.tensor(0.0)).item()
""",
        "float of what hangs on the graph": """
def largest_difference(device_params):
    flat = torch.stack([torch.cat([p.flatten() for p in own]) for own in device_params])
    return float((flat.max(0)[0] - flat.min(0)[0]).max())
""",
    },
    "ps1/split_by_counts": {
        "torch's split": """
def split_by_counts(batch, counts):
    parts = zip(*(tensor.split(counts) for tensor in batch.values()))
    return [dict(zip(batch, part)) for part in parts]
""",
        "row by row, copies": """
def split_by_counts(batch, counts):
    rows = iter(range(sum(counts)))
    at = [torch.tensor([next(rows) for _ in range(n)], dtype=torch.long) for n in counts]
    return tuple({name: t.index_select(0, i) for name, t in batch.items()} for i in at)
""",
    },
    "ps1/weighted_allreduce": {
        "numpy's average": """
import numpy as np
def weighted_allreduce(data, weights):
    held = np.stack([t.numpy() if w else 0 * data[0].numpy() for t, w in zip(data, weights)])
    mean = np.average(np.nan_to_num(held), axis=0, weights=weights)
    for t in data:
        t.numpy()[...] = mean
""",
        "gathered on rank 0": """
def weighted_allreduce(data, weights):
    w = torch.tensor(weights, dtype=data[0].dtype) / sum(weights)
    data[0].copy_(torch.stack(list(data)).nan_to_num().movedim(0, -1) @ w)
    [t.copy_(data[0]) for t in data[1:]]
""",
    },
    "ps1/clipped_sgd": {
        "torch's own": """
def clipped_sgd(params, lr, batch_size, max_norm):
    for p in params:
        p.grad /= batch_size
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    torch.optim.SGD(params, lr=lr).step()
    return [p.grad.zero_() for p in params] and norm
""",
        "by .data": """
def clipped_sgd(params, lr, batch_size, max_norm):
    norm = sum(float((p.grad / batch_size).pow(2).sum()) for p in params) ** 0.5
    for p in params:
        p.data.sub_(p.grad, alpha=lr / batch_size * (max_norm / norm if norm > max_norm else 1))
        p.grad = None
    return norm
""",
    },
    "ps1/weighted_train_batch": {
        "gradients by torch.func": FUNCTIONAL.format(
            name="weighted_train_batch",
            args="weights, ",
            weights="w_shards, _ = split_batch(weights, y, devices)",
            whole="weights.sum()",
        ),
        "only rows that count": changed(
            "ps1/weighted_train_batch",
            (
                "X_shards, y_shards, w_shards, device_params)]",
                "*([t[w > 0] for t, w in zip(own, w_shards)] "
                "for own in (X_shards, y_shards, w_shards)), device_params)]",
            ),
        ),
        "a tensor as the loss": changed(
            "ps1/weighted_train_batch",
            ("(w * loss(lenet(A, q), b)).sum()", "w @ loss(lenet(A, q), b)"),
            RESULT="sum(losses) / float(weights.sum())",
        ),
    },
}
