"""manual_dp: train one network on many devices, by hand.

The course teaches the files here, the files in ranks/, and models/. Around them are
tools: checks.py (which arguments are refused), ranks/launch/ (how ranks start and end),
ranks/live/ (ranks that keep running from cell to cell), audit/ (is this training
correct?), files/ (what is read from disk and written to it).
The names below are in the order to read them.
"""

from manual_dp.devices import try_devices
from manual_dp.lenet import init_params, lenet, loss
from manual_dp.params import check_replicas, get_params, largest_difference, pack_grads
from manual_dp.allreduce import (
    allgather,
    allreduce,
    halving_doubling,
    reduce_scatter,
    ring_allreduce,
    tree_allreduce,
)
from manual_dp.split import scatter, split_batch
from manual_dp.data import load_data
from manual_dp.train import evaluate_accuracy, sgd, train, train_batch

__all__ = [
    "try_devices",
    "init_params",
    "lenet",
    "loss",
    "get_params",
    "pack_grads",
    "check_replicas",
    "largest_difference",
    "allreduce",
    "ring_allreduce",
    "tree_allreduce",
    "halving_doubling",
    "reduce_scatter",
    "allgather",
    "scatter",
    "split_batch",
    "load_data",
    "sgd",
    "train_batch",
    "train",
    "evaluate_accuracy",
]
