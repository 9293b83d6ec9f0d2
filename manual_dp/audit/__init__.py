"""Is my training on many devices correct? Compare it with a single device, and say.

    audit         run a few steps of your own code on ranks and alone; return a Report
    watch         two lines in a script: its first steps, as it runs
    audit_script  a script as it is, under torchrun, and then on one device
    check_ranks   one line in a script: are the ranks still alike?
    Report        findings with the number that shows each; what was not checked

    def make_model():                  in each rank; may be wrapped, the group is there
        return DDP(nn.Linear(3, 2))    or (model, optimizer, ...), several of each
    def make_batch(t):                 the whole minibatch of step t, on all ranks alike
        return X, y                    any nest: a dict, a dataclass, ...
    def step(model, X, y):             your code: its own shard of X, backward, update
        ...                            if two were made: step(model, optimizer, X, y)
    print(audit(make_model, make_batch, step, world_size=2))

All is computed in float64 and without dropout: honest training agrees with a single
device to 13 digits, and no mistake hides. Replicas that are equal prove little: of 17
planted bugs that sees 5, and the accuracy 2.

Data parallelism is judged: on every rank a replica of the model. Of a script, what is
each rank's own by design (experts, slices of layers) is left out, and said to be.

From a run to the report, each file a part of the way:

    measure script                in a rank: take the steps of an audit, follow a script
    hooks clipping closure batch  what goes in, comes back, is clipped, is applied
    losses loaders reads          a script's losses, its rows, what these are
    strangers schedule            tensors beside the model; learning rates in time
    functional                    what torch.func puts in the place of a model's
    exact oracle                  float64 and no dropout; the loss, run once more
    memory                        whose memory the parameters are on
    fingerprint setup plain       a few numbers for many; what is set up, as plain data
    records                       what a rank notes of a step and of a run
    rules rows settings rate      what must hold, a list that you can append to
    shares                        optimizers that share out the parameters
    draws                         random numbers that are the same on all ranks
    apart                         parts of a model that are each rank's own by design
    averaging                     ranks that average weights instead of gradients
    gradient heard single terms   four witnesses: the loss; what came back to each
                                  rank; the same code at world size 1; what each term
                                  of a script's losses counts
    hypotheses naming             which gradient was it, if it was not the right one?
    catalogue report failure      a finding, its cause and repair; a run that ended
    outcome                       the report on a script
    again doubled fixed beside    the script once more, in float64: on ranks, and alone
    alike meeting                 check_ranks, over the store of the process group
    command launch runner guess   python -m manual_dp audit; what it is to watch
"""

import tempfile
from functools import partial

from manual_dp.audit.alike import check_ranks
from manual_dp.audit.beside import add
from manual_dp.audit.catalogue import check_codes
from manual_dp.audit.failure import failure
from manual_dp.audit.launch import audit_script
from manual_dp.audit.measure import measure, refused
from manual_dp.audit.records import Evidence
from manual_dp.audit.report import Report
from manual_dp.audit.rules import judge
from manual_dp.audit.script import watch
from manual_dp.audit.single import DRAWN
from manual_dp.ranks import RankError, run_ranks

__all__ = ["audit", "audit_script", "Report", "check_ranks", "watch"]


def audit(make_model, make_batch, step, world_size=2, loss=None, steps=3, timeout=60,
          lr=None, count=len, ignore=(), backend="gloo"):
    """Take `steps` steps on `world_size` ranks beside a single device; return a Report.

    make_model, make_batch, step: as above; called in each rank. make_batch: None where
    the step has a loader of its own. A batch that is a tuple is handed to `step` as
    several arguments, if it takes as many.
    loss: of (output, y), a mean over count(y) terms, rows unless said otherwise: what a
    single device would minimise, as in `count=lambda y: (y != -100).sum()` for
    cross-entropy over words. Without it some are tried at world size 1.
    timeout: seconds; a run that hangs ends then, and its place is a finding.
    lr: what the step multiplies the mean gradient by, where no optimizer of torch's is
    seen; without it, the size of the step is compared with that of the same code at
    world size 1.
    ignore: codes of findings to be remarks instead. backend: as in `run_ranks`.
    Raises TypeError or ValueError for arguments that do not fit.
    """
    code = {"make_model": make_model, "make_batch": make_batch, "step": step,
            "loss": loss, "count": count}
    _check(code, world_size, steps, ignore)

    def run(fixes, folder, world_size, loss):
        return run_ranks(measure, world_size, make_model, make_batch, step, loss, count,
                         steps, folder, fixes, timeout=timeout, backend=backend)

    report = _compared(partial(run, False), world_size, steps, lr, loss)
    if not report.findings and any(DRAWN in words for words in report.unchecked):
        again = _compared(partial(run, True), world_size, steps, lr, loss)
        if again.evidence:
            words = "with fixed numbers for what is drawn at random"
            add(report, again.findings, again.evidence, f"beside one device {words}",
                words)
    report.set_aside(ignore)
    return report


def _compared(run, world_size, steps, lr, loss):
    """Run the code at world size 1 and then on the ranks; report."""
    alone, missing = None, []
    with tempfile.TemporaryDirectory() as folder:
        try:
            if world_size > 1:
                [alone] = run(f"{folder}/alone", 1, loss)
        except RankError as error:
            missing = [f"a comparison with world size 1, which ended: {error}"]
        try:
            runs = run(f"{folder}/ranks", world_size, loss or alone and alone.loss)
        except RankError as error:
            if refusal := refused(error):
                raise refusal from error
            return Report([failure(error, f"{folder}/ranks")], [], world_size, steps,
                          details=f"{error}\n{error.details}")
    evidence = Evidence(runs, alone, lr)
    findings, remarks, unchecked = judge(evidence)
    return Report(findings, remarks, world_size, steps, unchecked + missing,
                  evidence=evidence)


def _check(code, world_size, steps, ignore):
    for name, value in code.items():
        optional = name in ("loss", "make_batch")
        if not callable(value) and not (optional and value is None):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    for name, value in (("world_size", world_size), ("steps", steps)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number from 1, got {value!r}")
    check_codes(ignore)
