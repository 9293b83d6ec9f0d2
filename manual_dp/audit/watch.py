"""Two lines in a script of your own: its first updates are watched as it takes them.

    from manual_dp.audit import watch
    watch(model, optimizer)         on every rank, once both are made

The script keeps its loader, its sampler, its precision. Nothing is sent before the last
of the steps: then the ranks meet over the group's store, and rank 0 prints the report.
"""

import atexit
import sys
from contextlib import AbstractContextManager, ExitStack, suppress

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import state
from manual_dp.audit.measure import summary
from manual_dp.audit.meet import exchange
from manual_dp.audit.record import Recorder, hear
from manual_dp.audit.report import Report, so_many
from manual_dp.audit.rules import judge

CLOSE = {torch.float64: 1e-7, torch.float32: 1e-4}  # of others 3e-2
WATCHED = []  # what is watched in this process
COMMAND = {}  # of `command`: how many steps, and how a rank leaves with its Run


def watch(model, *others, steps=3, timeout=30):
    """Watch the next `steps` steps of the optimizers; return a `Watch`.

    others: the optimizers, and further models that are trained. timeout: seconds that
    ranks wait for one another at the end.
    Raises RuntimeError without a process group, TypeError if there is no module.
    """
    if not any(isinstance(one, torch.nn.Module) for one in (model, *others)):
        raise TypeError(
            "watch(model, optimizer, ...) needs a module; several are "
            f"given one by one: got {type(model).__name__}"
        )
    if not dist.is_initialized():
        raise RuntimeError(
            "no process group: call watch in a rank, after init_process_group"
        )
    while WATCHED:  # one at a time: what knows more begins again
        WATCHED.pop().stop()
    steps = COMMAND.get("steps", steps)
    WATCHED.append(Watch([model, *others], steps, timeout))
    return WATCHED[0]


class Watch(AbstractContextManager):
    """Watch a script for some steps. report: on rank 0, once they are taken."""

    def __init__(self, made, steps, timeout):
        try:
            self.recorder = Recorder(*state.parts(made), closed=self._closed)
        except Exception as error:  # noqa: BLE001 (the training goes on)
            self.recorder = Recorder([], problem=f"the steps: the audit met {error!r}")
        self.steps, self.timeout = steps, timeout
        self.updates = steps * max(1, len(self.recorder.optimizers))
        self.report, self.on, self.stack = None, True, ExitStack()
        self.recorder.listen(self.stack)
        for patch in hear(lambda *term: self.recorder.now.terms.append(term)):
            self.stack.enter_context(patch)
        atexit.register(self._at_exit)

    def _closed(self):
        if len(self.recorder.updates) >= self.updates:
            self.finish()

    def finish(self):
        """Take the hooks away; report, if that has not been done."""
        if not self.on:
            return
        self.stop()
        try:
            run = self._run()
            if COMMAND:
                COMMAND["leave"](run)
            runs = exchange("watch", run, self.timeout)
            if dist.get_rank() == 0:
                self.report = judged(runs, self.steps)
                print(self.report, flush=True)
        except Exception as error:  # noqa: BLE001 (the training goes on)
            print(f"watch: not checked: {error}", file=sys.stderr, flush=True)

    def _run(self):
        recorder = self.recorder
        recorder.settle()
        run = summary(recorder)
        run.close = max(
            (CLOSE.get(p.dtype.to_real(), 3e-2) for p in recorder.params), default=1e-7
        )
        with suppress(Exception):  # a dataset that refuses
            run.reads = recorder.dealing.read()
        return run

    def _at_exit(self):
        if getattr(sys, "last_value", None) is None:  # else an error ended the script
            self.finish()

    def stop(self):
        """Take the hooks away."""
        self.on = False
        atexit.unregister(self._at_exit)
        self.stack.close()

    def __exit__(self, kind, *error):
        if kind is None:
            self.finish()
        else:  # the script ends: others may not come
            self.stop()


def judged(runs, asked):
    """Return the Report on the runs of all ranks; asked: how many steps."""
    findings, unchecked = judge(runs, watched=True)
    taken, close = min(len(run.updates) for run in runs), runs[0].close
    if taken < asked and not findings and not runs[0].unjudged:
        unchecked.append(
            f"{asked - taken} of {asked} steps: the script ended after "
            f"{so_many(taken, 'step')}"
            if taken
            else "the steps: none of torch's optimizers took one"
        )
    precision = (
        "float64"
        if close <= 1e-7
        else (f"in the script's precision: what is below {close:g} is not seen")
    )
    return Report(findings, unchecked, len(runs), taken, precision=precision)


def on_wrapping():
    """Watch what the script wraps in DDP from now on, until it says watch itself."""
    wrapped, own, wrap = [], [], DistributedDataParallel.__init__

    def wrap_and_watch(model, *args, **kwargs):
        wrap(model, *args, **kwargs)
        wrapped.append(model)
        if own == WATCHED and not (own and own[0].recorder.updates):
            own[:] = [watch(*wrapped)]

    DistributedDataParallel.__init__ = wrap_and_watch
