"""How answers that need Lightning are run: its trainer, in one process or on ranks.

    L                stands for lightning.pytorch, and imports it when it is used
    load             import it: seconds, in every process
    Loaded           the same, where it is unpickled: before a class that needs it
    lit_lenet        train with a learner's module
    schedule_steps   count the steps of a schedule
"""

import contextlib
import logging
import os
import warnings
from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from manual_dp.files.vision import ensure_torchvision
from manual_dp.lenet import init_params
from manual_dp.school.tools.images import images
from manual_dp.school.tools.ranks import attempt

SECONDS = 100  # that all ranks have: each of them imports Lightning


def load():
    """Import lightning.pytorch, without its warnings, and return it."""
    with _quiet():
        ensure_torchvision()
        import lightning.pytorch
    return lightning.pytorch


class Lightning:
    """Stand for lightning.pytorch, which takes seconds to import."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(load(), name)


L = Lightning()


class Loaded:
    """Import Lightning, also in the process to which this is sent."""

    def __init__(self):
        load()

    def __reduce__(self):
        return Loaded, ()


def lit_lenet(case, LitLeNet):
    """Train with Lightning, in this process or on ranks; return what has come of it."""
    if case["world_size"] == 1:
        return {"ranks": [_fit(Loaded(), case, LitLeNet)]}
    # the class comes last: it cannot be unpickled before Lightning is there
    return attempt(partial(_fit, Loaded(), case, LitLeNet), case["world_size"], SECONDS)


def schedule_steps(case, schedule_steps):
    """Ask for the steps of all the schedules of a case."""
    return [schedule_steps(*schedule) for schedule in case["schedules"]]


def first_weights(seed):
    """Return LeNet's eight tensors in float64."""
    return init_params("he", torch.Generator().manual_seed(seed), torch.float64)


def in_short(tensors):
    """Return two numbers for each tensor, which tell it from others."""
    return [[p.sum().item(), (p * torch.linspace(1, 2, p.numel(), dtype=p.dtype)
                              .view_as(p)).sum().item()]
            for p in (p.detach() for p in tensors)]


def _fit(_, case, LitLeNet):
    """Train on this rank's part of each minibatch."""
    k = case["world_size"]
    rank = dist.get_rank() if k > 1 else 0
    params = first_weights(case["seed"])
    module = LitLeNet(params, case["lr"])
    loaders = [DataLoader(TensorDataset(*(part[rank::k] for part in
                                          images(case["seed"], rows))),
                          batch_size=case["batch_size"] // k)
               for rows in (case["rows"], case["test_rows"])]
    with _quiet():
        trainer = _trainer(case, k)
        trainer.fit(module, *loaders)
    found = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {"weights": in_short(module.parameters()), "given": in_short(params),
            "steps": trainer.global_step,
            "train_loss": found.get("train_loss"), "val_acc": found.get("val_acc")}


def _trainer(case, k):
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy
    on_ranks = dict(strategy=DDPStrategy(process_group_backend="gloo"),
                    plugins=[LightningEnvironment()]) if k > 1 else {}
    return L.Trainer(
        accelerator="cpu", devices=k, max_epochs=case["epochs"], logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
        use_distributed_sampler=False, **on_ranks)


@contextlib.contextmanager
def _quiet():
    """Keep to the block what Lightning says, and what it puts into the environment."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), patch.dict(os.environ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
