"""Going on: a killed run ends with the bits of one that never stopped.

    snapshot      what a run needs to go on: weights, optimizer, place, random states
    resume        put a snapshot back
    load_model    give a model its weights, whichever of the two was wrapped
    strip_prefix  drop what a wrapper puts in front of every name

A snapshot is a dict of plain things, for `save` of checkpoint.py. With a process group
every rank must call `snapshot`, which gathers a random state from each, and `resume`.
"""

import copy

import torch

from manual_dp.ranks.checkpoint import (
    CheckpointError,
    differences,
    gather,
    here,
    together,
)

# where torch's schedules keep what they found, or begin with
FIRST = {"lr": "initial_lr", "momentum": "max_momentum", "betas": "max_momentum"}


def snapshot(model, optimizer, epoch, step, generator=None):
    """Return a copy of what a run needs to go on, as a dict for `save`.

    epoch, step: where the run is; minibatch `step` of `epoch` comes next.
    Gradients are not in it: take it after a step, not between micro-batches.
    Random states, of torch and of `generator`, are a list by rank, since dropout draws
    other numbers on each; numpy's and Python's are not kept.
    What else the run has is added with `snapshot(...) | {"scheduler": ...}`.
    Raises CheckpointError on every rank if arguments differ between ranks.
    """
    made_of = _made_of(model, optimizer, generator)
    same = {name: str(value) for name, value in made_of.items()}  # no tensor on a GPU
    same["the place"] = f"epoch {epoch}, step {step}"
    together("take a snapshot", lambda: (None, same))
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    random = {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "generator": generator and generator.get_state(),
    }
    return copy.deepcopy(
        {
            "model": strip_prefix(model.state_dict()),
            "optimizer": optimizer.state_dict(),
            "made_of": made_of,
            "epoch": epoch,
            "step": step,
            "random": gather(random),
        }
    )


def resume(snapshot, model, optimizer, generator=None):
    """Put a snapshot back, in place, and return (epoch, step).

    To go on inside an epoch, skip what is done: `itertools.islice(loader, step, None)`
    after a DistributedSampler's `set_epoch(epoch)`. Give a DataLoader a generator of
    its own, or each `for` over it draws from torch's. An order drawn from `generator`
    comes again only if the snapshot was taken before the draw, at step 0.
    Raises CheckpointError or ValueError on every rank, with nothing changed, if on one
    of them model, class, parameters or options of the optimizer, number of ranks or use
    of `generator` are others. Parameters are compared by their names in the model. An
    option is compared as it was before a schedule of torch's changed it; a schedule of
    your own puts the first rate into its group as "initial_lr", as torch's do.
    """
    state = together(
        "resume",
        lambda: (
            _check(snapshot, model, optimizer, generator),
            {"the place": f"epoch {snapshot['epoch']}, step {snapshot['step']}"},
        ),
    )
    random = snapshot["random"][here()[0]]
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
    for name, mine, theirs in differences(_kinds(strip_prefix(own)), _kinds(state)):
        raise CheckpointError(
            f"{name} is {theirs} in the checkpoint, {mine} in the model"
        )
    return {name: state[bare] for name, bare in zip(own, strip_prefix(own))}


def _kinds(entries):
    return {
        name: f"{value.dtype} {tuple(value.shape)}"
        if isinstance(value, torch.Tensor)
        else type(value).__name__
        for name, value in entries.items()
    }


def _made_of(model, optimizer, generator):
    """Return what a run that goes on must be made of, too, by name.

    A group's options are those that it had before a schedule changed them. The state of
    an optimizer knows its parameters by number alone: so their names are here.
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
    """Return the state for the model, if the run is made of what the snapshot's was."""
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
    for name, was, now in differences(
        snapshot["made_of"], _made_of(model, optimizer, generator)
    ):
        raise CheckpointError(
            f"{name} is {was} in the snapshot, {now} here; resume "
            "with the same, and set other options afterwards"
        )
    return _fit(model, snapshot["model"])
