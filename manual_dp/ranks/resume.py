"""Resume a killed run, so that it ends with the bits of one that never stopped.

    snapshot      what a run needs to go on: weights, optimizer, place, random states
    resume        put a snapshot back
    load_model    give a model its weights; either may come from a wrapped model
    strip_prefix  drop the "module." that a wrapper puts in front of every name

A snapshot is a dict of plain things, for `save` of checkpoint.py. With a process group
every rank must call `snapshot`, which gathers a random state from each, and `resume`.
"""

import copy

import torch

from manual_dp.ranks.checkpoint import (
    CheckpointError,
    differences,
    gather_values,
    here,
    together,
)

# where torch's schedules keep the first value of an option that they change
FIRST = {"lr": "initial_lr", "momentum": "max_momentum", "betas": "max_momentum"}


def snapshot(model, optimizer, epoch, step, generator=None):
    """Return a copy of what a run needs to go on, as a dict for `save`.

    epoch, step: where the run is; minibatch `step` of `epoch` comes next.
    It holds no gradients: take it after a step, not between micro-batches.
    It holds the random states of torch and of `generator` for each rank, since dropout
    draws other numbers on each; it does not hold numpy's and Python's.
    Add what else the run has with `snapshot(...) | {"scheduler": ...}`.
    Raises CheckpointError on every rank if arguments differ between ranks.
    """
    made_of = _made_of(model, optimizer, generator)
    # as text: an option may be a tensor on a GPU, which other ranks cannot read
    same = {name: str(value) for name, value in made_of.items()}
    same["the place"] = f"epoch {epoch}, step {step}"
    together("take a snapshot", lambda: (None, same))
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    random = {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "generator": None if generator is None else generator.get_state(),
    }
    return copy.deepcopy(
        {
            "model": strip_prefix(model.state_dict()),
            "optimizer": optimizer.state_dict(),
            "made_of": made_of,
            "epoch": epoch,
            "step": step,
            "random": gather_values(random),
        }
    )


def resume(snapshot, model, optimizer, generator=None):
    """Put a snapshot back, in place, and return (epoch, step).

    To go on inside an epoch, skip the minibatches that are done: call a
    DistributedSampler's `set_epoch(epoch)`, then use
    `itertools.islice(loader, step, None)`. Give a DataLoader a generator of its own, or
    each `for` over it draws from torch's. An order drawn from `generator` comes again
    only if the snapshot was taken before the draw, at step 0.
    Raises CheckpointError or ValueError on every rank, with nothing changed, if on one
    of them the run differs from the snapshot's in: the model, the optimizer's class,
    parameters or options, the number of ranks, the use of `generator`. It compares
    parameters by their names in the model, and options as they were before a schedule
    of torch's changed them. A schedule of your own must keep the first rate in its
    group as "initial_lr", as torch's do.
    """

    def check():
        state = _check(snapshot, model, optimizer, generator)
        place = f"epoch {snapshot['epoch']}, step {snapshot['step']}"
        return state, {"the place": place}

    state = together("resume", check)
    rank, _ = here()
    random = snapshot["random"][rank]
    # a copy, or the optimizer's next steps would change the snapshot's tensors
    optimizer.load_state_dict(copy.deepcopy(snapshot["optimizer"]))
    model.load_state_dict(state)
    torch.set_rng_state(random["torch"].cpu())  # `load` may have put it on a GPU
    for device, state in zip(range(torch.cuda.device_count()), random["cuda"]):
        torch.cuda.set_rng_state(state.cpu(), device)
    if generator is not None:
        generator.set_state(random["generator"].cpu())
    return snapshot["epoch"], snapshot["step"]


def load_model(model, state_dict):
    """Copy `state_dict` into `model`; either may come from a wrapped model.

    DataParallel and DistributedDataParallel put "module." in front of every name.
    Raises CheckpointError, with nothing changed, naming the first entry that is
    missing, unexpected, or of another shape or dtype.
    """
    model.load_state_dict(_fit(model, state_dict))


def strip_prefix(state_dict, prefix="module."):
    """Take `prefix` off the names, again and again while all of them begin with it."""
    while prefix and state_dict and all(n.startswith(prefix) for n in state_dict):
        state_dict = {n.removeprefix(prefix): v for n, v in state_dict.items()}
    return dict(state_dict)


def _fit(model, state_dict):
    """Return the state under the model's own names, if every entry fits the model."""
    own, state = model.state_dict(), strip_prefix(state_dict)
    for name, mine, theirs in differences(_kinds(strip_prefix(own)), _kinds(state)):
        raise CheckpointError(
            f"{name} is {theirs} in the checkpoint, {mine} in the model"
        )
    return {name: state[bare] for name, bare in zip(own, strip_prefix(own))}


def _kinds(entries):
    kinds = {}
    for name, value in entries.items():
        kinds[name] = type(value).__name__
        if isinstance(value, torch.Tensor):
            kinds[name] = f"{value.dtype} {tuple(value.shape)}"
    return kinds


def _made_of(model, optimizer, generator):
    """Return, by name, what must be the same in a run that resumes.

    Options of a group are those that it had before a schedule changed them. An
    optimizer's own state numbers its parameters, and does not name them: so we do.
    """
    names = {
        p: name for name, p in strip_prefix(dict(model.named_parameters())).items()
    }
    made_of = {
        "the optimizer's class": type(optimizer).__name__,
        "the generator's class": type(generator).__name__,
    }
    for i, group in enumerate(optimizer.param_groups):
        for j, p in enumerate(group["params"]):
            made_of[f"group {i}: parameter {j}"] = names.get(
                p, f"one of shape {tuple(p.shape)}"
            )
        for name in optimizer.defaults:
            made_of[f"group {i}: {name}"] = group.get(FIRST.get(name), group[name])
    return made_of


def _check(snapshot, model, optimizer, generator):
    """Return the model's state, if this run agrees with the snapshot's."""
    for name in ("model", "optimizer", "made_of", "epoch", "step", "random"):
        if name not in snapshot:
            raise CheckpointError(
                f"not a snapshot, or one of an older manual_dp: it has no {name!r}; "
                "load_model takes weights alone"
            )
    was, now = len(snapshot["random"]), here()[1]
    if was != now:
        raise CheckpointError(
            f"the snapshot is of {was} ranks, this run has {now}; "
            "load_model takes its weights"
        )
    made_of = _made_of(model, optimizer, generator)
    for name, was, now in differences(snapshot["made_of"], made_of):
        raise CheckpointError(
            f"{name} is {was} in the snapshot, {now} here; resume "
            "with the same, and set other options afterwards"
        )
    return _fit(model, snapshot["model"])
