"""Lightning around the same LeNet and the same data: the loop is the library's.

    python -m manual_dp.models.lightning fit -c notebooks/config/lightning.yaml
    python -m manual_dp.models.lightning test --help

    LitLeNet   the network, its loss, what is logged, its optimizer
    Images     the data, dealt to the ranks in minibatches of all ranks together

A minibatch belongs to all ranks, an equal part to each: two processes train what one
trains. With per_rank=True each rank takes `batch_size` rows: another training.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from manual_dp.data import ensure_torchvision, load_data
from manual_dp.lenet import init_params
from manual_dp.models.lenet import LeNet

ensure_torchvision()  # before lightning, which imports it where it can
import lightning as L
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torchmetrics.classification import MulticlassAccuracy


class LitLeNet(L.LightningModule):
    """Train LeNet by SGD. seed: draws the weights, the same on every rank."""

    def __init__(self, lr=0.2, seed=0):
        super().__init__()
        _check(lr=(lr, (int, float), 0), seed=(seed, int, 0))
        self.save_hyperparameters()
        self.net = LeNet(init_params("he", torch.Generator().manual_seed(seed)))
        self.metrics = nn.ModuleDict({name: MulticlassAccuracy(10, average="micro")
                                      for name in ("val_acc", "test_acc")})

    def forward(self, X):
        """Map images (n, 1, 28, 28) to scores (n, 10)."""
        return self.net(X)

    def training_step(self, batch, index):
        """Return the mean loss of this rank's rows; log that of all ranks' rows."""
        X, y = batch
        loss = F.cross_entropy(self(X), y)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index, name="val_acc"):
        """Count right answers; the metric adds up over ranks, and has their share."""
        X, y = batch
        self.metrics[name](self(X), y)
        self.log(name, self.metrics[name])

    def test_step(self, batch, index):
        """Count, as in validation."""
        self.validation_step(batch, index, "test_acc")

    def predict_step(self, batch, index):
        """Return the most likely class of each image."""
        return self(batch[0]).argmax(1)

    def configure_optimizers(self):
        """Make the optimizer; an `optimizer:` section of a file replaces it."""
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


class Images(L.LightningDataModule):
    """Deal a data set's images to the ranks of the trainer.

    data, root: as in `load_data`; every sixth training image is for validation.
    batch_size: rows of a minibatch, over all ranks unless per_rank. seed: of the order,
    the same on all ranks. Workers draw from a seed that each rank has for itself.
    """

    def __init__(self, data="digits", batch_size=48, per_rank=False, workers=0,
                 seed=0, root=None):
        super().__init__()
        _check(batch_size=(batch_size, int, 1), workers=(workers, int, 0),
               seed=(seed, int, 0))
        self.save_hyperparameters()

    def prepare_data(self):
        """Download: Lightning calls this in one process of each machine."""
        load_data(self.hparams.data, root=self.hparams.root)

    def setup(self, stage):
        """Read the files: Lightning calls this on every rank."""
        train, test = load_data(self.hparams.data, root=self.hparams.root)
        held = torch.arange(len(train.X)) % 6 == 5
        self.train = TensorDataset(train.X[~held], train.y[~held])
        self.val = TensorDataset(train.X[held], train.y[held])
        self.test = TensorDataset(test.X, test.y)

    def train_dataloader(self):
        """Deal the rows in an order that does not depend on the number of ranks."""
        return self._loader(self.train, DistributedSampler, shuffle=True)

    def val_dataloader(self):
        """Deal every row once: shards may be unequal, none is repeated."""
        return self._loader(self.val, UnrepeatedDistributedSampler, shuffle=False)

    def test_dataloader(self):
        """Deal every row once, as in validation."""
        return self._loader(self.test, UnrepeatedDistributedSampler, shuffle=False)

    predict_dataloader = test_dataloader

    def rows_of_a_rank(self, world_size):
        """Return how many rows of a minibatch each rank takes; ValueError if uneven."""
        rows, per_rank = self.hparams.batch_size, self.hparams.per_rank
        if rows % world_size and not per_rank:
            raise ValueError(f"batch_size {rows} is not divisible by {world_size}")
        return rows if per_rank else rows // world_size

    def _loader(self, data, sampler, shuffle):
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        seed = self.hparams.seed
        return DataLoader(
            data, batch_size=self.rows_of_a_rank(world_size), drop_last=shuffle,
            sampler=sampler(data, world_size, rank, shuffle, seed, drop_last=shuffle),
            num_workers=self.hparams.workers,
            generator=torch.Generator().manual_seed(seed * 1000 + rank))


def _check(**values):
    for name, (value, kind, least) in values.items():
        number = isinstance(value, kind) and not isinstance(value, bool)
        if not (number and least <= value < float("inf")):
            raise ValueError(f"{name} must be a number >= {least}, got {value!r}")


if __name__ == "__main__":
    from manual_dp.models.command import main
    main()
