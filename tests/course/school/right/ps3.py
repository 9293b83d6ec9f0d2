"""Right answers to problem set 3, by style: {exercise: {style: cell}}."""

RIGHT = {
    "ps3/plan": {
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
"""},
    "ps3/learning_rate": {
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
"""},
    "ps3/shard_indices": {
        "torch's sampler for one rank, then dealt": """
from torch.utils.data import DistributedSampler
def shard_indices(n, world_size, rank, seed, epoch):
    sampler = DistributedSampler(range(n), 1, 0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)[rank::world_size]
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
"""},
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
"""},
}
