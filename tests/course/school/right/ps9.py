"""Right answers to problem set 9: {exercise: {style: cell}}."""

from tests.course.school.right import changed

RIGHT = {
    "ps9/fit": {
        "numpy's polyfit, a named tuple": """
import collections, numpy as np
Link = collections.namedtuple("Link", "alpha beta")
def fit(sizes, seconds):
    beta, alpha = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return Link(alpha, beta)
""",
        "normal equations, a tensor with a column": """
def fit(sizes, seconds):
    t, s = torch.tensor(seconds, dtype=torch.float64), torch.tensor(sizes).double()
    A = torch.stack([1 / t, s / t / 1e6], 1)
    found = torch.linalg.solve(A.T @ A, A.T @ torch.ones(len(t), 1).double())
    return found / torch.tensor([[1.0], [1e6]])
""",
    },
    "ps9/allreduce_seconds": {
        "step by step": """
def allreduce_seconds(way, world_size, size, alpha, beta):
    total, numbers, reached = 0.0, size // 4, 1
    if way in ("star", "ring"):
        n = numbers if way == "star" else (numbers + world_size - 1) // world_size
        return sum(2 * (alpha + 4 * n * beta) for _ in range(world_size - 1))
    while reached < world_size:
        reached, numbers = 2 * reached, numbers - numbers // 2 * (way != "tree")
        total += 2 * alpha + 8 * beta * numbers
    return total
""",
        "numpy, a tensor": changed(
            "ps9/allreduce_seconds",
            ("def", "import numpy as np\ndef"),
            ("sum(", "np.sum("),
            ("return 2 * (", "return torch.tensor(2.0).double() * ("),
            LEVELS="int(np.ceil(np.log2(N)))",
        ),
    },
    "ps9/halving_doubling": {
        "the farthest partner first": changed(
            "ps9/halving_doubling",
            ("if d < power", "if d >= 1"),
            ("2 * d", "d // 2"),
            ("tensor, 1", "tensor, power // 2"),
        ),
        "lists of chunks": changed(
            "ps9/halving_doubling",
            ("), other)", "), [*other.split(1)])"),
            ("mine.add_((", "mine.add_(torch.cat([mine[:0], *("),
            ("split(1)]))", "split(1)])]))"),
        ),
    },
    "ps9/two_level": {
        "on a copy": changed(
            "ps9/two_level",
            ("tensor.tensor_split", "work.tensor_split"),
            BEFORE="work = tensor.clone()",
            AFTER="tensor.copy_(work)",
        ),
        "one ring on each level": changed(
            "ps9/two_level",
            ("own[to]", "own[(me + 1) % len(own)]"),
            ("me if back else to", "me - shift + back"),
            ("cut[source]", "cut[me - shift]"),
            ("cut[me].add_", "cut[me - shift - 1].add_"),
        ),
    },
    "ps9/finish": {
        "from each bucket to the end": changed(
            "ps9/finish",
            (
                "return now",
                """\
took = [steps * (link.alpha + size / (N * link.bandwidth)) for size in sizes]
    return max(start + sum(took[i:]) for i, start in enumerate(ready))""",
            ),
        ),
        "tensors": changed(
            "ps9/finish",
            ("now, steps = 0", "now, steps = torch.tensor(0.0).double()"),
            ("min(caps", "torch.tensor(min(caps"),
            ("-cap))", "-cap)))"),
            QUEUE="now.clamp(min=start) + took",
        ),
    },
}
