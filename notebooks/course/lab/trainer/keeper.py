"""A run's checkpoint: when it is written, whose it is, how a run goes on from it.

    Keeper   keep: rank 0 writes every so many steps; go_on: all ranks put it back
    settle   let torch's DDP choose its buckets before the first step

A host may have a disk of its own. So each rank looks for the file, and the newest that
any of them finds is sent to all. If no disk is shared, and the host that wrote the file
is lost, the checkpoint is lost with it.
"""

import copy
import io
from pathlib import Path

import torch
import torch.distributed as dist

from course.lab.trainer.agree import agree
from manual_dp.files.sealed import unseal
from manual_dp.ranks import CheckpointError, resume, save, snapshot
from manual_dp.ranks.checkpoint import MAGIC, gather

FREE = ("world_size", "data_dir", "form", "epochs")  # another start may have others


class Keeper:
    """Keep a run's checkpoint in the file `path`.

    every: steps from one to the next; None: an epoch's. job: the name of the job; a
    start of the same job goes on by itself. again: go on from another job's, too.
    """

    def __init__(self, path, every=None, job=None, again=False):
        self.path, self.every, self.job, self.again = Path(path), every, job, again

    def due(self, steps, steps_an_epoch):
        """Say whether a checkpoint is written after so many steps of the whole run."""
        return steps % (self.every or steps_an_epoch) == 0

    def keep(self, plan, model, optimizer, scaler, place, total, history):
        """Write all that the run needs to go on at `place`, (epoch, step).

        total: this rank's sum of losses in the epoch so far, a number.
        """
        state = snapshot(model, optimizer, *place) | {
            "scaler": scaler.state_dict(), "history": copy.deepcopy(history),
            "totals": gather(total), "plan": _lasting(plan), "job": self.job}
        save(self.path, state)

    def go_on(self, plan, model, optimizer, scaler):
        """Put the newest checkpoint back; return (epoch, step), total and history.

        Returns None if no rank finds a file. Raises CheckpointError on every rank if it
        is damaged, another job's, or of other settings.
        """
        data = agree(self._read)
        places = gather(data and _place(data))
        found = [place for place in places if place]
        if not found:
            return None
        owner = places.index(max(found))
        box = [data]
        dist.broadcast_object_list(box, owner)
        state = _unpack(box[0])
        agree(lambda: self._check(state, plan))
        ranks, old = dist.get_world_size(), len(state["random"])
        # another number of ranks: each takes over the random state of an old one
        state["random"] = [state["random"][rank % old] for rank in range(ranks)]
        place = resume(state, model, optimizer)
        scaler.load_state_dict(state["scaler"])
        mine = state["totals"][dist.get_rank()::ranks]
        return place, sum(mine), state["history"]

    def _read(self):
        try:
            return unseal(self.path, MAGIC)[0]
        except FileNotFoundError:
            return None

    def _check(self, state, plan):
        if "plan" not in state or "job" not in state:
            raise CheckpointError(f"{self.path} is a checkpoint, but not of this "
                                  "command")
        if not self.again and (self.job is None or state["job"] != self.job):
            raise CheckpointError(f"{self.path} holds a run of another job: add "
                                  "--resume to go on with it, or name another file")
        for name, value in _lasting(plan).items():
            old = state["plan"].get(name)
            if old != value:
                raise CheckpointError(f"{self.path} is of a run with {name} {old}, "
                                      f"this one has {value}")


def settle(model, parts):
    """Let torch's DDP choose its buckets now; weights and buffers stay as they are.

    In the first backward it notes the order in which gradients come, then packs anew.
    Another packing adds in another order, and the last bits differ: without this, the
    first step after a stop would not be the step of a run that never stopped.
    """
    before = copy.deepcopy(model.state_dict())
    X, _ = parts[0]
    for _ in range(2):  # the second forward packs
        model(X).sum().backward()
    model.load_state_dict(before)
    model.zero_grad()


def _lasting(plan):
    return {name: value for name, value in plan.items() if name not in FREE}


def _unpack(data):
    # not where it was: a GPU that is not here, or rank 0's, for all ranks
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _place(data):
    state = _unpack(data)
    return state["epoch"], state["step"]
