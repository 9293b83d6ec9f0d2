"""Check an answer where it stands: draw inputs, run it, compare, say what is wrong.

exercise   make one of a function: it draws, runs the answer, yields messages
check      what a notebook calls: prints a line, or raises Wrong
Partly     a message that leaves some points
about      compare: None, or what was given, got and wanted, and a guess at why
close      are these the numbers that were wanted?
numbers    tensors, also in lists and dicts, as lists of numbers
flat       nested lists as one list
unequal    are the ranks' numbers not all the same?
shorten    numbers in few characters
so_many    "1 device", "3 devices"

@exercise("one_step/sgd", cases=[1, 0.5])
def sgd(random, sgd, *, lr):  # random draws, sgd is the answer, lr comes from cases
    p = rand(random, 3).requires_grad_()
    ...
    yield about(f"lr {lr}")("the parameter", p, right, {"this walks uphill": uphill})
"""

import importlib
import inspect
import random
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real

import torch

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
from manual_dp.ranks import RankError

SETS = ("ps1", "ps2", "ps3", "ps4", "ps5", "ps6", "ps7", "ps8", "ps9")
# the files with what only lessons ask; some exercises of sets are asked in one as well
TOPICS = ("cost", "ddp", "memory", "messages", "shards")
EXERCISES = {}  # {name: Exercise}, as far as files were imported
ROUNDED = "these agree to five digits: was something rounded, perhaps to float32?"
LEFT = {
    "gradients": "gradients are switched off for whatever comes next: with "
    "torch.no_grad(): switches them on again at its end",
    "default dtype": "the default dtype stays changed: give each tensor its dtype",
}


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
    """An exercise: `run` yields a message for what is wrong, None for what is right.

    run(random, *answers, **case): called once for each of `cases`, see `exercise`.
    supply: () -> {name: what the answer uses in place of the learner's other answers}.
    """

    name: str
    points: float
    run: object
    seconds: float
    supply: object
    cases: list

    @property
    def answers(self):
        """Return the names of the answers that it asks for."""
        _, *asked = inspect.getfullargspec(self.run).args
        return tuple(name.rstrip("_") for name in asked)

    def messages(self, random, answers):
        """Yield the messages about the answers, case by case."""
        names = inspect.getfullargspec(self.run).kwonlyargs
        for case in self.cases:
            values = case if isinstance(case, tuple) else (case,)
            yield from self.run(random, *answers, **dict(zip(names, values)))


def exercise(*names, points=0, seconds=30, supply=dict, cases=((),)):
    """Make a function an exercise, under several names if a lesson asks for it, too.

    The function draws with its first argument. The others have the names of the
    answers; with a _ behind, where such a function stands in the file already. Behind a
    * stand the names of what a case has: `cases` holds a value, or a tuple of values,
    for each call of the function. seconds: plenty on any machine, for all cases
    together. supply: see Exercise.
    """

    def note(run):
        for name in names:
            EXERCISES[name] = Exercise(
                name, 0 if _of_a_lesson(name) else points, run, seconds, supply, cases
            )
        return run

    return note


def find(name):
    """Import its file and return the exercise `name`: "ps9/fit" or "one_step/sgd"."""
    folder = name.partition("/")[0]
    for file in [folder] if folder in SETS else (*TOPICS, *SETS):
        importlib.import_module(f"course.school.{file}")
    if name not in EXERCISES:
        others = [other for other in EXERCISES if other.startswith(f"{folder}/")]
        raise ValueError(
            f"no exercise is called {name!r}; there are "
            f"{', '.join(others or EXERCISES)}"
        )
    return EXERCISES[name]


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
        raise ValueError(
            f"{name} checks {', '.join(one.answers)}; got {len(answers)} arguments"
        )
    for asked, answer in zip(one.answers, answers):
        if home(answer):
            raise Wrong(
                f"{name} is not checked.\n{asked} is the course's own, from "
                f"{home(answer)}: write yours, in the cell of the exercise."
            )
    seconds = one.seconds * times
    try:
        with limit(seconds), quiet(), placed(one.supply(), answers):
            message = _first(one, answers, times, draws or random.Random())
    except TimeIsOver:
        raise Wrong(
            f"{name} is not checked to the end.\nIt was still at work after "
            f"{seconds} s: is there a loop that does not end? If there is "
            "none, the machine is busy: run the cell again."
        ) from None
    except (NotImplementedError, RankError) as error:
        cause = getattr(error, "cause", type(error).__name__)  # a rank's, or ours
        if cause != "NotImplementedError":
            raise
        if not _of_a_lesson(name):
            raise Wrong(
                f"{name} is not written yet: its cell still raises NotImplementedError."
            ) from None
        print(f"{name}: not written yet. Write it, then run this cell.")
        return None
    return _say(name, one, answers, message)


def _first(one, answers, times, draws):
    """Return the first message about the answers, None if all is right."""
    __tracebackhide__ = True
    before, compared = settings(), 0
    try:
        for _ in range(times):
            for message in one.messages(draws, answers):
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
        return (
            f"got     {type(error).__name__}: {error}\n"
            "wanted  an answer that takes and returns what the exercise says"
        )
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
    return about("torch's settings before and after the answer")(
        name, str(now[name]), str(before[name]), {LEFT[name]: True}
    )


