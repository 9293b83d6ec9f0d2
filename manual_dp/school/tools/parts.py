"""Have an answer use the course's own parts, not the answers to other exercises."""

import inspect
from contextlib import contextmanager

MISSING = object()


@contextmanager
def placed(parts, answers):
    """Put `parts` where `answers` find them by name, while the block runs.

    parts: {name: function or class}. A name that the answer's own cell defines stays.
    """
    changed = []
    for answer in answers:
        function = _function(answer)
        space = getattr(function, "__globals__", {})
        for name, part in parts.items():
            before = space.get(name, MISSING)
            if before is MISSING or _file(before) != _file(answer):
                changed.append((space, name, before))
                space[name] = part
    try:
        yield
    finally:
        for space, name, before in reversed(changed):
            if before is MISSING:
                del space[name]
            else:
                space[name] = before


def _function(thing):
    """Return the function that `thing` is, or one that a class or an object has."""
    if inspect.isfunction(inspect.unwrap(thing)):
        return inspect.unwrap(thing)
    home = thing if isinstance(thing, type) else type(thing)
    return next(filter(inspect.isfunction, map(_bare, vars(home).values())), None)


def _bare(member):
    return inspect.unwrap(getattr(member, "__func__", member))


def _file(thing):
    """Return the file, or the cell, in which `thing` is defined."""
    return getattr(getattr(_function(thing), "__code__", None), "co_filename", None)
