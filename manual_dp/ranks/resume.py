"""Going on: a killed run ends with the bits of one that never stopped.

    snapshot      what a run needs to go on: weights, optimizer, place, random states
    resume        put a snapshot back
    load_model    give a model its weights, whichever of the two was wrapped
    strip_prefix  drop what a wrapper puts in front of every name

A snapshot is a dict of plain things, for `save` of checkpoint.py. With a process group
every rank must call `snapshot`: it gathers a random state from each.
"""

import copy

import torch

from manual_dp.ranks.checkpoint import CheckpointError, gather, here

# where torch's schedules keep what they found, or begin with
FIRST = {"lr": "initial_lr", "momentum": "max_momentum", "betas": "max_momentum"}


def snapshot(model, optimizer, epoch, step, generator=None):
    """Return a copy of what a run needs to go on, as a dict for `save`.

    epoch, step: where the run is; minibatch `step` of `epoch` comes next.
    Random states, of torch and of `generator`, are a list by rank, since dropout draws
    other numbers on each; numpy's and Python's are not kept.
    What else the run has is added with `snapshot(...) | {"scheduler": ...}`.
    """
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    random = {"torch": torch.get_rng_state(), "cuda": cuda,
              "generator": generator and generator.get_state()}
    return {"model": strip_prefix(copy.deepcopy(model.state_dict())),
            "optimizer": copy.deepcopy(optimizer.state_dict()),
            "epoch": epoch, "step": step, "random": gather(random)}


def resume(snapshot, model, optimizer, generator=None):
    """Put a snapshot back, in place, and return (epoch, step).

    To go on inside an epoch, skip what is done: `itertools.islice(loader, step, None)`
    after a DistributedSampler's `set_epoch(epoch)`. Give a DataLoader a generator of
    its own, or each `for` over it draws from torch's. An order drawn from `generator`
    comes again only if the snapshot was taken before the draw, at step 0.
    Raises CheckpointError or ValueError, with nothing changed, if model, groups or
    options of the optimizer, number of ranks or use of `generator` are others. An
    option is compared as it was before a schedule of torch's changed it; a schedule of
    your own puts the first rate into its group as "initial_lr", as torch's do.
    """
    _check_snapshot(snapshot, optimizer, generator)
    state, random = _fit(model, snapshot["model"]), snapshot["random"][here()[0]]
    # copied, or the optimizer would go on in the snapshot's own tensors
    optimizer.load_state_dict(copy.deepcopy(snapshot["optimizer"]))
    model.load_state_dict(state)
    torch.set_rng_state(random["torch"].cpu())  # `load` may have put it on a GPU
    for device, state in zip(range(torch.cuda.device_count()), random["cuda"]):
        torch.cuda.set_rng_state(state.cpu(), device)
    if generator is not None:
        generator.set_state(random["generator"].cpu())
    return snapshot["epoch"], snapshot["step"]


def load_model(model, state_dict):
    """Copy `state_dict` into `model`, whichever of the two is wrapped.

    DataParallel and DistributedDataParallel put "module." in front of every name.
    Raises CheckpointError, with nothing changed, naming the first entry that is
    missing, unexpected, or of another shape or dtype.
    """
    model.load_state_dict(_fit(model, state_dict))


def strip_prefix(state_dict, prefix="module."):
    """Return the dict without `prefix`, as often as all names begin with it."""
    while prefix and state_dict and all(n.startswith(prefix) for n in state_dict):
        state_dict = {n.removeprefix(prefix): v for n, v in state_dict.items()}
    return dict(state_dict)


def _fit(model, state_dict):
    """Return the state under the model's names, checked."""
    own, state = model.state_dict(), strip_prefix(state_dict)
    _check_entries(strip_prefix(own), state)
    return {name: state[bare] for name, bare in zip(own, strip_prefix(own))}


def _check_entries(own, state):
    for name in [*own, *state]:
        if _kind(own, name) != _kind(state, name):
            raise CheckpointError(f"{name} is {_kind(state, name)} in the checkpoint, "
                                  f"{_kind(own, name)} in the model")


def _kind(entries, name):
    value = entries.get(name)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return type(value).__name__ if name in entries else "missing"


def _check_snapshot(snapshot, optimizer, generator):
    for name in ("model", "optimizer", "epoch", "step", "random"):
        if name not in snapshot:
            raise CheckpointError(f"not a snapshot: it has no {name!r}")
    rank, world_size = here()
    states = snapshot["random"]
    if len(states) != world_size:
        raise CheckpointError(f"the snapshot is of {len(states)} ranks, this "
                              f"run has {world_size}; load_model takes its weights")
    if (states[rank]["generator"] is None) != (generator is None):
        raise CheckpointError("snapshot and resume must both have a generator, or none")
    groups = snapshot["optimizer"]["param_groups"]
    if any(optimizer.defaults.keys() - group for group in groups):
        raise CheckpointError(f"the snapshot is not of {type(optimizer).__name__}")
    for i, (theirs, ours) in enumerate(zip(groups, optimizer.param_groups)):
        for name in optimizer.defaults:
            was, now = (group.get(FIRST.get(name), group[name])
                        for group in (theirs, ours))
            if was != now:
                raise CheckpointError(
                    f"group {i}: {name} is {was} in the snapshot, {now} here; make the "
                    "optimizer with the snapshot's, and set another after resume")
