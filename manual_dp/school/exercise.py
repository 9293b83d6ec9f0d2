"""What an exercise is, and how a check says what is wrong.

    Exercise   its name, points, answers; how to draw inputs and how to judge numbers
    Partly     a message for an answer that is right in parts
    close      are these the numbers that were wanted?
    differ     what to tell a learner whose numbers are others
    about      the same, for many numbers of which the same was given
    failed     what to tell one whose ranks came to no numbers
    times      how many times too large are these numbers?
    each       one of the things that every rank returned
    unequal    are the ranks' numbers not all the same?
    so_many    "1 device", "3 devices"
    flat       nested lists as one list

An exercise works in three moves: `draw` makes cases, plain lists, from a random
generator; the function of the same name in run.py of its set calls the learner's code
on a case and returns plain lists; `judge` compares these with the truth. Only the
middle move runs where a learner's code runs, so only it may be seen by that code.
"""

import importlib
import math
import re
from dataclasses import dataclass

from manual_dp.school.tools.plain import numbers
from manual_dp.school.tools.run import folder


@dataclass(frozen=True)
class Exercise:
    """One exercise of a problem set, or of a lesson.

    name: "ps1/allreduce". The function `allreduce` of ps1/run.py runs it. One of a
    lesson, "03/allreduce", has no points, and lessons/run.py runs it.
    draw: draw(random) yields cases, always as many. judge: judge(case, got) yields
    messages for the learner, or None; the first message counts.
    seconds: of work that are plenty for all. answers: the names it asks the learner to
    define, handed to that function. cells: the grade ids of the answer cells to run
    for it, in order. Both are `("allreduce",)` if nothing is said.
    parts: names of other exercises that the answer uses. The course's own, in parts.py
    of its set, take their place, so that each exercise is judged by itself. beside:
    the cells of these exercises, where a helper may stand. inputs: what is drawn, in
    words; a case that holds several has their number as `case.inputs`.
    """

    name: str
    points: int
    draw: object
    judge: object
    seconds: int = 10
    answers: tuple = ()
    cells: tuple = ()
    parts: tuple = ()
    beside: tuple = ()
    inputs: str = "random inputs"

    @property
    def parts_module(self):
        """Return the name of the module that has `parts`."""
        return f"manual_dp.school.{folder(self.name.partition('/')[0])}.parts"

    def __post_init__(self):
        """Fill in what is called as the exercise is."""
        for field in ("answers", "cells"):
            if not getattr(self, field):
                object.__setattr__(self, field, (self.name.partition("/")[2],))


class Partly(str):
    """A message that leaves some `points`, to an answer that is right in parts."""

    points = 0


def exercises(problem_set):
    """Return the exercises of a problem set such as "ps1", in order, by name.

    Or those of a lesson such as "03", which are not graded.
    """
    if problem_set not in SETS + LESSONS:
        raise ValueError(f"no problem set is called {problem_set!r}; "
                         f"there are {', '.join(SETS)}")
    module = importlib.import_module(f"manual_dp.school.{folder(problem_set)}.judge")
    return {exercise.name: exercise for exercise in module.EXERCISES
            if exercise.name.startswith(f"{problem_set}/")}


def questions(problem_set):
    """Return what a person reads in a set: {grade id of the text: points}."""
    if problem_set not in SETS:
        return {}
    module = importlib.import_module(f"manual_dp.school.{problem_set}.judge")
    return getattr(module, "WORDS", {})


def find(name):
    """Return the exercise called `name`, such as "ps1/allreduce" or "03/allreduce"."""
    found = exercises(name.partition("/")[0])
    if name not in found:
        raise ValueError(f"no exercise is called {name!r}; there are "
                         f"{', '.join(found)}")
    return found[name]


SETS = ("ps1", "ps2", "ps3", "ps4", "ps5", "ps6", "ps7", "ps8", "ps9")
LESSONS = ("02", "03", "04", "05", "06", "07", "08", "09", "10", "16", "17", "18",
           "19")
ROUNDED = "these agree to five digits: was something rounded, perhaps to float32?"
WAITED = r"^(?!raised)|gloo"  # what `failed` sees of ranks that waited for others


