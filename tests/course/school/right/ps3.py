"""Right answers to problem set 3, by style: {exercise: {style: cell}}."""

from tests.course.school.right import changed

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
        "numpy's numbers, and a tuple of rows": changed(
            "ps3/plan",
            ("import math", "import math, numpy as np"),
            ('"lr": rate', '"lr": np.float32(rate)'),
            ("whole,", "np.sum(rows),"),
            CUT="tuple(np.clip(b - np.int64(size) * np.arange(k), 0, size))",
        ),
    },
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
""",
    },
    "ps3/shard_indices": {
        "torch's sampler for one rank, then dealt": """
from torch.utils.data import DistributedSampler
def shard_indices(n, world_size, rank, seed, epoch):
    sampler = DistributedSampler(range(n), 1, 0, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)[rank::world_size]
""",
        "a shared generator, put back": changed(
            "ps3/shard_indices",
            ("torch.Generator()", "torch.get_rng_state(); torch"),
            ORDER="torch.randperm(n)",
            AFTER="torch.set_rng_state(generator)",
            DEAL="order.tensor_split(world_size)[rank].numpy()",
        ),
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
        "numpy's answers, with gradients, as a float32": changed(
            "ps3/evaluate_accuracy",
            ("@torch.no_grad()", "import numpy as np"),
            (
                "scores.argmax(dim=1)",
                "torch.tensor(scores.detach().numpy().argmax(axis=1))",
            ),
            ("correct / total", "np.float32(correct / total)"),
        ),
    },
}