def _say(name, one, answers, message):
    __tracebackhide__ = True
    points = getattr(message, "points", 0)
    if message and not points:
        raise Wrong(f"{name} is not right yet.\n{message}")
    if message:
        print(f"{name} is right in parts.\n{message}")
    else:
        print(f"{name}: right, on inputs drawn at random")
    if _of_a_lesson(name):
        return points or None
    folder = one.name.partition("/")[0]
    known = set(one.supply())  # an answer may use what its set asks for elsewhere
    for other in EXERCISES.values():
        if other.name.startswith(f"{folder}/"):
            known.update(other.answers)
    strange = elsewhere(answers) - known
    if strange:
        print(
            f"Note: it uses {', '.join(sorted(strange))} from another cell. Move "
            "that into the cell of the answer, which is what is graded."
        )
    return points or None


def about(given):
    """Return what compares, for inputs that are `given`, in words.

    compare(what, got, wanted, hints, tolerance, whole): hints is {what it looks like:
    numbers or a truth value}, or pairs; the first that fits is said. They are held to
    `whole`, if `got` is only a part of it. What is compared may be tensors, in lists
    and dicts, too.
    """

    def compare(what, got, wanted, hints=(), tolerance=1e-9, whole=None):
        got, wanted = numbers(got), numbers(wanted)
        if close(got, wanted, tolerance):
            return None
        shown, right = _apart(got, wanted)
        lines = [f"given   {given}; {what}", f"got     {shown}", f"wanted  {right}"]
        whole = got if whole is None else numbers(whole)
        rounded = tolerance < 1e-5 and close(got, wanted, 1e-5)
        pairs = hints.items() if isinstance(hints, dict) else hints
        for text, looks in [*pairs, (ROUNDED, rounded)]:
            if looks is False:
                continue
            if looks is True or close(whole, numbers(looks), tolerance):
                lines.append(f"perhaps {text}")
                break
        return "\n".join(lines)

    return compare


def close(got, wanted, tolerance=1e-9):
    """Return whether `got`, which may be anything, has the shape and numbers wanted."""
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(got, (list, tuple))
            and len(got) == len(wanted)
            and all(close(g, w, tolerance) for g, w in zip(got, wanted))
        )
    if isinstance(wanted, dict):
        return (
            isinstance(got, dict)
            and got.keys() == wanted.keys()
            and all(close(got[key], wanted[key], tolerance) for key in wanted)
        )
    if isinstance(wanted, (bool, str)) or wanted is None:
        return type(got) is type(wanted) and got == wanted
    room = tolerance * max(1, abs(wanted))
    return (
        isinstance(got, (int, float))
        and not isinstance(got, bool)
        and wanted - room <= got <= wanted + room
    )  # NaN, inf: False


def numbers(value):
    """Return a tensor, or lists or a dict of tensors, as nested lists of numbers.

    Numbers of other kinds (numpy's, Fraction, Decimal) become Python's own; what is
    none is told by its type.
    """
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().tolist()
        return numbers(value) if isinstance(value, complex) else value
    if isinstance(value, (list, tuple)):
        return [numbers(part) for part in value]
    if isinstance(value, dict):
        return {str(key): numbers(part) for key, part in value.items()}
    if value is None or type(value) in (bool, str, int, float):
        return value
    if hasattr(type(value), "tolist"):  # numpy's arrays and numbers, without numpy
        return numbers(value.tolist())
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, (Real, Decimal)):
        return float(value)
    return f"a {type(value).__name__}"


def flat(value):
    """Return nested lists, or a number, as one list."""
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in flat(part)]
    return [value]


def unequal(values):
    """Return whether some of the values, one a rank, is not like the first."""
    values = numbers(values)
    return any(not close(value, values[0]) for value in values)


def so_many(count, noun):
    """Return how many there are, in words."""
    return f"{count} {noun}{'s' * (count != 1)}"


def shorten(value, width=300, digits=5):
    """Return `value` as text, numbers to `digits` digits, cut at `width` characters."""
    text = _text(numbers(value), digits)
    return text if len(text) <= width else text[: width - 4] + " ..."


def _text(value, digits, depth=0):
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list):
        most = 40 if depth < 11 else 0  # lists in lists, without an end
        parts = [_text(part, digits, depth + 1) for part in value[:most]]
        if len(value) > most:
            parts.append("...")
        return f"[{', '.join(parts)}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(part, digits)}" for key, part in value.items())
    return str(value)


def _apart(got, wanted):
    """Return two values as texts that differ: with as many digits as that takes."""
    for digits in (5, 9, 17):
        texts = shorten(got, digits=digits), shorten(wanted, digits=digits)
        if texts[0] != texts[1]:
            return texts
    place, one, other = _first_other(got, wanted)
    if not place:
        return shorten(repr(one)), shorten(repr(other))
    one, other = shorten(repr(one), 90), shorten(repr(other), 90)
    return (
        f"{shorten(got, 200)}, at {place} {one}",
        f"{shorten(wanted, 200)}, at {place} {other}",
    )


def _first_other(got, wanted, place=""):
    """Return where two values first differ, as an index, and what stands there."""
    if type(got) is type(wanted) and isinstance(got, (list, dict)):
        if isinstance(got, list):
            keys = range(min(len(got), len(wanted)))
        else:
            keys = [key for key in got if key in wanted]
        for key in keys:
            if not close(got[key], wanted[key], 0):
                return _first_other(got[key], wanted[key], f"{place}[{key!r}]")
        return place, f"{len(got)} of them", f"{len(wanted)} of them"
    return place, got, wanted
