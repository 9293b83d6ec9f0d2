"""What Lightning does, beside what a loop by hand does.

trainer         a Trainer that is quiet: two processes, copied from this one
far             the largest difference of a weight of two networks
apart           how far the weights of the ranks are from each other
tell, told      what each rank has to say, in a file, since forks return little
judged          how far a module ends from a loop, and what was noticed on the way
Report          a callback: what each rank has to tell at the end of training
drawn           what the workers of each rank's loader draw
alike           how many draws are alike in two runs, and in two ranks
in_a_terminal   the program of the lesson's first screen, as a terminal starts it
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from programs import with_lightning
from programs.with_lightning import QUIET, L, Net

LESSONS = Path(__file__).parents[1]


def trainer(callbacks=(), **settings):
    """Return a Trainer for CPUs: two processes and one epoch, if you do not say more."""
    defaults = {**QUIET, "accelerator": "cpu", "devices": 2, "max_epochs": 1}
    defaults["num_sanity_val_steps"] = 0
    # no script that could be started again
    if settings.get("devices", 2) != 1:
        defaults["strategy"] = "ddp_notebook"
    keeps = L.pytorch.callbacks.ModelCheckpoint
    defaults["enable_checkpointing"] = any(
        isinstance(c, keeps) for c in callbacks
    )
    return L.Trainer(callbacks=[*callbacks], **{**defaults, **settings})


def far(one, other):
    """Return the largest difference of a weight of two networks."""
    pairs = zip(one.parameters(), other.parameters())
    return max((p - q).abs().max().item() for p, q in pairs)


def apart(module):
    """Return how far this rank's weights are from those of another, at most."""
    own = torch.cat([p.detach().flatten() for p in module.parameters()])
    return (module.all_gather(own) - own).abs().max().item()


def tell(module, **words):
    """Write down what this rank has to say."""
    Path(f"rank{module.global_rank}.json").write_text(json.dumps(words))


def told():
    """Return what each rank has said, once."""
    paths = sorted(Path().glob("rank*.json"))
    words = [json.loads(path.read_text()) for path in paths]
    for path in paths:
        path.unlink()
    return words


class _Hear(L.Callback):
    """Note each step's rate, and whether the step returned a loss."""

    def __init__(self):
        self.rates, self.losses = [], 0

    def on_train_batch_start(self, trainer, module, batch, index):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.losses += bool(outputs)  # empty if training_step returned None


def judged(module, loop, loader):
    """Fit the module in one process; return how far it ends from `loop`, and rates."""
    net, hear = module(), _Hear()
    try:
        trainer(devices=1, callbacks=[hear]).fit(net, loader)
    except NotImplementedError:
        return "not written yet"
    first, last = hear.rates[0], hear.rates[-1]
    said = (
        f"{far(net, loop):8.3g} from the loop, rate {first:.4f} to {last:.4f}"
    )
    return said + ("" if hear.losses else ": training_step returned None")


class Report(L.Callback):
    """Tell, at the end: epochs, the rate, how far weights are apart, expected steps."""

    def on_train_end(self, trainer, module):
        """Tell it."""
        tell(
            module,
            epochs=trainer.current_epoch,
            rate=trainer.optimizers[0].param_groups[0]["lr"],
            apart=apart(module),
            estimated_stepping_batches=trainer.estimated_stepping_batches,
        )


class _Draws(Dataset):
    """Draw a number for each image, as an augmentation does."""

    def __len__(self):
        return 400

    def __getitem__(self, i):
        return torch.rand(1)


class _Echo(Net):
    """Say what the loader has brought."""

    def training_step(self, batch, index):
        tell(self, drawn=batch.flatten().tolist())
        return sum(p.sum() for p in self.parameters())


def drawn(rows, workers):
    """Return the first `rows` draws of rank 0, and those of rank 1."""
    L.seed_everything(0, workers=workers, verbose=False)
    loader = DataLoader(
        _Draws(), rows, num_workers=2, multiprocessing_context="fork"
    )
    trainer(max_steps=1).fit(_Echo(), loader)
    return [words["drawn"] for words in told()]


def alike(rows, workers):
    """Return how many draws are alike in two runs, and in two ranks."""
    first, again = drawn(rows, workers), drawn(rows, workers)
    return [
        f"{sum(a == b for a, b in zip(one, other))} of {rows}"
        for one, other in ((first[0], again[0]), first)
    ]


def in_a_terminal(devices, rows):
    """Start the program in a folder of its own; return its line, weights, advice.

    Two processes that write at once can break each other's lines. So only rank 0
    prints, and advice is found wherever it stands.
    """
    with tempfile.TemporaryDirectory(prefix="manual_dp-") as folder:
        done = subprocess.run(
            [
                sys.executable,
                with_lightning.__file__,
                str(devices),
                str(rows),
            ],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            timeout=600,  # a busy machine
            env={
                **{
                    name: os.environ[name]
                    for name in os.environ
                    if name not in _TOLD
                },
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(
                    [str(LESSONS.parent), str(LESSONS)]
                ),
            },
        )
        net = Net()
        net.load_state_dict(torch.load(Path(folder) / "weights.pt"))
    [line] = re.findall(r"\d+ steps, accuracy [\d.]+", done.stdout)
    advice = sorted(set(re.findall(_ADVICE, done.stderr)))
    return (
        line,
        net,
        "\n\n".join(textwrap.fill(words, 76) for words in advice),
    )


_ADVICE = r"\.py:\d+: (.*? recommended to .*?\.)(?= |\n)"
# An earlier Trainer of this process wrote the others, and the program would believe
# them; the first lets two processes write their lines in pieces.
_TOLD = {
    "PYTHONUNBUFFERED",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
}
