"""How the tests that learners write in problem set 7 are run: on one program each.

A case brings programs as text, in an order of its own, and none is named. What comes
back is a verdict for each, True or False, in that order. Who is right, and what the
bugs are, only judge.py knows.
"""

import hashlib
import math
import os
import random
import statistics
import tempfile
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from manual_dp.school.ps5.roll import Roll
from manual_dp.school.ps7 import given
from manual_dp.school.ps7.clock import Machine
from manual_dp.school.tools.ranks import COLLECTIVES, attempt

# what the notebook's first cell defines
START = dict(hashlib=hashlib, statistics=statistics, torch=torch, dist=dist,
             draw_params=given.draw_params, draw_batch=given.draw_batch,
             copy_params=given.copy_params, loss=given.loss, spread=given.spread)
# and what else it imports, for trying things out
TRIED = ("check",)

SECONDS = 40  # that all ranks have for all programs


def same_step(case, same_step):
    """Ask about functions that take a step."""
    return _verdicts(case, same_step)


def same_weights(case, same_weights):
    """Ask about functions that train."""
    return _verdicts(case, same_weights)


def same_on_ranks(case, same_on_ranks):
    """Ask on every rank about functions that take a step on ranks."""
    def work():
        def ask(step):
            return _plain(same_on_ranks(step))
        with Roll() as roll:  # a rank that is left waiting for others says None
            return [roll.call(ask, _define(source)) for source in case["programs"]]
    return attempt(work, case["world_size"], SECONDS)


def assert_same(case, assert_same):
    """Change a model on every rank; see if the answer raises, and what it sends."""
    def work():
        found = []
        with Roll() as roll:
            for source in case["programs"]:
                model = _model(case["seed"])
                _define(source)(model, dist.get_rank(), dist.get_world_size())
                before = _bits(model)
                with _counted() as sent:
                    raised = roll.call(partial(_raises, assert_same, model))
                found.append({"raised": raised, "sent": sum(sent),
                              "changed": _bits(model) != before})
        return found
    return attempt(work, case["world_size"], SECONDS)


def cause(case, cause):
    """Ask for the cause of every chart."""
    found = []
    for chart in case["programs"]:
        said = cause(chart["k"], chart["n"],
                     torch.tensor(chart["steps"], dtype=torch.float64))
        found.append(said if isinstance(said, str) else f"a {type(said).__name__}")
    return {"verdicts": found}


def same_after_kill(case, same_after_kill):
    """Ask about trainings that save and resume; files lie in a folder that goes."""
    def ask(Training):
        with tempfile.TemporaryDirectory() as folder:
            return same_after_kill(Training, os.path.join(folder, "checkpoint"))
    return _verdicts(case, ask)


def faster(case, faster):
    """Ask about pairs of programs on machines with a fake clock."""
    verdicts = []
    for machine in map(Machine, case["programs"]):
        verdicts.append(_plain(faster(partial(machine.call, "a"),
                                      partial(machine.call, "b"),
                                      machine.synchronize, machine.clock)))
    return {"verdicts": verdicts}


def _verdicts(case, ask):
    return {"verdicts": [_plain(ask(_define(source))) for source in case["programs"]]}


def _plain(verdict):
    """Return True or False; raise TypeError for what is neither."""
    if isinstance(verdict, torch.Tensor) and verdict.numel() == 1 or (
            type(verdict).__name__ in ("bool", "bool_")):
        return bool(verdict)
    raise TypeError("a verdict is True or False; the answer returned "
                    f"{'nothing' if verdict is None else type(verdict).__name__}")


def _define(source):
    """Return the function or the class that `source` defines, of nobody's name."""
    space = {**vars(given), "torch": torch, "dist": dist, "F": F, "math": math,
             "random": random, "os": os}
    exec(compile(source, "<program>", "exec"), space)
    return space["program"]


def _model(seed):
    """Return a network of 3,500 numbers with gradients, the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 40), nn.BatchNorm1d(40), nn.Tanh(),
                          nn.Linear(40, 40), nn.Linear(40, 5)).double()
    for p in model.parameters():
        p.data.copy_(torch.rand(p.shape, dtype=p.dtype, generator=generator) - 0.5)
        p.grad = torch.rand(p.shape, dtype=p.dtype, generator=generator) - 0.5
    return model


def _bits(model):
    return [None if t is None else t.detach().numpy().tobytes()
            for p in model.parameters() for t in (p, p.grad)]


def _raises(assert_same, model):
    """Return what the answer raises, as text, or nothing."""
    try:
        assert_same(model)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


@contextmanager
def _counted():
    """Yield a list; each call of a collective adds how many numbers it is handed."""
    sent, real = [], {name: getattr(dist, name) for name in COLLECTIVES}

    def call(name, *args, **kwargs):
        sent.append(sum(map(_numbers, [*args, *kwargs.values()])))
        return real[name](*args, **kwargs)
    with patch.multiple(dist, **{name: partial(call, name) for name in real}):
        yield sent


def _numbers(value):
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, (list, tuple)):
        return sum(map(_numbers, value))
    return len(value) // 8 + 1 if isinstance(value, (str, bytes)) else 0
