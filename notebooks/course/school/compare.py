"""Compare what an answer gave with what was wanted, and say what it looks like.

    about      compare: None, or what was given, got and wanted, and a guess at why
    close      are these the numbers that were wanted?
    numbers    tensors, also in lists and dicts, as lists of numbers
    flat       nested lists as one list
    times      how many times too large are these numbers?
    unequal    are the ranks' numbers not all the same?
    shorten    numbers in few characters
    so_many    "1 device", "3 devices"
"""

import math
from decimal import Decimal
from numbers import Integral, Real

import torch

ROUNDED = "these agree to five digits: was something rounded, perhaps to float32?"


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
            if looks is True or looks is not False and close(
                    whole, numbers(looks), tolerance):
                return "\n".join([*lines, f"perhaps {text}"])
        return "\n".join(lines)
    return compare


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
    return float(value) if isinstance(value, (Real, Decimal)) else (
        f"a {type(value).__name__}")


def flat(value):
    """Return nested lists, or a number, as one list."""
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in flat(part)]
    return [value]


def times(got, wanted):
    """Return the factor that makes numbers `got` of `wanted`, NaN if there is none."""
    got, wanted = flat(numbers(got)), flat(numbers(wanted))
    square = sum(w * w for w in wanted)
    factor = sum(g * w for g, w in zip(got, wanted)) / square if square else math.nan
    return factor if close(got, [factor * w for w in wanted]) else math.nan


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
    return text if len(text) <= width else text[:width - 4] + " ..."


def _text(value, digits, depth=0):
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list):
        parts = [_text(part, digits, depth + 1) for part in value[:40 * (depth < 11)]]
        return f"[{', '.join(parts + ['...'] * (len(parts) < len(value)))}]"
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
    return tuple(
        f"{shorten(value, 200)}, at {place} {shorten(repr(part), 90)}" if place else
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