def close(got, wanted, tolerance=1e-9):
    """Return whether `got`, which may be anything, has the shape and numbers wanted."""
    if isinstance(wanted, (list, tuple)):
        return (isinstance(got, (list, tuple)) and len(got) == len(wanted)
                and all(close(g, w, tolerance) for g, w in zip(got, wanted)))
    if isinstance(wanted, dict):
        return (isinstance(got, dict) and got.keys() == wanted.keys()
                and all(close(got[key], wanted[key], tolerance) for key in wanted))
    if isinstance(wanted, (bool, str)) or wanted is None:
        return type(got) is type(wanted) and got == wanted
    room = tolerance * max(1, abs(wanted))
    return (isinstance(got, (int, float)) and not isinstance(got, bool)
            and wanted - room <= got <= wanted + room)  # NaN, inf: False


def differ(given, got, wanted, hints=(), tolerance=1e-9, whole=None):
    """Return None if `got` is close to `wanted`, else the message for the learner.

    given: the inputs in words. hints: pairs (what it looks like, numbers or a truth
    value); the first that fits is said. whole: what hints are held to, if `got` is a
    part of it. What is compared with may be tensors, in lists too.
    """
    wanted = numbers(wanted)
    if close(got, wanted, tolerance):
        return None
    got_text, wanted_text = _apart(got, wanted)
    lines = [f"given   {given}", f"got     {got_text}", f"wanted  {wanted_text}"]
    whole = got if whole is None else whole
    rounded = tolerance < 1e-5 and close(got, wanted, 1e-5)
    for text, value in [*hints, (ROUNDED, rounded)]:
        if value is True or value is not False and close(
                whole, numbers(value), tolerance):
            return "\n".join([*lines, f"perhaps {text}"])
    return "\n".join(lines)


def about(given):
    """Return `differ` for what was given so; it is told which numbers are compared."""
    return lambda what, *args, **kwargs: differ(f"{given}; {what}", *args, **kwargs)


def failed(given, got, wanted, hints=()):
    """Return None, or the message where `got` holds ranks' error and no results.

    hints: pairs (what it looks like, a pattern); the first whose pattern is found in
    the error's kind and text is said.
    """
    if "error" not in got:
        return None
    text = " ".join(str(got["error"]).split())
    return differ(given, f"no result: {shorten(text, 200)}{shorten(got['place'], 100)}",
                  wanted, [(hint, bool(pattern) and bool(
                      re.search(pattern, f"{got['kind']}: {text}")))
                           for hint, pattern in hints])


def times(got, wanted):
    """Return the factor that makes numbers `got` of `wanted`, NaN if there is none."""
    got, wanted = flat(got), flat(wanted)
    square = sum(w * w for w in wanted)
    factor = sum(g * w for g, w in zip(got, wanted)) / square if square else math.nan
    return factor if close(got, [factor * w for w in wanted]) else math.nan


def each(ranks, name):
    """Return what each of `ranks`, dicts, holds under `name`."""
    return [rank[name] for rank in ranks]


def unequal(values):
    """Return whether some of the values, one a rank, is not like the first."""
    return any(not close(value, values[0]) for value in values)


def shorten(value, width=300, digits=5):
    """Return `value` as text, numbers to `digits` digits, cut at `width` characters."""
    text = _text(value, digits)
    return text if len(text) <= width else text[:width - 4] + " ..."


def so_many(count, noun):
    """Return how many there are, in words."""
    return f"{count} {noun}{'s' * (count != 1)}"


def flat(value):
    """Return nested lists, or a number, as one list."""
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in flat(part)]
    return [value]


def _apart(got, wanted):
    """Return two values as texts that differ: with as many digits as that takes."""
    for digits in (5, 9, 17):
        texts = shorten(got, digits=digits), shorten(wanted, digits=digits)
        if texts[0] != texts[1]:
            return texts
    place, one, other = _first_other(got, wanted)
    return tuple(f"{shorten(value)}, at {place} {part!r}" if place else
                 shorten(repr(part)) for value, part in ((got, one), (wanted, other)))


def _first_other(got, wanted, place=""):
    """Return where two values first differ, as an index, and what stands there."""
    if type(got) is type(wanted) and isinstance(got, (list, dict)):
        keys = range(min(len(got), len(wanted))) if isinstance(got, list) else [
            key for key in got if key in wanted]
        for key in keys:
            if not close(got[key], wanted[key], 0):
                return _first_other(got[key], wanted[key], f"{place}[{key!r}]")
        return place, f"{len(got)} of them", f"{len(wanted)} of them"
    return place, got, wanted


def _text(value, digits, depth=0):
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if depth > 9 and isinstance(value, (list, tuple, dict)):
        return "[...]"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(part, digits, depth + 1) for part in value[:40])
        return f"[{inside}{', ...' * (len(value) > 40)}]"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(part, digits, depth + 1)}"
                         for key, part in value.items())
    return str(value)
