"""How long a schedule is: held against Lightning's own count."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from manual_dp.school.ps8.run import START
from manual_dp.school.ps8.schedule import draw_schedules, judge_schedules
from manual_dp.school.ps8.trainer import load

SCHEDULES = [(10, 8, 4, 3, 2), (101, 10, 2, 4, 3), (3, 5, 4, 2, 7), (64, 8, 2, 1, 1),
             (65, 8, 2, 4, 2), (40, 4, 1, 3, 5)]


class Counted(Exception):
    """Raised where the count is known, before anything is trained."""


def counted(rows, batch_size, world_size, accumulate, epochs):
    """Return what Lightning estimates, on one of so many ranks."""
    lightning, found = load(), []

    class Look(lightning.Callback):
        def on_fit_start(self, trainer, module):
            found.append(trainer.estimated_stepping_batches)
            raise Counted

    class Line(lightning.LightningModule):
        def training_step(self, batch, batch_idx):
            raise AssertionError("nothing is to be trained")

        def configure_optimizers(self):
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)

    data = TensorDataset(torch.zeros(rows, 1))
    loader = DataLoader(data, batch_size, sampler=DistributedSampler(data, world_size, 0))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, logger=False,
        accumulate_grad_batches=accumulate, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Look()])
    with pytest.raises(Counted):
        trainer.fit(Line(), loader)
    return found[0]


@pytest.mark.filterwarnings("ignore")
def test_lightning_counts_the_steps_as_the_judge_does():
    case = {"schedules": SCHEDULES}
    assert list(judge_schedules(case, [counted(*one) for one in SCHEDULES])) == [None]
    more = [counted(*one) + 1 for one in SCHEDULES]
    assert list(judge_schedules(case, more)) != [None]


def test_the_drawn_schedules_tell_the_mistakes_apart():
    for case in draw_schedules(random.Random(0)):
        assert all(len(schedule) == 5 for schedule in case["schedules"])
        assert any(rows % (batch * ranks) for rows, batch, ranks, _, _ in
                   case["schedules"])


def test_lightning_is_not_imported_before_it_is_used():
    import subprocess
    import sys
    said = subprocess.run(
        [sys.executable, "-c", "import sys, manual_dp.school.ps8.run; "
         "print('lightning' in sys.modules, 'torchvision' in sys.modules)"],
        capture_output=True, text=True, timeout=300, check=True).stdout
    assert said.split() == ["False", "False"]
    assert START["L"].LightningModule is load().LightningModule
