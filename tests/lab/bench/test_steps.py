"""A plain step is the step that `train_batch` takes."""

import pytest
import torch

from manual_dp.lab.bench import steps as page


@pytest.mark.parametrize("world_size", [2, 8])
def test_a_plain_step_is_the_step_of_train_batch(tiny, monkeypatch, world_size):
    kept, replicas = [], page.replicas
    monkeypatch.setattr(page, "replicas",
                        lambda devices: kept.append(replicas(devices)) or kept[-1])
    tiny(f"step-{world_size}")
    many, (plain,) = kept
    assert len(many) == world_size
    for params in many:
        for p, q, start in zip(params, plain, replicas(["cpu"])[0]):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)
            assert not torch.equal(p, start)
