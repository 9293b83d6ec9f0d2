"""One line in your own script: are the ranks still alike?

    check_ranks   compare fingerprints over ranks; return the findings on every rank
    RanksDiffer   what it raises where asked to
    NotTogether   what it raises if not all ranks call it

    from manual_dp.audit import check_ranks
    for f in check_ranks(model, (X, y), sampler, optimizer):
        print(f.code, f.says, f.repair)

Call it on all ranks, at any time: after the model is built, once an epoch, or in every
step. Nothing is changed. A fingerprint is 8 bytes for a parameter and for a row; they
are compared over the store that the process group was made with: no collective, gloo
and nccl alike. The rules are the audit's. What only gradients show, such as a sum where
a mean was meant, is for `audit`.
"""

import hashlib
import math
import warnings

import torch
import torch.distributed as dist
from torch import nn

from manual_dp.audit.apart import left_alone, setup_without
from manual_dp.audit.batch import rows_of
from manual_dp.audit.fingerprint import Sketch, bit_hashes
from manual_dp.audit.loaders import told
from manual_dp.audit.meeting import Meeting, NotTogether
from manual_dp.audit.plain import comparable
from manual_dp.audit.records import Drift, Evidence, Run, Step
from manual_dp.audit.rows import same_labels
from manual_dp.audit.rules import judge
from manual_dp.audit.setup import named_parameters, snapshot

__all__ = ["check_ranks", "RanksDiffer", "NotTogether"]

SMALL = 4096  # a tensor of so many numbers is sent to measure the distance

class RanksDiffer(RuntimeError):
    """Say what differs between ranks; findings: a list, the same on every rank."""

    def __init__(self, findings):
        super().__init__(_words(findings))
        self.findings = findings


def check_ranks(model, batch=None, sampler=None, optimizer=None, gradients=False,
                timeout=30, then="return"):
    """Return what differs between ranks and should not, a list; the same on every rank.

    model, optimizer: one, or a list. Compared are weights, buffers, requires_grad,
    train or eval mode, the optimizer's options and state; and NaN is looked for. What
    DDP was told to leave alone is each rank's own.
    batch: this rank's own rows, in tensors that begin with as many: ranks must not
    share rows. sampler: a DistributedSampler; the same batch once more in the same
    epoch shows that set_epoch was not called.
    gradients: compare gradients too; right between backward and zero_grad, and not
    where gradients add up in no_sync.
    timeout: seconds; if by then not all ranks came, NotTogether is raised on all.
    then: "return"; "warn" on rank 0, too; or "raise" RanksDiffer on every rank.
    Raises RuntimeError without a process group, TypeError or ValueError for arguments
    that do not fit.
    """
    models, optimizers = _listed(model), _listed(optimizer)
    _check(models, {"batch": batch, "sampler": sampler}, then)
    meeting = Meeting("check_ranks", timeout)
    params = named_parameters(models)
    setup = setup_without(snapshot(models, optimizers), left_alone(models))
    rows = rows_of(batch) if dist.get_world_size() > 1 else None
    again = _seen_before(sampler, rows)
    tensors = {"after": params, "gradient": {
        name: p.grad for name, p in params.items()} if gradients else {}}
    own = setup, {when: _hashes(named, setup) for when, named in tensors.items()}
    digest = hashlib.sha256(repr(own).encode()).hexdigest()
    # each rank has its own rows; the rest is only sent if it is not the same
    digests, samplers, lists, epochs = zip(*meeting.exchange(
        (digest, _told(sampler), rows, again)))
    owns = meeting.exchange(own) if len(set(digests)) > 1 else [own] * len(digests)
    notes = [Step(setup=setup, all_rows=[mine and mine.known])
             for (setup, _), mine in zip(owns, lists)]
    runs = [Run(note.setup.names, note.setup.shapes, [note], samplers=said, again=epoch)
            for note, said, epoch in zip(notes, samplers, epochs)]
    if len({repr((run.names, run.shapes, setup.dtypes))
            for run, (setup, _) in zip(runs, owns)}) == 1:
        runs[0].drifts = [one for when, named in tensors.items() for one in _apart(
            meeting, when, named, [hashes[when] for _, hashes in owns])]
    return _done(judge(Evidence(runs))[0] + same_labels(lists), then)


def _hashes(tensors, setup):
    """Return hashes of what ranks have in common, by name; None where there is none."""
    alike = {name: t for name, t in tensors.items() if name not in setup.left_out}
    return dict(zip(alike, bit_hashes(alike.values())))


@torch.no_grad()
def _apart(meeting, when, tensors, lists):
    """Return [the `Drift` of the first tensor that differs], or [] if none does."""
    for place, name in enumerate(tensors):
        values = [mine.get(name) for mine in lists]
        who = [rank for rank, value in enumerate(values) if value != values[0]]
        if who and None in values:
            # no gradient there, or ranks that did not ask for a comparison
            return [Drift(None, when, None, [], math.inf)] if all(lists) else []
        if who:
            here = comparable(tensors[name]).detach()
            here = torch.view_as_real(here) if here.is_complex() else here
            small = here.numel() <= SMALL
            numbers = here.double().reshape(-1) if small else Sketch([here])([here])[0]
            numbers = [torch.tensor(said, dtype=torch.float64, device="cpu")
                       for said in meeting.exchange(numbers.tolist())]
            far = [one - numbers[0] for one in numbers]
            far = [float(d.abs().max() if small else d.norm()) for d in far]
            return [Drift(None, when, place, who, max(
                math.inf if math.isnan(d) else d for d in far))]
    return []


def _told(sampler):
    """Return [what a DistributedSampler was told], [] for any other."""
    asked = "dataset seed epoch shuffle num_replicas rank".split()
    return [told(sampler)] if all(hasattr(sampler, name) for name in asked) else []


def _seen_before(sampler, rows):
    """Return the epoch if this batch came before and the epoch is still the same."""
    if rows is None or not _told(sampler) or not sampler.shuffle:
        return None
    # remembered where it belongs: a new sampler knows nothing
    epoch, batches = getattr(sampler, "_checked", (None, set()))
    batches = batches if epoch == sampler.epoch else set()
    again = tuple(rows.known) in batches
    sampler._checked = (sampler.epoch, batches | {tuple(rows.known)})
    return sampler.epoch if again else None


def _done(found, then):
    if found and then == "raise":
        raise RanksDiffer(found)
    if found and then == "warn" and dist.get_rank() == 0:
        warnings.warn(_words(found), stacklevel=3)
    return found


def _words(found):
    return "check_ranks: " + "; ".join(
        f"{f.code}: {f.says} (repair: {f.repair})" for f in found)


def _listed(one):
    if isinstance(one, (list, tuple)):
        return list(one)
    return [] if one is None else [one]


def _check(models, others, then):
    for model in models:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a module, got {type(model).__name__}")
    for name, given in others.items():  # `watch` takes the optimizer in second place
        if any(isinstance(one, torch.optim.Optimizer) for one in _listed(given)):
            raise TypeError(f"{name} is an optimizer: say optimizer=...")
    if then not in ("return", "warn", "raise"):
        raise ValueError(f"then must be 'return', 'warn' or 'raise', got {then!r}")
    if not dist.is_initialized():
        raise RuntimeError("no process group: call check_ranks in a rank, after "
                           "init_process_group")
