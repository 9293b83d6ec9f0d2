"""Problem set 5, the clues: which rows of the chart give a broken program away.

    ROWS           the rows of the chart, in words
    GIVES_AWAY     for each patient: row -> the number there at k
    judge_clue     what to tell the learner
"""

from manual_dp.school.exercise import close, differ

ROWS = {
    "replicas": "different replicas after a step",
    "gradient": "gradient that is stepped with / one device's",
    "step": "change of the weights / one device's",
    "weight": "weight of a last shard's row / a first shard's",
    "messages": "all-reduces of each gradient in a step",
    "absent": "ranks missing at a collective",
    "orders": "different orders in 3 epochs",
    "lost": "rows that no rank sees in an epoch",
    "accuracy": "on the test set",
}


def _last_of_ten(k):
    rows = -(-10 // k)  # ceil: the shards before the last
    return rows / (10 - (k - 1) * rows)


GIVES_AWAY = {
    "rebinding": {"replicas": lambda k: k},
    "aliasing": {"step": lambda k: 2 ** (k - 1), "gradient": lambda k: 2 ** (k - 1)},
    "hook": {"replicas": lambda k: k, "weight": lambda k: float(k == 1)},
    "set_epoch": {"orders": lambda k: 1},
    "mean_of_means": {"weight": _last_of_ten},
    "stale_gradients": {"step": lambda k: (k + 1) / 2},
    "double_averaging": {"messages": lambda k: 2},
    "no_sync": {"messages": lambda k: k},
    "rank_zero_only": {"absent": lambda k: k - 1},
    "adam_hides": {"gradient": lambda k: k},
}
PATIENTS = list(GIVES_AWAY)
KS = [2, 4, 3, 5, 1]


def judge_clue(name, case, got):
    """Yield what is not right in the clues that the learner's function gave."""
    clue, rows = f"clue_{PATIENTS.index(name) + 1}", GIVES_AWAY[name]
    for k, (row, number) in zip(case["k"], got["clues"], strict=True):
        known = isinstance(row, str) and row in ROWS
        right = known and row in rows
        same = right and rows[row](1) != rows[row](4) and all(
            close(other, got["clues"][0][1]) for _, other in got["clues"])
        yield differ(
            f"{clue}({k}), a row of the broken program's chart at k = {k}",
            [row, number], [row, rows[row](k)] if right else
            "a row that is not healthy, and its number", [
                ("there is no such row; there are " + ", ".join(ROWS), not known),
                ("accuracy goes up and down for many reasons", row == "accuracy"),
                ("that row is as it should be", not right),
                ("the row is right, but the number changes with k", same),
                ("the row is right; the number in the chart is another", True)])
