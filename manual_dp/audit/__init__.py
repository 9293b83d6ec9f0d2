"""Is my training on many devices correct? Compare it with a single device, and say.

    audit         run a few steps of your own code on ranks and alone; return a Report
    watch         two lines in a script: its first steps, as it runs
    audit_script  a script as it is, on ranks
    check_ranks   one line in a script: are the ranks still alike?
    Report        findings, each with its cause and repair; what was not checked

    def make_model():                  in each rank; may be wrapped, the group is there
        return DDP(nn.Linear(3, 2))    or (model, optimizer, ...), several of each
    def make_batch(t):                 the whole minibatch of step t, on all ranks alike
        return X, y                    any nest: a dict, a dataclass, ...
    def step(model, X, y):             your code: its own shard of X, backward, update
        ...                            if two were made: step(model, optimizer, X, y)
    print(audit(make_model, make_batch, step, world_size=2))

Data parallelism is judged: on every rank a replica of the model, one gradient. A step
is right if it is the one that the same code takes at world size 1, in float64. So a
mistake that a single device makes, too, is not seen: hand in `reference`, a step as one
device should take it. Where it is not right, the first broken link is the finding:
set-up, weights before, rows, gradients, update, weights after.

    record notes measure         from one update of the weights to the next; in a step
    rows state sketch            what goes in; what must be alike; few numbers for many
    mixing rules report          who counts whom? what is wrong?
    watch command meet           scripts; who waits for whom
"""

import tempfile
from functools import partial

from manual_dp.audit.command import audit_script
from manual_dp.audit.measure import measure
from manual_dp.audit.meet import ended
from manual_dp.audit.report import Report
from manual_dp.audit.rules import judge
from manual_dp.audit.state import check_ranks
from manual_dp.audit.watch import watch
from manual_dp.ranks import RankError, run_ranks

__all__ = ["audit", "audit_script", "Report", "check_ranks", "watch"]


def audit(
    make_model,
    make_batch,
    step,
    world_size=2,
    steps=3,
    timeout=60,
    reference=None,
    backend="gloo",
):
    """Take `steps` steps on `world_size` ranks beside a single device; return a Report.

    make_model, make_batch, step: as above; called in each rank. make_batch: None where
    the step has a loader of its own. A batch that is a tuple is handed to `step` as
    several arguments, if it takes as many.
    timeout: seconds; a run that hangs ends then, and its place is a finding.
    reference: called as `step` is, in its place, at world size 1.
    backend: as in `run_ranks`.
    Raises TypeError or ValueError for arguments that do not fit.
    """
    for name, value in {
        "make_model": make_model,
        "make_batch": make_batch or len,
        "step": step,
        "reference": reference or len,
    }.items():
        if not callable(value):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    for name, value in (("world_size", world_size), ("steps", steps)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number from 1, got {value!r}")
    alone, missing = None, []
    take = partial(run_ranks, timeout=timeout, backend=backend)
    if world_size > 1:
        try:
            [alone] = take(measure, 1, make_model, make_batch, reference or step, steps)
        except RankError as error:
            missing = [f"a comparison with world size 1, which ended: {error}"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            runs = take(
                measure,
                world_size,
                make_model,
                make_batch,
                step,
                steps,
                folder,
                timeout / 2,
            )
        except RankError as error:
            return Report(
                [ended(error, folder)],
                missing,
                world_size,
                steps,
                details=f"{error}\n{error.details}",
            )
    findings, unchecked = judge(runs, alone)
    return Report(findings, unchecked + missing, world_size, steps)
