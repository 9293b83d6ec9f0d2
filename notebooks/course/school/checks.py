"""Check an answer where it stands: draw inputs, run it, compare, say what is wrong.

exercise   make one of a function: it draws, runs the answer, yields messages
check      what a notebook calls: prints a line, or raises Wrong
Partly     a message that leaves some points
about      compare: None, or what was given, got and wanted, and a guess at why
remember   compare what an answer was handed with what it is after the call
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
import json
import math
import random
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path

import torch

from course.school.answers import (
    Busy,
    TimeIsOver,
    arguments,
    cells,
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
TOPICS = (
    "claims",
    "cost",
    "ddp",
    "memory",
    "messages",
    "scripts",
    "shards",
    "training",
)
RELEASE = Path(__file__).parents[2] / "exercises" / "release"
EXERCISES = {}  # {name: Exercise}, as far as files were imported
SHORT = 160  # characters of a value that is shown whole
MANY = 5  # numbers of a longer one that are shown, from the first that differs on
UNFINISHED = "is not checked to the end"  # on a busy machine; grading knows it by this
ENDLESS = "does not come to an end"  # of an answer; grading knows it by this
ROUNDED = "these agree to five digits: was something rounded, perhaps to float32?"
NO_RETURN = "this is None: was a return left out?"
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
    for each call of the function. seconds: of a processor's time, plenty for all
    cases together. supply: see Exercise.
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
    if not isinstance(name, str):
        raise TypeError(
            'check takes the name of the exercise first, as in check("ps9/fit", fit); '
            f"got {type(name).__name__}"
        )
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
    except Busy as error:
        raise Wrong(f"{name} {UNFINISHED}.\n{error}") from None
    except TimeIsOver as error:
        raise Wrong(f"{name} {ENDLESS}.\n{error}") from None
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
            if held := arguments(trace):
                error.add_note(f"given   {held}")
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
    why = _refused(folder, answers)
    if why:
        print(f"Note: it will get no points, since {why}.")
    return points or None


def _refused(folder, answers):
    """Return why the cells of the answers are not graded, or None; see lint.py."""
    from course.school.lint import refusal

    handed_out = RELEASE / folder / f"{folder}.ipynb"
    if not handed_out.exists():
        return None
    notebook = json.loads(handed_out.read_text(encoding="utf-8"))
    code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    first = "".join(next(code)["source"])
    return next(filter(None, (refusal(cell, first) for cell in cells(answers))), None)


def about(given):
    """Return what compares, for inputs that are `given`, in words.

    compare(what, got, wanted, hints, tolerance, whole): hints is {what it looks like:
    numbers or a truth value}, or pairs; the first that fits is said. Before a hint that
    is simply True, None and numbers that agree to five digits are told so. Hints are
    held to `whole`, if `got` is only a part of it. What is compared may be tensors, in
    lists and dicts, too.
    """

    def compare(what, got, wanted, hints=(), tolerance=1e-9, whole=None):
        got, wanted = numbers(got), numbers(wanted)
        if close(got, wanted, tolerance):
            return None
        shown, right = _apart(got, wanted, tolerance)
        lines = [f"given   {given}; {what}", f"got     {shown}", f"wanted  {right}"]
        whole = got if whole is None else numbers(whole)
        rounded = 0 < tolerance < 1e-5 and close(got, wanted, 1e-5)
        pairs = hints.items() if isinstance(hints, dict) else hints
        hint = _first_hint(pairs, whole, tolerance, rounded)
        hint = hint or _in_general(got, wanted, tolerance)
        if hint:
            lines.append(f"perhaps {hint}")
        return "\n".join(lines)

    return compare


def _first_hint(pairs, got, tolerance, rounded):
    plain = ROUNDED if rounded else NO_RETURN if got is None else None
    for text, looks in pairs:
        if looks is True:
            return plain or text
        if looks is not False and close(got, numbers(looks), tolerance):
            return text
    return plain


def _in_general(got, wanted, tolerance):
    """Return how values differ, as arithmetic shows it, or None."""
    if isinstance(wanted, list) and isinstance(got, list) and len(got) != len(wanted):
        return f"there are {len(got)} of them; {len(wanted)} are wanted"
    ours, right = flat(got), flat(wanted)
    if len(ours) != len(right):
        return "some part has another number of entries than is wanted"
    if not all(type(x) in (int, float) for x in (*ours, *right)):
        return None
    if close(ours, right, tolerance):
        return "the numbers are right; how they are put into lists is not"
    factor = _factor(ours, right, tolerance)
    if factor is not None:
        if len(right) == 1:
            return f"this is {factor:.4g} times the number that is wanted"
        return f"these are {factor:.4g} times the numbers that are wanted"
    if len(right) == 1:
        return None
    if close(sorted(ours), sorted(right), tolerance):
        return "these are the numbers that are wanted, in another order"
    same = sum(close(x, y, tolerance) for x, y in zip(ours, right))
    return f"{same} of {len(right)} numbers are right" if same else None


def _factor(ours, right, tolerance):
    """Return the factor between two lists of numbers, or None if there is none.

    Of single numbers only 2, 3, 4, ..., their inverses and -1 tell anything.
    """
    largest = max(range(len(right)), key=lambda i: abs(right[i]), default=None)
    if largest is None or not right[largest] or not math.isfinite(ours[largest]):
        return None
    factor = ours[largest] / right[largest]
    if not factor or not close(ours, [factor * x for x in right], tolerance):
        return None
    if len(right) > 1 or close(factor, -1.0):
        return factor
    whole = max(abs(factor), abs(1 / factor))
    return factor if whole > 1.5 and close(whole, float(round(whole))) else None


def remember(**things):
    """Note what an answer is handed; return what compares it after the call.

    same(say) yields a message for each of the things that is not as it was. They may be
    numbers, tensors, modules, and lists and dicts of these. Of a tensor the numbers,
    the dtype, the shape and requires_grad count, .grad does not.
    """
    before = {name: _as_it_is(thing) for name, thing in things.items()}

    def same(say):
        for name, thing in things.items():
            now, was = _as_it_is(thing), before[name]
            if _unchanged(now, was):
                yield None
                continue
            now, was = numbers(now), numbers(was)
            hint = (
                "this has to stay as it is: work on a copy, made with clone() or list()"
            )
            if _without_grad(now) == _without_grad(was):
                hint = "requires_grad was switched: leave it as it is"
            yield say(f"{name}, after the call", now, was, {hint: True}, 0)

    return same


def _as_it_is(value):
    """Return all that counts of a value: dicts, lists, numbers, copies of tensors."""
    if isinstance(value, torch.nn.Module):
        tensors = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        return {"training": value.training, **_as_it_is(tensors)}
    if isinstance(value, torch.Tensor):
        return {
            "numbers": value.detach().cpu().clone(),
            "form": f"{value.dtype} of shape {tuple(value.shape)}",
            "requires_grad": value.requires_grad,
        }
    if isinstance(value, (list, tuple)):
        return [_as_it_is(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _as_it_is(part) for key, part in value.items()}
    return numbers(value)


def _unchanged(now, was):
    """Return whether two values of `_as_it_is` are equal; NaN is NaN here."""
    if type(now) is not type(was):
        return False
    if isinstance(now, torch.Tensor):  # its bytes: a list of them would take seconds
        now, was = (part.reshape(-1).view(torch.uint8) for part in (now, was))
        return torch.equal(now, was)
    if isinstance(now, list):
        return len(now) == len(was) and all(map(_unchanged, now, was))
    if isinstance(now, dict):
        same_keys = list(now) == list(was)
        return same_keys and all(_unchanged(now[key], was[key]) for key in now)
    return repr(now) == repr(was)


def _without_grad(value):
    """Return what `_as_it_is` has returned, as text, without requires_grad."""
    if isinstance(value, list):
        return str([_without_grad(part) for part in value])
    if isinstance(value, dict):
        rest = {key: value[key] for key in value if key != "requires_grad"}
        return str({key: _without_grad(part) for key, part in rest.items()})
    return str(value)


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


def is_nan(number):
    """Return whether something is NaN, which `close` calls unlike any number."""
    return number != number


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
    """Return nested lists, and dicts in the order of their keys, as one list."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
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


