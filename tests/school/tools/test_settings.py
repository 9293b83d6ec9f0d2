"""Torch's settings: seen when they are left changed, and put back."""

import pytest
import torch

from manual_dp.school.tools.devices import CPU, META, UNKNOWN, homes
from manual_dp.school.tools.run import LEFT, run
from manual_dp.school.tools.settings import changed, kept, settings

CASE = {"examples": 9, "batch_size": 2, "world_size": 1, "lr": 1, "keep": "batch"}


@pytest.mark.parametrize("name, change", [
    ("gradients", lambda: torch.set_grad_enabled(False)),
    ("default dtype", lambda: torch.set_default_dtype(torch.float64)),
    ("anomaly detection", lambda: torch.set_anomaly_enabled(True)),
    ("deterministic", lambda: torch.use_deterministic_algorithms(True))])
def test_a_setting_that_is_left_changed_is_told_and_put_back(name, change):
    before = settings()

    def answer(*args):
        change()
        return {}
    assert list(run("ps3/plan", CASE, [answer])[LEFT]) == [name]
    assert settings() == before and changed(before) == {}


def test_settings_are_put_back_after_an_error():
    before = settings()
    with pytest.raises(KeyError), kept():
        torch.set_grad_enabled(False)
        raise KeyError
    assert settings() == before


def test_on_which_devices_tensors_are_is_told_in_lists():
    def answer(device):
        return [torch.ones(1, device=device)], (torch.ones(0), 3)
    assert homes(answer, META) == [["meta"], ["cpu", "no device"]]
    assert homes(lambda device: torch.ones(2, device=device).tolist(), META) == UNKNOWN
    assert homes(lambda device: torch.ones(1).to(device), CPU) == "cpu"
