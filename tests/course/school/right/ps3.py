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
    "ps3/translate": {
        "both runs, step by step, as pairs in lists": """
def translate(milestones, examples, before, after):
    def starts(batch_size):
        seen = 0
        while True:
            yield seen
            seen = min(seen + batch_size, (seen // examples + 1) * examples)

    old, new, last, moved = starts(before), enumerate(starts(after)), -1, []
    place, begun = next(new)
    for step, factor in milestones:
        while last < step:
            seen = next(old)
            last += 1
        while begun < seen:
            place, begun = next(new)
        if moved and moved[-1][0] == place:
            moved.pop()
        moved.append([place, factor])
    return moved
""",
        "numpy, the last of each step found backwards": """
import numpy as np

def translate(milestones, examples, before, after):
    steps, factors = np.array(milestones).T
    old, new = -(-examples // before), -(-examples // after)
    places = steps // old * new + np.ceil(steps % old * before / after)
    unique, last = np.unique(places[::-1], return_index=True)
    return list(zip(unique.astype(int), factors[::-1][last]))
""",
        "rounded up without floats, and sorted": changed(
            "ps3/translate",
            PLACE="-(-rest * before // after) + new * epoch",
            RESULT="sorted(moved.items())",
        ),
    },
    "ps3/warmup": {
        "a closed formula on a dataclass": """
from dataclasses import dataclass, field

@dataclass
class Warmup:
    base_lr: float
    world_size: int
    warmup: int
    seen: int = field(default=0, init=False)

    def step(self, rows):
        self.seen, seen = self.seen + rows, self.seen
        share = torch.lerp(torch.tensor(0.1), torch.tensor(1.0),
                           min(1.0, seen / max(self.warmup, 1e-300 if seen else 1)))
        return self.base_lr * self.world_size * (share if self.warmup else 1)

    def state_dict(self):
        return {"seen": torch.tensor(self.seen)}

    def load_state_dict(self, state):
        self.seen = int(state["seen"])
""",
        "a generator that is fed, and examples still to go": """
class Warmup:
    def __init__(self, base_lr, world_size, warmup):
        self.full, self.warmup, self.left = base_lr * world_size, warmup, warmup

    def step(self, rows):
        lacks = 0.9 * self.left / self.warmup if self.left > 0 else 0
        self.left -= rows
        return self.full * (1 - lacks)

    def state_dict(self):
        return dict(seen=[self.warmup - self.left])

    def load_state_dict(self, state):
        (seen,) = state["seen"]
        self.left = self.warmup - seen
""",
        "numpy.interp and a list of all minibatches": """
import numpy as np

class Warmup:
    def __init__(self, *settings):
        self.settings, self.sizes = settings, []

    def step(self, rows):
        lr, k, warmup = self.settings
        share = np.interp(sum(self.sizes), [0, warmup], [0.1, 1]) if warmup else 1
        self.sizes.append(rows)
        return np.float32(lr * k * share)

    def state_dict(self):
        return {"sizes": list(self.sizes)}

    def load_state_dict(self, state):
        self.sizes = list(state["sizes"])
""",
    },
    "ps3/f1": {
        "a confusion matrix": """
def count(guesses, labels, classes):
    matrix = torch.zeros(classes, classes)
    matrix.index_put_((labels, guesses), torch.tensor(1.0), accumulate=True)
    return matrix

def f1(counts):
    whole = counts.sum(0) + counts.sum(1)
    return (2 * counts.diagonal() / whole)[whole > 0].mean()
""",
        "precision and recall in plain Python, flat": """
def count(guesses, labels, classes):
    pairs = list(zip(guesses.tolist(), labels.tolist()))
    return torch.tensor([
        number for c in range(classes) for number in (
            sum(g == c == n for g, n in pairs),
            sum(g == c != n for g, n in pairs),
            sum(g != c == n for g, n in pairs))])

def f1(counts):
    scores = []
    for i in range(0, len(counts), 3):
        tp, fp, fn = counts[i:i + 3].tolist()
        if tp:
            precision, recall = tp / (tp + fp), tp / (tp + fn)
            scores.append(2 * precision * recall / (precision + recall))
        elif fp or fn:
            scores.append(0)
    return sum(scores) / len(scores)
""",
        "one_hot and nanmean": """
from torch.nn.functional import one_hot

def count(guesses, labels, classes):
    g, n = one_hot(guesses, classes), one_hot(labels, classes)
    return torch.stack([g * n, g + n]).sum(1).double()

f1 = lambda counts: (2 * counts[0] / counts[1]).nanmean()
""",
    },
}
