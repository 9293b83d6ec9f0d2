"""The steps to a target: the median of the best rate."""

import json
from pathlib import Path

from programs import steps_to

STORED = Path(__file__).parents[2] / "notebooks/results/digits-steps.json"


def test_the_fewest_steps_are_of_the_best_rate_and_the_median_seed():
    runs = [
        {"batch_size": 8, "lr": lr, "steps": steps}
        for lr, seeds in ((0.1, (5, 9, 7)), (0.2, (3, 8, None)), (0.4, (1, None, None)))
        for steps in seeds
    ]
    assert steps_to.fewest(runs) == {8: (7, 0.1)}


def test_what_is_stored_is_the_whole_grid_and_a_target_may_not_be_reached():
    stored = json.loads(STORED.read_text())
    assert {(run["batch_size"], run["lr"], run["seed"]) for run in stored["runs"]} == {
        (size, lr, seed)
        for size in steps_to.SIZES
        for lr in steps_to.RATES
        for seed in range(3)
    }
    assert stored["settings"] == {"target": steps_to.TARGET, "limit": steps_to.LIMIT}
    assert steps_to.steps_to(0.99, 4, 0.02, seed=0, limit=2) is None
