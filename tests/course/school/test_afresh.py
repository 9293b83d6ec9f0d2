"""Calls as if each were made in a process of its own: nothing is remembered."""

import random
from functools import partial

import pytest

from course.school.ranks import Afresh

CELLS = {
    "a global dict": "cache = {}\ndef answer(x): return cache.setdefault(x, draw())",
    "a new global name": """
def answer(x):
    global cache
    if "cache" not in globals():
        cache = draw()
    return cache
""",
    "a closure": "answer = (lambda cache: lambda x: cache.setdefault(x, draw()))({})",
    "an object": """
class Memory:
    pass
memory = Memory()
memory.cache = {}
def answer(x): return memory.cache.setdefault(x, draw())
"""}


def define(source):
    space = {"draw": partial(random.Random(0).random),
             "__name__": "__main__"}
    exec(source, space)
    return space["answer"]


@pytest.mark.parametrize("way", CELLS)
def test_what_was_remembered_is_forgotten(way):
    plain, afresh = define(CELLS[way]), Afresh(define(CELLS[way]))
    assert plain(1) == plain(1)
    assert len({afresh(1) for _ in range(4)}) == 4


def test_texts_are_salted_anew_and_numbers_are_not():
    texts = Afresh(lambda: hash(("epoch", 3)))
    assert len({texts() for _ in range(4)}) == 4 and texts.hashed
    whole = Afresh(lambda: hash((3, 4)))
    assert {whole() for _ in range(4)} == {hash((3, 4))} and not whole.hashed


def test_what_the_cells_defined_before_the_first_call_stays():
    space = {}
    exec("names = ['a']\ndef answer():\n    names.append('b')\n    return len(names)", space)
    afresh = Afresh(space["answer"])
    assert [afresh(), afresh()] == [2, 2]
