"""Lightning under the audit: it hands its step over as a closure.

Importing lightning takes eight seconds a rank; so both trainings share one start.
"""

import contextlib
import io
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from manual_dp.audit import check_ranks, watch
from manual_dp.data import ensure_torchvision
from manual_dp.ranks import run_ranks


def trained():
    """Train two epochs with the Trainer's sampler, then without one; return what is found."""
    rank = str(dist.get_rank())
    os.environ.update(
        RANK=rank,
        LOCAL_RANK=rank,
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="localhost",
        MASTER_PORT="1",
        TORCHELASTIC_RUN_ID="run_ranks",
    )  # what torchrun would have told
    ensure_torchvision()
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Listen(lightning.Callback):
        def on_train_start(self, trainer, module):
            self.seen = watch(trainer.strategy.model, trainer.optimizers[0])

    rows = torch.rand(32, 6, generator=torch.Generator().manual_seed(1))
    data, found = TensorDataset(rows, rows[:, :3].argmax(1)), []
    for sampler in (True, False):
        net, listen = Net(), Listen()
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[listen],
            use_distributed_sampler=sampler,
        )
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.fit(net, DataLoader(data, 4, shuffle=True))
        report = listen.seen.report
        found.append(
            (
                report and [one.code for one in report.findings],
                check_ranks(net, optimizer=trainer.optimizers[0]),
            )
        )
    return found


def test_watch_has_nothing_against_lightning_and_misses_its_sampler():
    (right, wrong), other = run_ranks(trained, 2, timeout=400)  # 30 s where many work
    assert right == ([], []) and other == [(None, []), (None, [])]
    assert wrong == (["no-sampler"], [])
