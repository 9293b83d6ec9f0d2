"""programs/warm_up.py: the rate of each step, and what the stored runs have in them."""

import json
import random
from pathlib import Path

from programs.warm_up import BASES, EPOCHS, WARM_UPS, learning_rate, losses

from course import check

STORED = Path(__file__).parents[2] / "notebooks/results/digits-warm-up.json"


def test_the_rate_is_the_one_that_the_exercise_asks_for(capsys):
    def mine(step, base_lr, world_size, warmup_steps):  # the course's own is refused
        return learning_rate(step, base_lr, world_size, warmup_steps)

    check("train/learning_rate", mine, draws=random.Random(0))
    assert "right" in capsys.readouterr().out


def test_each_epoch_has_a_loss_and_each_step_its_rate():
    asked = []

    def rate(step):
        asked.append(step)
        return 0.0

    found = losses(rate, seed=0, epochs=2)
    assert abs(found[0] - found[1]) < 1e-5  # nothing moves
    assert asked == list(range(24))


def test_the_stored_runs_are_those_of_the_program():
    runs = json.loads(STORED.read_text(encoding="utf-8"))["runs"]
    assert {(run["base_lr"], run["warmup_steps"]) for run in runs} == {
        (base, steps) for base in BASES for steps in WARM_UPS
    }
    assert {len(run["loss"]) for run in runs} == {EPOCHS}
