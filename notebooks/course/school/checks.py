"""Check an answer where it stands: draw inputs, run it, compare, say what is wrong.

    exercise   make one of a function: it draws, runs the answer, yields messages
    check      what a notebook calls: prints a line, or raises Wrong
    about      what compares in it (of compare.py)
    Partly     a message that leaves some points

    @exercise("one_step/sgd")
    def sgd(random, sgd):  # the first argument draws, the others are the answers
        p = rand(random, 3).requires_grad_()
        ...
        yield about("lr 1")("the parameter", p, right, {"this walks uphill": uphill})
"""

import importlib
import inspect
import random
from dataclasses import dataclass

from course.school.answers import (
    TimeIsOver,
    elsewhere,
    home,
    learners,
    limit,
    placed,
    put,
    quiet,
    settings,
)
from course.school.compare import about
from manual_dp.ranks import RankError

SETS = ("ps1", "ps2", "ps3", "ps4", "ps5", "ps6", "ps7", "ps8", "ps9")
LESSONS = {  # the number that a lesson has now: its name
    "02": "replicas", "03": "allreduce", "04": "split_the_batch", "05": "one_step",
    "06": "train", "07": "dataparallel", "08": "processes", "09": "ddp_by_hand",
    "10": "ddp", "16": "predict_before_you_pay", "17": "the_clock",
    "18": "keep_only_a_part", "19": "many_machines"}
EXERCISES = {}  # {name: Exercise}, as far as files were imported
LEFT = {"gradients": "gradients are switched off for whatever comes next: with "
                     "torch.no_grad(): switches them on again at its end",
        "default dtype": "the default dtype stays changed: give each tensor its dtype"}


class Wrong(AssertionError):
    """An answer that is not right yet, and why."""

    def _render_traceback_(self):  # what IPython shows: the message, not our frames
        return [str(self)]


class Partly(str):
    """A message that leaves some `points`, to an answer that is right in parts."""

    def __new__(cls, text, points):
        """Make the message; `points` are those that the answer has earned."""
        message = super().__new__(cls, text)
        message.points = points
        return message


@dataclass(frozen=True)
class Exercise:
    """An exercise: `run(random, *answers)` yields messages, None for what is right.

    parts: () -> {name: what the answer uses in place of the learner's other answers}.
    """

    name: str
    points: float
    run: object
    seconds: float
    parts: object

    @property
    def answers(self):
        """Return the names of the answers that it asks for."""
        _, *asked = inspect.signature(self.run).parameters.values()
        return tuple(one.name.rstrip("_") for one in asked if one.default is one.empty)


def exercise(*names, points=0, seconds=30, parts=dict):
    """Make a function an exercise, under several names if a lesson asks for it, too.

    The function draws with its first argument. The others have the names of the
    answers; with a _ behind, where such a function stands in the file already. What has
    a default is no answer. seconds: plenty on any machine, for one time.
    """
    def note(run):
        for name in names:
            EXERCISES[name] = Exercise(name, 0 if _of_a_lesson(name) else points, run,
                                       seconds, parts)
        return run
    return note


def find(name):
    """Return the exercise called `name`: "ps9/fit", "one_step/sgd" or "05/sgd"."""
    folder, _, rest = name.partition("/")
    folder = LESSONS.get(folder, folder)
    if folder not in (*SETS, *LESSONS.values()):
        raise ValueError(f"no problem set or lesson is called {folder!r}; there are "
                         f"{', '.join((*SETS, *LESSONS.values()))}")
    importlib.import_module(f"course.school.{folder if folder in SETS else 'lessons'}")
    if f"{folder}/{rest}" not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are " + ", ".join(
            other for other in EXERCISES if other.startswith(f"{folder}/")))
    return EXERCISES[f"{folder}/{rest}"]


def _of_a_lesson(name):
    return name.partition("/")[0] not in SETS


def check(name, *answers, times=1, draws=None):
    """Check the learner's `answers` to the exercise called `name`; print one line.

    times: how often to draw new inputs. draws: a random.Random, to draw the same.
    Raises Wrong with what was given, got and wanted, and with a guess at the
    misunderstanding where there is one; whatever the answer raises itself is passed on.
    A blank answer is Wrong; in a lesson, which runs before its answers are there, it
    prints a line. Returns None, or the points of an answer that is right in parts: as
    the value of a cell, nbgrader counts them.
    """
    __tracebackhide__ = True  # IPython leaves out this frame: the learner's matter
    one = find(name)
    if len(answers) != len(one.answers):
        raise ValueError(f"{name} checks {', '.join(one.answers)}; "
                         f"got {len(answers)} arguments")
    for asked, answer in zip(one.answers, answers):
        if home(answer):
            raise Wrong(f"{name} is not checked.\n{asked} is the course's own, from "
                        f"{home(answer)}: write yours, in the cell of the exercise.")
    seconds = one.seconds * times
    try:
        with limit(seconds), quiet(), placed(one.parts(), answers):
            message = _first(one, answers, times, draws or random.Random())
    except TimeIsOver:
        raise Wrong(f"{name} is not checked to the end.\nIt was still at work after "
                    f"{seconds} s: is there a loop that does not end? If there is "
                    "none, the machine is busy: run the cell again.") from None
    except (NotImplementedError, RankError) as error:
        cause = getattr(error, "cause", type(error).__name__)  # a rank's, or ours
        if cause != "NotImplementedError":
            raise
        if not _of_a_lesson(name):
            raise Wrong(f"{name} is not written yet: "
                        "its cell still raises NotImplementedError.") from None
        print(f"{name}: not written yet. Write your lines in place of the one with "
              "NotImplementedError, then run this cell again.")
        return None
    return _say(name, one, answers, message)


def _first(one, answers, times, draws):
    """Return the first message about the answers, None if all is right."""
    __tracebackhide__ = True
    before, compared = settings(), 0
    try:
        for _ in range(times):
            for message in one.run(draws, *answers):
                message = _left(before) or message
                if message:
                    return message
                compared += 1
    except Exception as error:
        if _left(before):  # which may be why
            return _left(before)
        if isinstance(error, (NotImplementedError, RankError)):
            raise
        trace = learners(error)
        if trace:
            raise error.with_traceback(trace) from error.__cause__
        return (f"got     {type(error).__name__}: {error}\n"
                "wanted  an answer that takes and returns what the exercise says")
    finally:
        put(before)
    if not compared:
        raise ValueError(f"the exercise {one.name} compares nothing")
    return None


def _left(before):
    """Return None, or the message if torch's settings are not as they were `before`."""
    now = settings()
    name = next((name for name in now if now[name] != before[name]), None)
    if name is None:
        return None
    hint = LEFT.get(name, "put back what you change: others come after you")
    return about("torch's settings before and after the answer")(
        name, str(now[name]), str(before[name]), {hint: True})


def _say(name, one, answers, message):
    __tracebackhide__ = True
    points = getattr(message, "points", 0)
    if message and not points:
        raise Wrong(f"{name} is not right yet.\n{message}")
    print(f"{name} is right in parts.\n{message}" if message else
          f"{name}: right, on inputs drawn at random")
    folder = one.name.partition("/")[0]
    known = {*one.parts(), *(asked for other in EXERCISES.values()
                             if other.name.startswith(f"{folder}/")
                             for asked in other.answers)}
    strange = set() if _of_a_lesson(name) else elsewhere(answers) - known
    if strange:
        print(f"Note: it uses {', '.join(sorted(strange))} from another cell. Move "
              "that into the cell of the answer, which is what is graded.")
    return points or None
