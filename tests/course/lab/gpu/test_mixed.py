"""Mixed precision: bfloat16 here, float16 where tests/test_gpu.py finds a GPU."""

import pytest
import torch

from course.lab.gpu import mixed
from tests.support import on_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("check", [on_device.losses, on_device.skip, on_device.clip])
def test_mixed_precision_on_the_cpu(check):
    check(CPU)


def test_steps_that_the_scaler_leaves_out_are_counted(monkeypatch):
    class Scaler:
        scales = iter([8, 8, 4, 4, 2, 2])

        def get_scale(self):
            return next(self.scales)
    monkeypatch.setattr(mixed, "make_scaler", lambda dtype, device: Scaler())
    monkeypatch.setattr(mixed, "train_step", lambda *_: torch.tensor(6.0))
    found = mixed.losses(CPU, steps=5, rows=3)
    assert (found["skipped"], found["scale"]) == (2, 2)
    assert found["losses"] == [2.0] * 5


def test_a_step_with_a_finite_gradient_would_have_moved(monkeypatch):
    monkeypatch.setattr("builtins.float", lambda text: 1.0)  # no inf
    assert mixed.skip(CPU) == {"moved": True, "scale": 1.0}
