"""Two lines in a script of your own: its first steps are watched as it takes them.

    from manual_dp.audit import watch
    watch(model, optimizer)         on every rank, once both are made

    watch      start to watch; the report comes after a few steps
    Followed   what `watch` returns; also for a with statement

The script keeps its loader, its sampler, its precision. At each parameter the gradient
that this rank's backward brings is heard before anything sums it, and what the
optimizer used is compared with the mean over ranks. Nothing is sent before the last of
the steps: then the ranks meet over the group's store, and rank 0 prints the report.
Under `python -m manual_dp audit -- train.py` they leave their notes in files instead.
"""

import atexit
import os
import pickle
import sys
from contextlib import ExitStack

import torch
import torch.distributed as dist

from manual_dp.audit.catalogue import WORDS
from manual_dp.audit.failure import Diary
from manual_dp.audit.hooks import Watch
from manual_dp.audit.measure import begun, parts, silent
from manual_dp.audit.meeting import Meeting, NotTogether
from manual_dp.audit.records import Evidence
from manual_dp.audit.report import Report
from manual_dp.audit.rules import judge
from manual_dp.audit.setup import snapshot
from manual_dp.files import write_bytes

FOLDER = "MANUAL_DP_AUDIT"  # where the command waits for the notes
FOLLOWED = []  # what is watched in this process
CLOSE = {torch.float64: 1e-7, torch.float32: 1e-4}  # of others 3e-2


def watch(model, *others, steps=3, timeout=30, ignore=()):
    """Watch the next `steps` steps of the optimizers; return a `Followed`.

    others: the optimizers, and whatever should be alike on all ranks: further models, a
    scheduler, an average of weights. timeout: seconds that ranks wait for one another
    at the end. ignore: codes of findings to be remarks instead.
    Raises RuntimeError without a process group, TypeError if there is no module,
    ValueError for a code that there is not.
    """
    if isinstance(ignore, str) or not {*ignore} <= {*WORDS}:
        raise ValueError(f"ignore must be a list of codes, such as {[*WORDS][:2]}, got "
                         f"{ignore!r}")
    if not dist.is_initialized():
        raise RuntimeError("no process group: call watch in a rank, after "
                           "init_process_group")
    while FOLLOWED:  # one at a time: what knows more begins again
        FOLLOWED.pop().stop()
    FOLLOWED.append(Followed([model, *others], steps, timeout, ignore))
    return FOLLOWED[0]


class Followed:
    """Follow a script for some steps. report: on rank 0, once they are taken."""

    def __init__(self, made, steps, timeout, ignore):
        self.models, self.optimizers, self.others = parts(made)
        self.folder, self.steps, self.timeout = os.environ.get(FOLDER), steps, timeout
        self.steps = int(os.environ.get(f"{FOLDER}_STEPS", steps))
        self.report, self.on = None, True
        self.watch = Watch(self.models, self._forward, keeps=False, again=self._again,
                           optimizers=self.optimizers)
        self.run = begun(self.watch)
        self.run.ignored = tuple(ignore)
        dtypes = {p.dtype for p in self.watch.params}
        self.close = max((CLOSE.get(dtype, 3e-2) for dtype in dtypes), default=1e-7)
        self.diary = self.folder and Diary(self.folder, dist.get_rank())
        self.stack = ExitStack()
        self.stack.enter_context(self.watch.on())
        self._tell(frozen=[name for name, p in zip(self.watch.names, self.watch.params)
                           if not p.requires_grad])
        self._begin()
        atexit.register(self.finish)

    def _begin(self):
        self.watch.begin(len(self.run.steps))
        self.watch.note.close = self.close
        self._tell(step=len(self.run.steps), silent=None, **{"in": "step"})

    def _tell(self, **now):
        if self.diary:
            self.diary.note(**now)

    def _forward(self, forwards):
        self._tell(forwards=forwards)

    def _again(self):
        """Close the step, at the first forward after all optimizers took theirs."""
        taken = {id(one) for one in self.watch.stepped}
        if taken and all(id(one) in taken for one in self.optimizers):
            self._close()
            if len(self.run.steps) >= self.steps:
                self.finish()
            else:
                self._begin()

    def _close(self):
        self._tell(silent=silent(self.watch), **{"in": "the end of step"})
        note = self.watch.end()
        note.setup = snapshot(self.models, self.watch.optimizers, self.others)
        self.run.steps.append(note)
        self.watch.forwards, self.watch.stepped = [], []
        if self.folder:
            write_bytes(f"{self.folder}/run-{dist.get_rank()}", pickle.dumps(self.run))

    def finish(self):
        """Take the hooks away; report, if that has not been done."""
        if not self.on:
            return
        if self.watch.stepped and len(self.run.steps) < self.steps:
            self._close()
        self.stop()
        done = len(self.run.steps) >= self.steps
        self._tell(**{"in": "the rest, after step" if done else "the end of step"})
        if self.folder or not dist.is_initialized():
            return
        try:
            runs = Meeting("watch", self.timeout).exchange(self.run)
        except NotTogether as error:
            print(f"{error}: watch must be called on all ranks", file=sys.stderr)
            return
        if dist.get_rank() == 0:
            self.report = judged(runs)
            print(self.report, flush=True)

    def stop(self):
        """Take the hooks away."""
        self.on, self.watch.quiet = False, True
        atexit.unregister(self.finish)
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        if kind is None:
            self.finish()
        else:  # the script ends: others may not come
            self.stop()


def judged(runs, ignore=()):
    """Return the report on the runs of all ranks; ignore: more codes than theirs."""
    ignored = {*ignore, *runs[0].ignored}
    evidence = Evidence(runs, watched=True, ignored=ignored)
    precision = "float64" if evidence.close <= 1e-7 else (
        f"in the script's precision: what is below {evidence.close:g} is not seen")
    findings, remarks, unchecked = judge(evidence)
    steps = max(len(run.steps) for run in runs)
    report = Report(findings, remarks, len(runs), steps, unchecked, evidence=evidence,
                    precision=precision)
    report.set_aside(ignored)
    return report
