import json
import re
from math import inf
from pathlib import Path

import pytest

from course.lab.scaling import target
from course.lab.scaling.target import RATES, SIZES, fewest, grid, steps_to

STORED = Path(__file__).parents[3] / "notebooks/results/digits-steps.json"


def test_a_low_target_is_reached_before_a_high_one():
    low, high = (steps_to(goal, 128, 0.16, seed=0) for goal in (0.3, 0.8))
    assert 1 <= low < high


def test_a_target_that_is_out_of_reach_gives_none():
    assert steps_to(0.99, 4, 0.02, seed=0, limit=2) is None


def test_the_seed_draws_the_rows():
    found = {steps_to(0.7, 8, 0.08, seed) for seed in range(4)}
    assert len(found) > 1


def test_the_fewest_steps_are_of_the_best_rate_and_the_median_seed():
    runs = [{"batch_size": 8, "lr": lr, "steps": steps}
            for lr, seeds in ((0.1, (5, 9, 7)), (0.2, (3, 8, None)), (0.4, (1, None, None)))
            for steps in seeds]
    assert fewest(runs) == {8: (7, 0.1)}
    assert fewest(runs[6:]) == {8: (inf, 0.4)}


def test_the_grid_has_a_run_for_each_size_rate_and_seed():
    found = grid((8, 16), (0.1,), (0, 1), target=0.99, limit=1)
    assert [(run["batch_size"], run["lr"], run["seed"]) for run in found["runs"]] == [
        (8, 0.1, 0), (8, 0.1, 1), (16, 0.1, 0), (16, 0.1, 1)]
    assert {run["steps"] for run in found["runs"]} == {None}
    assert found["settings"] == {"target": 0.99, "limit": 1}


def test_the_command_writes_what_the_grid_returns(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "grid", lambda: {"settings": {}, "runs": []})
    target.main(["--out", str(tmp_path / "file.json")])
    assert json.loads((tmp_path / "file.json").read_text()) == {"settings": {}, "runs": []}


def test_what_is_stored_is_the_whole_grid_and_a_run_of_it_comes_out_again():
    stored = json.loads(STORED.read_text())
    runs = {(run["batch_size"], run["lr"], run["seed"]): run["steps"]
            for run in stored["runs"]}
    assert set(runs) == {(b, lr, seed) for b in SIZES for lr in RATES for seed in range(3)}
    goal = stored["settings"]["target"]
    assert steps_to(goal, 64, 0.32, seed=1) == runs[64, 0.32, 1] is not None


@pytest.mark.parametrize("bad, message", [
    ({"target": 0}, "target must be an accuracy above 0, to 1, got 0"),
    ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
    ({"limit": 1.5}, "limit must be a whole number >= 1, got 1.5")])
def test_what_cannot_be_asked_is_refused(bad, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        steps_to(**{"target": 0.9, "batch_size": 8, "lr": 0.1, "seed": 0} | bad)
