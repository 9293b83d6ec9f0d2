"""Call a function as if each call were made in a process of its own, such as a rank's.

    Afresh   before each call: forget what was remembered, and salt texts anew

A new process has no cache that another one has filled, and Python salts the hash of
texts at its start.
"""

import builtins
import functools
import inspect
from types import FunctionType
from unittest.mock import patch


class Afresh:
    """Call `answer`, a learner's function; what it defines beside it counts too.

    hashed: has a text, or a tuple with one, been hashed by hash()?
    """

    def __init__(self, answer):
        self.answer, self.calls, self.hashed = answer, 0, False
        self.space = getattr(inspect.unwrap(answer), "__globals__", {})
        self.names = dict(self.space)
        things = [answer, inspect.unwrap(answer), *self.names.values()]
        self.kept = [(store, type(store)(store)) for store in _stores(things)]
        self.cached = [thing for thing in things if callable(
            getattr(type(thing), "cache_clear", None))]

    def __call__(self, *args):
        """Return what `answer(*args)` returns, in what looks like a new process."""
        self._forget()
        self.calls += 1
        real = builtins.hash

        def salted(value):
            if not _holds_text(value):
                return real(value)
            self.hashed = True
            return real((self.calls, value))
        with patch.object(builtins, "hash", salted):
            return self.answer(*args)

    def _forget(self):
        for name in self.space.keys() - self.names.keys():
            del self.space[name]
        self.space.update(self.names)
        for store, content in self.kept:
            if store != content:
                store.clear()
                (store.extend if isinstance(store, list) else store.update)(content)
        for thing in self.cached:
            thing.cache_clear()


def _holds_text(value):
    if isinstance(value, (tuple, frozenset)):
        return any(map(_holds_text, value))
    return isinstance(value, (str, bytes))


def _stores(things):
    """Yield the lists, dicts and sets in which these things could keep something."""
    for thing in things:
        parts = [thing]
        if isinstance(thing, FunctionType):
            parts = [vars(thing), *vars(thing).values(), *(thing.__defaults__ or ()),
                     *(thing.__kwdefaults__ or {}).values(),
                     *(cell.cell_contents for cell in thing.__closure__ or ())]
        elif isinstance(thing, functools.partial):
            parts = [*thing.args, *thing.keywords.values()]
        elif "__main__" in (getattr(thing, "__module__", ""), type(thing).__module__):
            parts = list(getattr(thing, "__dict__", {}).values())
        yield from (part for part in parts if type(part) in (list, dict, set))
