"""Lightning on the ranks of `run_ranks`: told what torchrun would tell, and compared."""

import os

import torch
from torch import nn

from course.lab.quiet import beside, quiet_trainer
from manual_dp.ranks import run_ranks

DEADLINE = 400  # seconds: the import of lightning alone takes 30 where many work


def compared(folder):
    """Train beside steps by hand, rightly and not; return how far, and what is left."""
    from manual_dp.models.lightning import Images, LitLeNet

    class Doubled(LitLeNet):
        def training_step(self, batch, index):
            return 2 * super().training_step(batch, index)

    class Own(LitLeNet):
        def __init__(self, lr):
            super().__init__(lr)
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8),
                                     nn.ReLU(), nn.Linear(8, 10))
    os.chdir(folder)
    found = []
    for kind, settings in ((LitLeNet, {}), (Own, {}), (Doubled, {}),
                           (LitLeNet, {"accumulate_grad_batches": 2})):
        note = beside()
        trainer = quiet_trainer(max_epochs=1, limit_train_batches=4, callbacks=[note],
                                precision="64-true", **settings)
        trainer.fit(kind(lr=0.05), Images())
        found.append((note.apart <= 1e-10, note.steps))
    return found, os.listdir(folder)


def test_a_step_that_is_not_the_step_by_hand_is_seen_and_nothing_is_left(tmp_path):
    for found, left in run_ranks(compared, 2, str(tmp_path), timeout=DEADLINE):
        assert found == [(True, 4), (True, 4), (False, 4), (False, 4)]
        assert left == []
