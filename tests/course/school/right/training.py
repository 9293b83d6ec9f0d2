"""Right answers to the exercises of lessons in training.py, by style."""

from tests.course.school.right import changed

RIGHT = {
    "train/learning_rate": {
        "looked up in torch.linspace": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    if not warmup_steps:
        return base_lr * world_size
    return torch.linspace(base_lr, base_lr * world_size, warmup_steps + 1)[
        min(step, warmup_steps)]
""",
        "the share of the way, added to the start": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    share = 1.0
    if warmup_steps > 0:
        share = min(step / warmup_steps, 1.0)
    return base_lr * (1 + share * (world_size - 1))
""",
        "a Fraction, and a magic": """%%time
from fractions import Fraction
learning_rate = lambda step, base_lr, world_size, warmup_steps: Fraction(base_lr) * (
    1 + (world_size - 1) * (Fraction(min(step, warmup_steps), warmup_steps)
                            if warmup_steps else 1))
""",
    },
    "train/evaluate_accuracy": {
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
        "vmap, an image at a time": """
def evaluate_accuracy(device_params, data, devices):
    right = rows = 0
    for X, y in data:
        for params, X_shard, y_shard in zip(device_params, *split_batch(X, y, devices)):
            if len(X_shard):
                answer = torch.vmap(lambda x: lenet(x[None], params)[0].argmax())
                right += (answer(X_shard) == y_shard).sum().item()
        rows += len(y)
    return right / rows
""",
        "the data walked through twice": changed(
            "train/evaluate_accuracy",
            ("correct = total = 0", "correct = 0"),
            ("return correct / total", "return correct / sum(len(y) for X, y in data)"),
            ("total += len(y)", "pass"),
        ),
        "numpy's answers, with gradients, as a float32": changed(
            "train/evaluate_accuracy",
            ("@torch.no_grad()", "import numpy as np"),
            (
                "scores.argmax(dim=1)",
                "torch.tensor(scores.detach().numpy().argmax(axis=1))",
            ),
            ("correct / total", "np.float32(correct / total)"),
        ),
    },
}
