"""Check an answer where it stands: in the learner's own notebook.

    check   draw inputs, run the answer, compare; print one line, or raise Wrong

The same draws and the same judgement are used by `python -m manual_dp grade`, which
runs answers in a process that cannot read them.
"""

import contextlib
import importlib
import json
import os
import random
import warnings

from manual_dp.ranks import RankError
from manual_dp.school.exercise import LESSONS, differ, find, shorten
from manual_dp.school.tools.alarm import alarm
from manual_dp.school.tools.parts import placed
from manual_dp.school.tools.run import LEFT, run


class Wrong(AssertionError):
    """An answer that is not right yet, and why."""

    def _render_traceback_(self):  # what IPython shows: the message, not our frames
        return [str(self)]


class Blank(Wrong):
    """An answer that is not written yet."""


def check(name, *answers, times=1):
    """Check the learner's `answers` to the exercise called `name`.

    name: such as "ps1/allreduce". times: how often to draw new inputs.
    Prints one line if all is right. Raises Wrong with what was given, got and wanted,
    and with a guess at the misunderstanding where there is one; whatever the answer
    raises itself is passed on, NotImplementedError as Wrong. In a lesson, such as
    "03/allreduce", that one prints a line: a lesson runs before its answers are there.
    What the answers say to stderr, warnings too, is lost.
    """
    __tracebackhide__ = True  # IPython leaves out this frame: the learner's matter
    exercise, count = find(name), 0
    if len(answers) != len(exercise.answers):
        raise ValueError(f"{name} checks {', '.join(exercise.answers)}; "
                         f"got {len(answers)} arguments")
    draws = random.Random()
    try:
        with _quiet(), _time_limit(name, exercise.seconds * 3 * times):
            for _ in range(times):
                for case in exercise.draw(draws):
                    problem = judge(exercise, case, _run(exercise, case, answers))
                    if problem:
                        raise Wrong(f"{name} is not right yet.\n{problem}")
                    count += getattr(case, "inputs", 1)
    except Blank:
        if name.partition("/")[0] not in LESSONS:
            raise
        print(f"{name}: not written yet. Write your lines in place of the one with "
              "NotImplementedError, then run this cell again.")
        return
    print(f"{name}: right, on {count} {exercise.inputs}")


def judge(exercise, case, got):
    """Return None or the message for `got`, which may be anything that JSON holds."""
    if isinstance(got, dict) and LEFT in got:
        return _left_changed(got[LEFT])
    try:
        return next(filter(None, exercise.judge(case, got)), None)
    except Wrong:  # the time is over
        raise
    except Exception:  # a judge counts on the form that a right answer has
        return f"got     {shorten(got)}\nwanted  numbers in another form"


def _left_changed(left):
    words = shorten(left)
    return differ("torch's settings before and after the answer", words,
                  "as they were before", [
        ("gradients are switched off for whatever comes next: with torch.no_grad(): "
         "switches them on again at its end", "gradients: [True" in words),
        ("the default dtype stays changed: give each tensor its dtype",
         "default dtype" in words),
        ("put back what you change: others come after you", True)])


def _run(exercise, case, answers):
    __tracebackhide__ = True
    # to JSON and back, as in the graded process: nothing but numbers arrives
    try:
        with placed(_parts(exercise), answers):
            return json.loads(json.dumps(run(exercise.name, case, answers)))
    except (NotImplementedError, RankError) as error:
        cause = getattr(error, "cause", type(error).__name__)  # a rank's, or ours
        if cause != "NotImplementedError":
            raise
        raise Blank(f"{exercise.name} is not written yet: "
                    "its cell still raises NotImplementedError.") from None


def _parts(exercise):
    module = exercise.parts and importlib.import_module(exercise.parts_module)
    return {name: getattr(module, name) for name in exercise.parts}


@contextlib.contextmanager
def _quiet():
    """Lose what goes to stderr, also from C++: nbgrader takes it for a failure."""
    before = os.dup(2)
    try:
        with (warnings.catch_warnings(), open(os.devnull, "w") as null,
              contextlib.redirect_stderr(null)):
            warnings.simplefilter("ignore")
            os.dup2(null.fileno(), 2)
            yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _time_limit(name, seconds):
    return alarm(Wrong(f"{name} is not checked to the end.\nIt was still at work after "
                       f"{seconds} s: is there a loop that does not end? If there is "
                       "none, the machine is busy: run the cell again."), seconds)
