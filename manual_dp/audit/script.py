"""Two lines in a script of your own: its first steps are watched as it takes them.

    from manual_dp.audit import watch
    watch(model, optimizer)         on every rank, once both are made

    watch      start to watch; the report comes after a few steps
    Followed   what `watch` returns; also for a with statement

The script keeps its loader, its sampler, its precision; what torch.compile made runs
uncompiled until then. At each parameter the gradient
that this rank's backward brings is heard before anything sums it, and what the
optimizer used is compared with the mean over ranks. Nothing is sent before the last of
the steps: then the ranks meet over the group's store, and rank 0 prints the report.
Under `python -m manual_dp audit -- train.py` they leave their notes in files instead.
"""

import atexit
import os
import pickle
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim import optimizer as optim

from manual_dp.audit.apart import layout, stages
from manual_dp.audit.averaging import MORE, MOST, unsent
from manual_dp.audit.catalogue import check_codes, so_many
from manual_dp.audit.failure import Diary, explained, read_diaries, steps_of
from manual_dp.audit.fingerprint import bit_hashes
from manual_dp.audit.hooks import Watch
from manual_dp.audit.measure import begun, parts, silent
from manual_dp.audit.meeting import Board, Meeting, NotTogether
from manual_dp.audit.outcome import judged, unmet
from manual_dp.audit.setup import copied, fresh_seed, ids_held, snapshot
from manual_dp.audit.shares import leftover
from manual_dp.files import write_bytes

