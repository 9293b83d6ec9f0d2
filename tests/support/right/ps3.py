"""Right answers to problem set 3, by style: {exercise: {style: cell}}."""

from tests.support.right import lessons

PLAN = """
def plan(examples, batch_size, world_size, lr, keep):
    if keep == "batch":
        m = -(-batch_size // world_size)
        rows = [max(0, min(m, batch_size - r * m)) for r in range(world_size)]
    else:
        rows, lr = [batch_size] * world_size, lr * world_size
    whole = sum(rows)
    RETURN
"""
RATE = """
def learning_rate(step, base_lr, world_size, warmup_steps):
    if step >= warmup_steps:
        return world_size * base_lr
    return base_lr + base_lr * (world_size - 1) * step / warmup_steps
"""
INDICES = """
def shard_indices(n, world_size, rank, seed, epoch):
    g = torch.Generator()
    g.manual_seed(seed * 1000 + epoch)
    return torch.randperm(n, generator=g)[rank::world_size].tolist()
"""
ACCURACY = """
def evaluate_accuracy(device_params, data, devices):
    correct = total = 0
    with torch.no_grad():
        for X, y in data:
            parts = zip(X.tensor_split(len(devices)), y.tensor_split(len(devices)))
            for rank, (a, b) in enumerate(parts):
                a, b = a.to(devices[rank]), b.to(devices[rank])
                correct += COUNT
            total += len(y)
    return RESULT
"""
COUNT = "(lenet(a, device_params[rank]).argmax(1) == b).sum().item()"


def _accuracy(count=COUNT, result="correct / total", before="", after=""):
    return before + ACCURACY.replace("COUNT", count).replace("RESULT", result) + after


def _plan(result, before=""):
    return before + PLAN.replace("RETURN", f"return {result}")


