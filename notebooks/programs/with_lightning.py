# ruff: noqa: D101, D102, D103
"""Train and test a small network with Lightning: `python with_lightning.py 2 24`."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from manual_dp.data import ensure_torchvision, load_data

ensure_torchvision()  # lightning needs it beside a torch without GPUs
import lightning as L  # noqa: E402, TID253

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = (
            nn.Flatten(),
            nn.Linear(784, 32),
            nn.Tanh(),
            nn.Linear(32, 10),
        )
        self.net = nn.Sequential(*layers).double()

    def training_step(self, batch, index):
        X, y = batch
        return F.cross_entropy(self.net(X), y)

    def test_step(self, batch, index):
        X, y = batch
        right = self.net(X).argmax(1) == y
        self.log("accuracy", right.double().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def digits():
    parts = load_data(dtype=torch.float64)  # 1,438 and 359 images
    return [TensorDataset(part.X, part.y) for part in parts]


def run(devices, rows):
    (train, test), net = digits(), Net()
    trainer = L.Trainer(
        accelerator="cpu", devices=devices, max_epochs=1, **QUIET
    )
    trainer.fit(net, DataLoader(train, rows, shuffle=True))
    [score] = trainer.test(net, DataLoader(test, rows), verbose=False)
    if trainer.is_global_zero:
        print(
            f"{trainer.global_step} steps, accuracy {score['accuracy']:.4f}"
        )
        torch.save(net.state_dict(), "weights.pt")


if __name__ == "__main__":
    run(*map(int, sys.argv[1:]))
