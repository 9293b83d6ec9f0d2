"""What is said of runs with a rank killed; such a run itself is in test_agents.py."""

import json

import pytest
import torch

from course.lab.hosts import kills


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
