"""Ten runs, each with a rank killed at a random step (`make audits`: it takes minutes).

One such kill is in test_agents.py, in every `make test-all`.
"""

import json

import pytest
import torch

from manual_dp.lab.hosts import kills

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_ten_of_ten_runs_end_with_the_weights_of_a_run_that_nobody_disturbed(
        pytestconfig):
    if not pytestconfig.getoption("--all-programs"):
        pytest.skip("it takes minutes: --all-programs")
    runs = list(kills.kills(10, seed=1))
    assert len(runs) == 10
    assert len({run["killed_after_step"] for run in runs}) > 2
    for run in runs:
        assert 0 < run["killed_after_step"] < kills.STEPS, run
        assert run["finished"] and run["equal"] and run["same_loss"], run


def test_weights_that_differ_in_one_bit_are_not_the_same():
    one = {"a": torch.ones(3, dtype=torch.float64)}
    other = {"a": torch.nextafter(one["a"], torch.tensor(2.0, dtype=torch.float64))}
    assert kills.same_weights(one, {"a": one["a"].clone()})
    assert not kills.same_weights(one, other)
    assert not kills.same_weights(one, {})


@pytest.mark.parametrize("equal, status", [([True, True], 0), ([True, False], 1)])
def test_the_file_has_every_run_and_one_that_differs_is_a_failure(
        tmp_path, monkeypatch, equal, status):
    runs = [{"finished": True, "equal": value} for value in equal]
    monkeypatch.setattr(kills, "kills", lambda times, seed: iter(runs[:times]))
    path = tmp_path / "kills.json"
    assert kills.main(["--times", "2", "--out", str(path)]) == status
    assert json.loads(path.read_text()) == {"seed": 0, "runs": runs}
