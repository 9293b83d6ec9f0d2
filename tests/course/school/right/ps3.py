"""Right answers to problem set 3, by style: {exercise: {style: cell}}."""

RIGHT = {
    "ps3/plan": {
        "counted with torch's sampler, rows cut by range": """
import math
from torch.utils.data import BatchSampler
def plan(examples, batch_size, world_size, lr, keep):
    if keep == "batch":
        most = math.ceil(batch_size / world_size)
        rows = [len(range(batch_size)[rank * most:(rank + 1) * most])
                for rank in range(world_size)]
    else:
        rows = world_size * [batch_size]
        lr *= world_size
    steps = len(BatchSampler(range(examples), sum(rows), drop_last=False))
    return dict(steps=steps, lr=lr, batch_size=sum(rows), rows=rows)
""",
        "torch's whole numbers, and a float32 rate": """
def plan(examples, batch_size, world_size, lr, keep):
    rows = torch.full((world_size,), batch_size)
    rate = torch.tensor(lr * world_size)
    if keep != "shard":
        left = batch_size - torch.arange(world_size) * -(-batch_size // world_size)
        rows = left.clamp(0, -(-batch_size // world_size))
        rate = torch.tensor(lr)
    whole = rows.sum()
    return {"rows": rows, "batch_size": whole, "lr": rate,
            "steps": torch.ceil(examples / whole).long()}
""",
        "numpy's numbers, and a tuple of rows": """
import numpy as np
def plan(examples, batch_size, world_size, lr, keep):
    per = np.int64(-(-batch_size // world_size) if keep == "batch" else batch_size)
    whole = batch_size if keep == "batch" else batch_size * world_size
    rows = tuple(np.clip(whole - per * np.arange(world_size), 0, per))
    return {"rows": rows, "batch_size": np.sum(rows), "steps": -(-examples // whole),
            "lr": np.float32(lr if keep == "batch" else lr * world_size)}
""",
    },
    "ps3/learning_rate": {
        "torch's own schedule": """
from torch.optim.lr_scheduler import LinearLR
def learning_rate(step, base_lr, world_size, warmup_steps):
    full = world_size * base_lr
    if warmup_steps == 0:
        return full
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=full)
    schedule = LinearLR(optimizer, start_factor=1 / world_size, total_iters=warmup_steps)
    for _ in range(step):
        optimizer.step()
        schedule.step()
    return schedule.get_last_lr()[0]
""",
        "looked up in torch.linspace": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    if not warmup_steps:
        return base_lr * world_size
    return torch.linspace(base_lr, base_lr * world_size, warmup_steps + 1)[
        min(step, warmup_steps)]
""",
        "a Fraction, and a magic": """%%time
from fractions import Fraction
learning_rate = lambda step, base_lr, world_size, warmup_steps: Fraction(base_lr) * (
    1 + (world_size - 1) * (Fraction(min(step, warmup_steps), warmup_steps)
                            if warmup_steps else 1))
""",
    },
    "ps3/shard_indices": {
        "torch's sampler for one rank, then dealt": """
def shard_indices(n, world_size, rank, seed, epoch):
    sampler = DistributedSampler(range(n), 1, 0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)[rank::world_size]
""",
        "dealt by a cycle of hands": """
import itertools, random
def shard_indices(n, world_size, rank, seed, epoch):
    cards = list(range(n))
    random.Random(seed * 100 + epoch).shuffle(cards)
    hands = [[] for _ in range(world_size)]
    for hand in itertools.cycle(hands):
        if not cards:
            return hands[rank]
        hand.append(cards.pop())
""",
        "a shared generator, put back": """
def shard_indices(n, world_size, rank, seed, epoch):
    state = torch.get_rng_state()
    torch.manual_seed(1000 * seed + epoch)
    order = torch.randperm(n)
    torch.set_rng_state(state)
    return order.tensor_split(world_size)[rank].numpy()
""",
        "remembered from call to call": """
ORDERS = {}
def shard_indices(n, world_size, rank, seed, epoch):
    key = n, seed, epoch
    if key not in ORDERS:
        generator = torch.Generator().manual_seed(hash(key) % 2**31)
        ORDERS[key] = torch.randperm(n, generator=generator).tolist()
    return ORDERS[key][rank::world_size]
""",
    },
    "ps3/evaluate_accuracy": {
        "a thread for each device": """
from concurrent.futures import ThreadPoolExecutor
def evaluate_accuracy(device_params, data, devices):
    def count(rank, X, y):
        with torch.inference_mode():
            scores = lenet(X.to(devices[rank]), device_params[rank])
            return torch.sum(scores.argmax(-1) == y.to(devices[rank])).item()
    right = rows = 0
    with ThreadPoolExecutor(len(devices)) as pool:
        for X, y in data:
            k = len(devices)
            right += sum(pool.map(count, range(k), X.tensor_split(k), y.tensor_split(k)))
            rows += y.numel()
    return right / rows
""",
        "counts that stay on their devices": """
def evaluate_accuracy(device_params, data, devices):
    right = [torch.zeros((), dtype=torch.long, device=device) for device in devices]
    rows = 0
    for X, y in data:
        size = -(-len(X) // len(devices))
        for rank, (a, b) in enumerate(zip(X.split(size), y.split(size))):
            with torch.no_grad():
                best = lenet(a.to(devices[rank]), device_params[rank]).max(1)[1]
            right[rank] += best.eq(b.to(devices[rank])).sum()
        rows += len(X)
    return torch.stack([count.cpu() for count in right]).sum() / rows
""",
        "all answers first, with gradients, as a float32": """
import numpy as np
def evaluate_accuracy(device_params, data, devices):
    found, wanted = [], []
    for X, y in data:
        for rank, part in enumerate(X.tensor_split(len(devices))):
            scores = lenet(part.to(devices[rank]), device_params[rank])
            found += scores.detach().numpy().argmax(axis=1).tolist()
        wanted += y.tolist()
    return np.float32(np.mean(np.equal(found, wanted)))
""",
    },
}