NP = "import numpy as np\n"
ANSWERS = {
    "plan": {
        "a dict, literally": _plan(
            '{"rows": rows, "batch_size": whole, "lr": lr, "steps": -(-examples // whole)}'),
        "dict() and math.ceil": _plan(
            "dict(rows=rows, batch_size=whole, lr=lr, steps=math.ceil(examples / whole))",
            "import math\n"),
        "numpy's whole numbers": _plan(
            '{"rows": [np.int64(r) for r in rows], "batch_size": np.sum(rows), '
            '"lr": np.float64(lr), "steps": np.ceil(examples / whole).astype(int)}', NP),
        "a numpy array of rows": _plan(
            '{"rows": np.array(rows), "batch_size": np.sum(rows), "lr": lr, '
            '"steps": int(np.ceil(examples / whole))}', NP),
        "numpy's float32": _plan(
            '{"rows": rows, "batch_size": np.int32(whole), "lr": np.float32(lr), '
            '"steps": np.int16(-(-examples // whole))}', NP),
        "a Fraction rounded up": _plan(
            '{"rows": rows, "batch_size": whole, "lr": Fraction(lr), '
            '"steps": math.ceil(Fraction(examples, whole))}',
            "import math\nfrom fractions import Fraction\n"),
        "torch's numbers": _plan(
            '{"rows": torch.tensor(rows), "batch_size": torch.tensor(rows).sum(), '
            '"lr": torch.tensor(lr, dtype=torch.float64), '
            '"steps": -(-examples // torch.tensor(whole))}'),
        "a tuple of rows, divmod": _plan(
            '{"rows": tuple(rows), "batch_size": whole, "lr": lr, '
            '"steps": divmod(examples, whole)[0] + bool(examples % whole)}'),
        "an OrderedDict": _plan(
            'OrderedDict(steps=(examples + whole - 1) // whole, lr=lr, rows=rows, '
            'batch_size=whole)', "from collections import OrderedDict\n"),
        "a dataclass as a dict": """
from dataclasses import asdict, dataclass

@dataclass
class Plan:
    rows: list
    batch_size: int
    lr: float
    steps: int

def plan(examples, batch_size, world_size, lr, keep):
    if keep == "shard":
        return asdict(Plan([batch_size] * world_size, batch_size * world_size,
                           lr * world_size, -(-examples // (batch_size * world_size))))
    rows, left, size = [], batch_size, -(-batch_size // world_size)
    for _ in range(world_size):
        rows.append(min(size, left))
        left -= rows[-1]
    return asdict(Plan(rows, batch_size, lr, -(-examples // batch_size)))
""",
        "counted as split_batch cuts": """
def plan(examples, batch_size, world_size, lr, keep):
    result = {}
    if keep == "batch":
        pieces = list(torch.arange(batch_size).chunk(world_size))
        rows = [len(p) for p in pieces] + [0] * (world_size - len(pieces))
        result["lr"] = lr
    elif keep == "shard":
        rows = [batch_size for _ in range(world_size)]
        result["lr"] = world_size * lr
    else:
        raise ValueError(keep)
    result["rows"] = rows
    result["batch_size"] = sum(rows)
    result["steps"] = len(range(0, examples, sum(rows)))
    return result
""",
        "tried in its cell": _plan(
            '{"rows": rows, "batch_size": whole, "lr": lr, "steps": -(-examples // whole)}')
        + """
print(plan(1438, 64, 3, 0.05, "batch"))
assert plan(1438, 64, 3, 0.05, "batch")["rows"] == [22, 22, 20]
params = init_params()
assert largest_difference(params, params) == 0
_ = largest_difference(get_params(params, "cpu"), params)
display(plan(10, 4, 2, 1, "shard"))
check("ps3/plan", plan)
""",
    },
    "learning_rate": lessons.ANSWERS["06/learning_rate"] | {
        "min of a fraction": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    part = min(1, step / warmup_steps) if warmup_steps else 1
    return base_lr * (1 + (world_size - 1) * part)
""",
        "numpy.interp": """
import numpy as np
def learning_rate(step, base_lr, world_size, warmup_steps):
    if warmup_steps == 0:
        return np.float64(world_size * base_lr)
    return np.interp(step, [0, warmup_steps], [base_lr, world_size * base_lr])
""",
        "numpy's float32": """
import numpy as np
def learning_rate(step, base_lr, world_size, warmup_steps):
    if step >= warmup_steps:
        return np.float32(world_size * base_lr)
    return np.float32(base_lr + (world_size - 1) * base_lr * step / warmup_steps)
""",
        "Fraction": """
from fractions import Fraction
def learning_rate(step, base_lr, world_size, warmup_steps):
    base = Fraction(base_lr)
    if step >= warmup_steps:
        return world_size * base
    return base + (world_size - 1) * base * Fraction(step, warmup_steps)
""",
        "torch.lerp": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    start = torch.tensor(base_lr, dtype=torch.float64)
    if warmup_steps <= step:
        return start * world_size
    return torch.lerp(start, world_size * start, step / warmup_steps)
""",
        "recursion": """
def learning_rate(step, base_lr, world_size, warmup_steps):
    if step >= warmup_steps:
        return world_size * base_lr
    if step == 0:
        return base_lr
    return (learning_rate(step - 1, base_lr, world_size, warmup_steps)
            + (world_size - 1) * base_lr / warmup_steps)
""",
        "a lambda": """
learning_rate = lambda step, base_lr, world_size, warmup_steps: (
    world_size * base_lr if step >= warmup_steps
    else base_lr + (world_size * base_lr - base_lr) / warmup_steps * step)
""",
        "drawn in its cell": RATE + """
import matplotlib.pyplot as plt
plt.plot([learning_rate(s, 0.1, 4, 10) for s in range(20)])
plt.show()
learning_rate?
""",
        "a cell magic, and a check": "%%time\n" + RATE.lstrip() + """
check("ps3/learning_rate", learning_rate, times=2)
print(len(train_batch.__name__))
""",
    },
    "shard_indices": {
        "a generator of torch": INDICES,
        "Random of Python": """
import random
def shard_indices(n, world_size, rank, seed, epoch):
    order = list(range(n))
    random.Random(f"{seed}-{epoch}").shuffle(order)
    return order[rank::world_size]
""",
        "random.sample": """
from random import Random
def shard_indices(n, world_size, rank, seed, epoch):
    order = Random(seed * 10007 + epoch).sample(range(n), n)
    return [order[i] for i in range(n) if i % world_size == rank]
""",
        "numpy's new generator": """
import numpy as np
def shard_indices(n, world_size, rank, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return order[rank::world_size].tolist()
""",
        "numpy's whole numbers": """
import numpy as np
def shard_indices(n, world_size, rank, seed, epoch):
    return list(np.random.default_rng((seed, epoch)).permutation(n)[rank::world_size])
""",
        "numpy's old generator, its own": """
import numpy as np
def shard_indices(n, world_size, rank, seed, epoch):
    order = np.random.RandomState((seed + epoch) % 2**32).permutation(n)
    return [int(i) for i in np.array_split(order, world_size)[rank]]
""",
        "contiguous pieces of the shuffled order": """
def shard_indices(n, world_size, rank, seed, epoch):
    g = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(n, generator=g).tensor_split(world_size)[rank].tolist()
""",
        "the last ranks have more": """
def shard_indices(n, world_size, rank, seed, epoch):
    g = torch.Generator().manual_seed(hash((seed, epoch)) % 2**31)
    order = torch.randperm(n, generator=g).tolist()
    return order[rank * n // world_size:(rank + 1) * n // world_size]
""",
        "sorted by random keys": """
def shard_indices(n, world_size, rank, seed, epoch):
    g = torch.Generator().manual_seed(seed ^ (epoch << 20))
    keys = torch.rand(n, generator=g, dtype=torch.float64)
    return keys.argsort()[rank::world_size].tolist()
""",
        "itertools.islice": """
from itertools import islice
def shard_indices(n, world_size, rank, seed, epoch):
    g = torch.Generator()
    g.manual_seed(seed + 7919 * epoch)
    return list(islice(torch.randperm(n, generator=g).tolist(), rank, None, world_size))
""",
        "remembered from call to call": """
from functools import lru_cache

@lru_cache(maxsize=None)
def order(n, seed, epoch):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()

def shard_indices(n, world_size, rank, seed, epoch):
    return order(n, seed, epoch)[rank::world_size]
""",
        "a shared generator, put back": """
def shard_indices(n, world_size, rank, seed, epoch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + epoch)
        return torch.randperm(n)[rank::world_size].tolist()
""",
        "a digest of the arguments": """
import hashlib
def shard_indices(n, world_size, rank, seed, epoch):
    def key(i):
        return hashlib.sha256(f"{seed} {epoch} {i}".encode()).digest()
    return sorted(range(n), key=key)[rank::world_size]
""",
        "tried against torch's sampler": INDICES + """
mine = [shard_indices(10, 4, r, 0, 0) for r in range(4)]
torchs = [list(DistributedSampler(range(10), 4, r, seed=0)) for r in range(4)]
assert sorted(sum(mine, [])) == list(range(10))
print(mine, torchs)
check("ps3/shard_indices", shard_indices)
""",
    },
    "evaluate_accuracy": {
        "all answers first, then one comparison": lessons.ANSWERS["06/evaluate_accuracy"][
            "all answers first, then one comparison"],
        "under no_grad": _accuracy(),
        "int of a sum": _accuracy("int((lenet(a, device_params[rank]).argmax(dim=-1) == b)"
                                  ".sum())"),
        "a tensor of counts": _accuracy(
            "(lenet(a, device_params[rank]).argmax(1) == b).sum()"),
        "numpy": _accuracy("np.sum(lenet(a, device_params[rank]).numpy().argmax(1) "
                           "== b.numpy())", before=NP),
        "numpy's float32": _accuracy(result="np.float32(correct / total)", before=NP),
        "a Fraction": _accuracy(result="Fraction(int(correct), total)",
                                before="from fractions import Fraction\n"),
        "max, and eq": _accuracy(
            "torch.eq(lenet(a, device_params[rank]).max(dim=1).indices, b).sum().item()"),
        "zip and a list": _accuracy(
            "sum(p == q for p, q in zip(lenet(a, device_params[rank]).argmax(1).tolist(), "
            "b.tolist()))"),
        "topk": _accuracy("(lenet(a, device_params[rank]).topk(1).indices[:, 0] == b)"
                          ".double().sum().item()"),
        "with gradients, detached": """
def evaluate_accuracy(device_params, data, devices):
    hits = []
    for X, y in data:
        m = -(-len(X) // len(devices))
        for r, (device, params) in enumerate(zip(devices, device_params)):
            a, b = X[r * m:][:m].to(device), y[r * m:][:m].to(device)
            if len(a) == 0:
                continue
            hits += (lenet(a, params).detach().argmax(1) == b).tolist()
    return sum(hits) / len(hits)
""",
        "row by row, dealt like cards": """
@torch.no_grad()
def evaluate_accuracy(device_params, data, devices):
    right = rows = 0
    for X, y in data:
        for i in range(len(X)):
            r = i % len(devices)
            scores = lenet(X[i:i + 1].to(devices[r]), device_params[r])[0]
            right += int(scores.argmax()) == int(y[i])
            rows += 1
    return right / rows
""",
        "tried in its cell": _accuracy(after="""
_, test_iter = load_data("digits", batch_size=100, dtype=torch.float64)
params = init_params("he", torch.Generator().manual_seed(0), torch.float64)
devices = try_devices(2)
replicas = [get_params(params, d) for d in devices]
accuracy = evaluate_accuracy(replicas, test_iter, devices)
assert 0 <= accuracy <= 1
print(f"{accuracy:.3f}")
check("ps3/evaluate_accuracy", evaluate_accuracy)
"""),
    },
}
