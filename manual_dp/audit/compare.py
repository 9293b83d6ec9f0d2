"""Take the same steps on ranks and on one device: is it the same training?

What is compared, in float64, from equal weights, step by step:

    one device:   weights  ->  gradient of all rows    ->  weights after the step
    each rank:    weights  ->  gradient of its rows
                               sum or mean over ranks  ->  weights after the step

If every rank ends where the one device ends, the step is right, whatever it does. If
not, rules.py looks for the first link that differs.
"""

import inspect
import tempfile
from contextlib import ExitStack, suppress
from functools import partial

import torch.distributed as dist
from torch import nn

from manual_dp.audit.discover import Known
from manual_dp.audit.exact import doubled, exact, left_out, why_not_comparable
from manual_dp.audit.notes import pack, unpack
from manual_dp.audit.recorder import Recorder
from manual_dp.audit.report import ONE_RANK, Report, plural
from manual_dp.audit.rows import Minibatch
from manual_dp.audit.rules import judge
from manual_dp.audit.stands import Standstill, ended
from manual_dp.audit.summary import summary
from manual_dp.ranks import RankError, run_ranks

AS_WRONG = (
    "mistakes that {} makes as well, such as labels, loss or rate, and all steps after "
    "these"
)


def audit_step(
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

    make_model, make_batch, step: as in `manual_dp.audit`; called in each rank.
    make_batch: None where the step has a loader of its own. A batch that is a tuple is
    handed to `step` as several arguments, if it takes as many.
    timeout: seconds; a run that hangs ends then, and its place is a finding.
    reference: called as `step` is, in its place, at world size 1.
    backend: as in `run_ranks`.
    Raises TypeError or ValueError for arguments that do not fit.
    """
    called = {
        "make_model": make_model,
        "make_batch": make_batch or len,
        "step": step,
        "reference": reference or len,
    }
    for name, value in called.items():
        if not callable(value):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    for name, value in (("world_size", world_size), ("steps", steps)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number from 1, got {value!r}")
    take = partial(run_ranks, timeout=timeout, backend=backend)
    alone, missing = None, []
    if world_size > 1:
        try:
            alone = take(
                take_steps, 1, make_model, make_batch, reference or step, steps
            )
        except RankError as error:
            missing = [f"a comparison with world size 1, which ended: {error}"]
    with tempfile.TemporaryDirectory() as folder:
        program = make_model, make_batch, step, steps
        try:
            runs = take(take_steps, world_size, *program, folder, timeout / 2)
        except RankError as error:
            return Report(
                [ended(error, folder)],
                not_looked_at=missing,
                world_size=world_size,
                steps=steps,
                details=f"{error}\n{error.details}",
            )
    runs = [unpack(run) for run in runs]
    verdict = judge(runs, unpack(alone[0]) if alone else None)
    looked_at = []
    if world_size == 1:
        missing = [ONE_RANK]
    elif verdict.compared:
        weights = f"the weights of {plural(len(runs[0].names), 'parameter')}"
        other = "one device's" if verdict.beside else "rank 0's"
        looked_at = [f"{weights} after each step, beside {other}"]
    if verdict.beside:
        missing.append(AS_WRONG.format("`reference`" if reference else "one device"))
    return Report(
        verdict.findings,
        verdict.look_at,
        verdict.not_looked_at + missing,
        looked_at,
        world_size=world_size,
        steps=steps,
    )


def take_steps(make_model, make_batch, step, steps, folder=None, seconds=0):
    """Take `steps` steps in this rank, in float64; return a packed Run.

    folder, seconds: where, and after how long, a rank that hangs says where it stands.
    """
    standstill = Standstill(folder, dist.get_rank(), seconds)
    if folder:
        standstill.start()
    with exact() as drawn, ExitStack() as stack:
        made = make_model()
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        for one in made:
            if isinstance(one, nn.Module):
                doubled(one)
        recorder = Recorder(Known(made), cast=doubled)
        standstill.updates = lambda: len(recorder.updates)
        recorder.listen(stack)
        blurs = [
            _take_step(recorder, t, make_batch, step, made, drawn) for t in range(steps)
        ]
    standstill.done.set()
    run = summary(recorder)
    run.blurs = max(blurs)
    run.not_looked_at = left_out(recorder.modules)
    return pack(run)


def _take_step(recorder, t, make_batch, step, made, drawn):
    """Take a step; return why one device would step otherwise than ranks do, or ""."""
    batch = doubled(make_batch(t)) if make_batch else None
    recorder.t = t
    recorder.minibatch = None if batch is None else Minibatch(batch)
    before, count = drawn(), len(recorder.updates)
    step(*arguments(step, made, batch))
    drew = "the step draws random numbers" if drawn() != before else ""
    recorder.end_step()
    if batch is not None:
        for update in recorder.updates[count:]:
            update.batch = recorder.minibatch.size, recorder.minibatch.whole
    other = why_not_comparable(recorder.modules, recorder.wrappers())
    return recorder.wanders or drew or other


def arguments(step, made, batch):
    """Return what `step` is called with: the parts of a batch, if it takes as many."""
    if batch is None:
        return made
    several = isinstance(batch, (tuple, list)) and not hasattr(batch, "_fields")
    if not several:
        return [*made, batch]
    for args in ([*made, *batch], [*made, batch]):
        with suppress(TypeError):
            inspect.signature(step).bind(*args)
            return args
    return [*made, *batch]