def _apart(got, wanted, tolerance):
    """Return two values as texts that differ, with as many digits as that takes.

    They are whole, if that is short; else they begin where the values first differ.
    """
    place, got_there, wanted_there = _first_other(got, wanted, tolerance)
    where = f"at {place} " if place else ""
    for digits in (5, 9, 17):
        whole = [shorten(value, digits=digits) for value in (got, wanted)]
        if whole[0] != whole[1] and max(map(len, whole)) <= SHORT:
            return whole
        parts = [
            where + shorten(value, SHORT, digits) for value in (got_there, wanted_there)
        ]
        if parts[0] != parts[1]:
            return parts
    return [where + shorten(repr(value)) for value in (got_there, wanted_there)]


def _first_other(got, wanted, tolerance, place=""):
    """Return where two values first differ, as an index, and what stands from there on.

    Of a list of numbers that are the next few.
    """
    lists = isinstance(got, list) and isinstance(wanted, list)
    dicts = isinstance(got, dict) and isinstance(wanted, dict)
    if not lists and not dicts:
        return place, got, wanted
    shared = range(min(len(got), len(wanted))) if lists else got.keys() & wanted.keys()
    for key in sorted(shared):
        if close(got[key], wanted[key], tolerance):
            continue
        if isinstance(wanted[key], (list, dict)) or dicts:
            return _first_other(got[key], wanted[key], tolerance, f"{place}[{key!r}]")
        if len(wanted) > MANY:
            end = key + MANY
            return f"{place}[{key}:{end}]", got[key:end], wanted[key:end]
        return place, got, wanted
    return (
        place,
        f"{len(got)} of them: {shorten(got, SHORT)}",
        f"{len(wanted)} of them: {shorten(wanted, SHORT)}",
    )