FOLDER = "MANUAL_DP_AUDIT"  # where the command waits for the notes
ALONE = "alone"  # a file there: the script starts ranks of its own
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
    check_codes(ignore)
    if not any(isinstance(one, torch.nn.Module) for one in (model, *others)):
        raise TypeError("watch(model, optimizer, ...) needs a module; several are "
                        f"given one by one: got {type(model).__name__}")
    if not dist.is_initialized():
        raise RuntimeError("no process group: call watch in a rank, after "
                           "init_process_group")
    if FOLDER in os.environ:
        _check_started(Path(os.environ[FOLDER]))
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
        self.asked, self.world_size = self.steps, dist.get_world_size()
        self.report, self.on, self.until = None, True, None
        self.copies = []  # references to modules that were copied, of some model
        self.watch = Watch(self.models, self._forward, keeps=False, again=self._again,
                           optimizers=self.optimizers)
        self.run = begun(self.watch)
        self.run.ignored, self.run.seed = tuple(ignore), fresh_seed()
        dtypes = {p.dtype for p in self.watch.params}
        self.close = max((CLOSE.get(dtype.to_real(), 3e-2) for dtype in dtypes),
                         default=1e-7)
        self.rank, self.taken, self.begun = dist.get_rank(), [], 0
        self.diary = Diary(self.folder, self.rank) if self.folder else Board("watch")
        self.stack, self.destroy = ExitStack(), dist.destroy_process_group
        self.stack.enter_context(self.watch.on())
        self.stack.callback(optim.register_optimizer_step_post_hook(
            lambda optimizer, *_: self._took(optimizer)).remove)
        self.stack.enter_context(mock.patch.object(
            dist, "destroy_process_group", self._destroy))
        self._tell(frozen=[name for name, p in zip(self.watch.names, self.watch.params)
                           if not p.requires_grad], shapes=layout(self.run))
        self._begin()
        atexit.register(self._at_exit)

    def _begin(self):
        self.watch.begin(len(self.run.steps))
        self.watch.note.close = self.close
        self._tell(step=len(self.run.steps), silent=None, **{"in": "step"})

    def _tell(self, **now):
        # forwards: of this step; total: of all; taken: steps of each optimizer
        self.diary.note(**now, taken=self.taken)

    def _forward(self, forwards):
        self._tell(forwards=forwards, total=self.begun + forwards,
                   wanders=self.watch.note.wanders)

    def _took(self, optimizer):
        """Count a step of an optimizer that is followed."""
        known = [id(one) for one in self.watch.optimizers]
        if id(optimizer) in known and not self.watch.quiet:
            self.taken += [0] * (len(known) - len(self.taken))
            self.taken[known.index(id(optimizer))] += 1
            self._tell()
            if self.watch.note.inside:  # all of the step was in this call
                self._next()

    def _again(self):
        """Go on, at the first forward after all optimizers took their step."""
        if not self.watch.depth:  # else a closure's
            self._next()
        taken = len(self.run.steps)
        if taken >= self.steps:
            self.until = self.until or time.monotonic() + MOST
            waits = taken < self.asked + MORE and time.monotonic() < self.until
            alone = self.world_size > 1 and all(map(unsent, self.run.steps))
            # of a wrapper that is never called no average is to be expected
            bare = self.watch.models != self.watch.modules and not all(
                note.wraps for note in self.run.steps)
            self._meet(goes_on=waits and alone and not bare)

    def _next(self):
        """Close the step if all optimizers took theirs, and begin another one."""
        # one that is wrapped in another has its parameters
        moved = ids_held(self.watch.stepped)
        if self.watch.stepped and all(moved >= ids_held([one]) for one in
                                      self.optimizers if one not in self.watch.stepped
                                      ) or self._by_others(10):
            self._close()
            if len(self.run.steps) < self.steps:
                self._begin()

    def _by_others(self, steps):
        """Return whether an optimizer of other tensors took this step.

        It may copy its weights into the model; else so many steps were in vain.
        """
        note = self.watch.note
        if self.optimizers or not note.foreign or not self.watch.came:
            return False
        moved = note.before != bit_hashes(self.watch.params)
        return moved or note.foreign >= steps

    def _close(self):
        self._tell(silent=silent(self.watch), **{"in": "the end of step"})
        note = self.watch.end()
        note.leftover = leftover(self.watch)
        note.setup = snapshot(self.models, self.watch.optimizers, self.others)
        note.setup.copies = copied([one() for one in self.copies], self.run.shapes)
        self.run.steps.append(note)
        self.begun += len(note.all_rows)
        self.watch.forwards, self.watch.stepped = [], []
        if self.folder:
            write_bytes(f"{self.folder}/run-{self.rank}", pickle.dumps(self.run))

    def finish(self):
        """Take the hooks away; report, if that has not been done."""
        if not self.on:
            return
        last = self.watch.stepped or not self.run.steps and self._by_others(1)
        if last and len(self.run.steps) < self.steps:
            self._close()
        self._meet(goes_on=False)

    def _meet(self, goes_on):
        """Report with the other ranks; or take one step more, if all of them go on."""
        done = len(self.run.steps) >= self.steps
        now = {"in": "the rest, after step" if done else "the end of step"}
        if self.folder:
            if goes_on and not self._others_done():
                self._go_on()
            else:
                self.stop()
                self._tell(**now)
            return
        self._tell(**now)
        if not dist.is_initialized():
            self.stop()
            if self.rank == 0:
                _say(f"{so_many(len(self.run.steps), 'step')} of {self.steps} were "
                     "taken when the process group was destroyed: the ranks could not "
                     "meet")
            return
        if other := stages(self.diary.read()):  # they may wait for this one's rows
            self.stop()
            _say(other) if self.rank == 0 else None
            return
        meeting = Meeting("watch", self.timeout)
        try:
            if all(meeting.exchange(goes_on)):
                self._go_on()
                return
            self.stop()
            runs, diaries = zip(*meeting.exchange((self.run, self.diary.now)))
        except NotTogether as error:
            self.stop()
            with suppress(RuntimeError):  # the store goes with rank 0
                self._apart(error, meeting)
        except RuntimeError as error:
            self.stop()
            _say(f"the ranks could not meet: {error}")
        else:
            if self.rank == 0:
                self.report = judged(runs, (), self.asked, dict(enumerate(diaries)))
                print(self.report, flush=True)

    def _go_on(self):
        self.steps += 1
        self._begin()

    def _others_done(self):
        return any(here["in"].startswith("the rest") for rank, here in
                   read_diaries(self.folder).items() if rank != self.rank)

    def _apart(self, error, meeting):
        """Report on ranks that did not meet: what they said last may tell why."""
        said, world_size = self.diary.read(), dist.get_world_size()
        found = explained(said)
        if found:
            self.report = unmet(found, said, world_size, [self.run])
            self.report.set_aside(self.run.ignored)
        if not meeting.first():  # another rank has told it
            return
        if found:
            print(self.report, flush=True)
        elif len(said) < world_size:
            _say(f"{error}: watch must be called on all ranks")
        else:
            _say(f"{error}: " + "; ".join(
                f"rank {rank} took {so_many(steps_of(here), 'step')} and began "
                f"{here.get('total', 0)} forwards" for rank, here in said.items()))

    def _destroy(self, group=None):
        """Meet before the process group is destroyed, then destroy it."""
        if group in (None, dist.group.WORLD):
            self._leave(sys.exc_info()[1])
        self.destroy(group)

    def _at_exit(self):
        self._leave(getattr(sys, "last_value", None))

    def _leave(self, error):
        """Finish; if an error ends the script, the others may not come."""
        if error is None or isinstance(error, SystemExit) or self.folder:
            self.finish()
        else:
            self.stop()

    def stop(self):
        """Take the hooks away."""
        self.on, self.watch.quiet = False, True
        atexit.unregister(self._at_exit)
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *error):
        if kind is None:
            self.finish()
        else:  # the script ends: others may not come
            self.stop()


def _say(words):
    print(f"watch: {words.removeprefix('watch: ')}", file=sys.stderr, flush=True)


def _check_started(folder):
    """Raise RuntimeError in a process that is no rank which the command started."""
    pids = {path.read_text() for path in folder.glob("pid-*")}
    if pids and str(os.getpid()) not in pids:
        (folder / ALONE).touch()
        raise RuntimeError("the command starts the ranks; this one was started by the "
                           "script: run it as python does, without the command")
