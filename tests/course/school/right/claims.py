"""Right answers to the exercises of lessons in claims.py."""

from tests.course.school.right import changed

RIGHT = {
    "claims/sampled": {
        "without a shuffle, samplers themselves": changed(
            "claims/sampled", SEED="3, shuffle=False", ORDER="sampler"
        ),
        "through a loader, tensors": changed(
            "claims/sampled",
            ORDER="torch.cat(list(torch.utils.data.DataLoader("
            "range(rows), 2, sampler=sampler)))",
        ),
    },
    "claims/crossing": {
        "next": """
from course.school.claims import _speedup

def crossing(n):
    return n * next(i for i in range(1, 10 ** 6) if _speedup(i * n, n) / n >= 0.8)
""",
        "halved": """
from course.school.claims import _speedup

def crossing(n):
    few, enough = 0, 2 ** 20
    while enough - few > 1:
        half = (few + enough) // 2
        if _speedup(half * n, n) >= 0.8 * n:
            enough = half
        else:
            few = half
    return enough * n
""",
    },
}
