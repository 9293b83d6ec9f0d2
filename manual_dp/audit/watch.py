"""Listen to a script of your own: its first updates are heard as it takes them.

    from manual_dp.audit import watch
    watch(model, optimizer)         on every rank, once both are made

The first update only discovers (discover.py): whatever turns up begins the record anew.
After each update a rank puts what it heard where rank 0 finds it, and goes on: nobody
waits before the end of the script.
"""

import atexit
import sys
from collections import Counter
from contextlib import AbstractContextManager, ExitStack, suppress

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import optimizer as optim

from manual_dp.audit.board import Board
from manual_dp.audit.discover import Known
from manual_dp.audit.losses import hear
from manual_dp.audit.notes import pack, unpack
from manual_dp.audit.recorder import Recorder
from manual_dp.audit.report import ONE_RANK, Report, plural
from manual_dp.audit.rules import judge
from manual_dp.audit.summary import CLOSE, script_summary

OFTEN = 10  # an optimizer that steps so much more rarely than others is not waited for
WATCHES = []  # the one that listens in this process, if any
# set by the command: "steps", and "put", which is called with a packed Run and
# whether it is the last
UNDER_COMMAND = {}


def watch(model, *others, steps=3, timeout=30):
    """Listen to the next `steps` updates of a script; return a `Watch`.

    model, others: models that are trained, and their optimizers; what else is trained
    is found. timeout: seconds that rank 0 waits for others at the end. Where a process
    ends without atexit, as the ranks of run_ranks do, write `with watch(...):` around
    the steps: else a rank 0 that is ahead of the others at its end reports nothing.
    Raises RuntimeError without a process group, TypeError if there is no module.
    """
    if not any(isinstance(one, nn.Module) for one in (model, *others)):
        raise TypeError(
            "watch(model, optimizer, ...) needs a module; several are "
            f"given one by one: got {type(model).__name__}"
        )
    if not dist.is_initialized():
        raise RuntimeError(
            "no process group: call watch in a rank, after init_process_group"
        )
    while WATCHES:  # one at a time: what knows more begins again
        WATCHES.pop().give_way()
    WATCHES.append(Watch([model, *others], UNDER_COMMAND.get("steps", steps), timeout))
    return WATCHES[0]


class Watch(AbstractContextManager):
    """Listen to a script for some updates. report: on rank 0, once it is there."""

    def __init__(self, made, steps, timeout):
        self.steps, self.timeout, self.report, self.board = steps, timeout, None, None
        self.on, self.stack, self.waiting = True, ExitStack(), None
        self.known = Known(made)
        self.recorder = Recorder(self.known, ended=self._update_ended)
        self.known.changed = self.recorder.discover
        self.recorder.listen(self.stack)
        for patch in [*self.known.hooks(), *hear(self.recorder.note_loss)]:
            self.stack.enter_context(patch)
        if not UNDER_COMMAND:
            self.board = Board("watch")
            atexit.register(self._at_exit)

    def updates(self):
        """Return how many updates were heard; the last one may not be over."""
        return len(self.recorder.updates) + bool(self.recorder.now.held)

    def _update_ended(self):
        each = [self.recorder.steps.get(id(one), 0) for one in self.known()[1]]
        count = self.updates()
        all_stepped = min(each, default=count) >= self.steps
        last = count >= self.steps and (all_stepped or count >= OFTEN * self.steps)
        last = last or bool(self.recorder.problem)
        if last:
            self.stop()
        self._put(last)
        if last and self.board and dist.get_rank() == 0:
            self.waiting = optim.register_optimizer_step_post_hook(self._look)
            atexit.register(self._at_exit)

    def _put(self, last, whole=False):
        """Put what was heard where rank 0, or the command, finds it."""
        try:
            if self.board:
                put = self.board.put
            elif self.recorder.grouped:
                put = UNDER_COMMAND["put"]
            else:  # this process trains alone
                return
            put(pack(script_summary(self.recorder, self.known, last or whole)), last)
        except Exception as error:  # noqa: BLE001 (the training goes on)
            _say(f"not checked: {error}")

    def _look(self, *_):
        """On rank 0, after its last update: report, once all have put their last."""
        with suppress(Exception):
            if self.report is None and self.board.complete():
                self._judge(0)

    def _judge(self, timeout):
        if self.waiting:
            self.waiting.remove()
        try:
            packed = self.board.all(timeout)
            if missing := [rank for rank, run in enumerate(packed) if run is None]:
                raise RuntimeError(
                    f"watch: nothing came from rank {missing[0]} within {timeout:g} s"
                )
            runs = [unpack(run) for run in packed]
            self.report = judged(runs, self.steps)
            print(self.report, flush=True)
        except Exception as error:  # noqa: BLE001 (the training goes on)
            _say(f"not checked: {error}")

    def finish(self):
        """Take the hooks away; on rank 0 report, if that has not been done."""
        if self.on:
            self.recorder.end()
            self.stop()
            self._put(last=bool(self.board), whole=True)
        here = self.board and dist.is_initialized() and dist.get_rank() == 0
        if here and self.report is None:
            self._judge(self.timeout)
        atexit.unregister(self._at_exit)

    def _at_exit(self):
        if getattr(sys, "last_value", None) is None:  # else an error ended the script
            self.finish()

    def give_way(self):
        """Stop for another watch; on rank 0 say so, if nothing is told of this one."""
        if self.on and self.board and dist.get_rank() == 0:
            _say(
                f"ended after {plural(self.updates(), 'step')} of {self.steps} by "
                "another watch: hand all models and optimizers to one"
            )
        self.stop()

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


def _say(words):
    """Tell what is no report, where it does not mix with what a script prints."""
    print(f"watch: {words}", file=sys.stderr, flush=True)


def judged(runs, asked):
    """Return the Report on the runs of all ranks; asked: how many updates."""
    verdict = judge(runs, watched=True)
    taken = min(len(run.updates) for run in runs) if verdict.compared else 0
    looked_at = []  # where nothing was compared
    if taken or verdict.findings:
        looked_at = [*runs[0].looked_at]
        looked_at.insert(3, plural(taken, "step"))  # behind the losses
    close = runs[0].close  # numbers that differ by so much, relatively, are equal
    each = Counter(u.key[:2] for u in runs[0].updates[:taken])  # of an optimizer
    least = min(each.values(), default=0)
    if 0 < least < asked and taken < OFTEN * asked and not verdict.findings:
        left = f"{asked - least} of {asked} steps: the run ended after {least}"
        verdict.not_looked_at.insert(0, left)
    if len(runs) == 1:
        verdict.not_looked_at.insert(0, ONE_RANK)
    precision = "float64"
    if close > CLOSE[torch.float64]:
        precision = f"differences below {100 * close:g} % unseen"
    return Report(
        verdict.findings,
        look_at=verdict.look_at,
        looked_at=looked_at,
        not_looked_at=verdict.not_looked_at,
        world_size=len(runs),
        steps=taken,
        precision=precision,
    )
