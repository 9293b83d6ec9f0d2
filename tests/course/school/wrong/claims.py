"""Wrong answers to the exercises of lessons in claims.py.

<<NAME: code>> is right code in its place. Each entry of the dict below an answer puts a
mistake in place of some; its key is how the message to the learner begins.
"""

WRONG = {
    "claims/sampled": (
        """
from torch.utils.data import DistributedSampler

def sampled(rows, n):
    orders = []
    for rank in range(<<RANKS: n>>):
        sampler = DistributedSampler(
            range(rows), n, rank, drop_last=<<DROP: False>>, seed=<<SEED: 0>>)
        orders.append(<<ORDER: list(sampler)>>)
    return <<RESULT: orders>>
""",
        {
            "return the lists themselves": {"RESULT": "0"},
            "every rank has all rows": {"ORDER": "torch.randperm(rows).tolist()"},
            "drop_last leaves rows out": {"DROP": "True"},
            "there is one list for each": {"RANKS": "1"},
            "rows count from 0": {"ORDER": "[row + 1 for row in sampler]"},
            "ranks shuffle with seeds": {"SEED": "rank"},
        },
    ),
    "claims/crossing": (
        """
from course.school.claims import _speedup as speedup

def crossing(n):
    rows = <<FIRST: n>>
    while speedup(rows, n) < <<TIMES: 0.8 * n>>:
        rows += <<MORE: n>>
    return <<RESULT: rows>>
""",
        {
            "count in steps of n": {"FIRST": "1", "MORE": "1"},
            "these are one row a GPU too few": {"RESULT": "rows - n"},
            "these are the rows of one GPU": {"RESULT": "rows // n"},
            "0.8 times as fast": {"TIMES": "0.8"},
            "fewer rows suffice": {"RESULT": "rows + n"},
        },
    ),
}
