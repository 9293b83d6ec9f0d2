"""Every hint: each wrong answer is told the hint that is its name.

A set's wrong answers are one test: only together they tell which hints nobody is told.
"""

import re
import sys

import pytest

from course.school import ranks
from course.school.checks import find
from tests.support.school import (
    FILES,
    WRONG,
    define,
    no_limit,  # noqa: F401, a fixture
    soon,
    told,
)

COMMON = "draws"  # its hints are of exercises of several files
TRIED = {}  # file: (hints of COMMON that were tried, all hints that were told)


def hint_of(name, cell, monkeypatch):
    """Return what a wrong answer is told, without a long wait for its ranks."""
    with monkeypatch.context() as patched:
        patched.setattr(ranks, "run_ranks", soon)
        return told(name, define(name, cell))


def kind(hint):
    """Return a hint without its numbers, to know it again."""
    hint = re.sub(
        r"rank \d+'s( twice| \d times)?( \+ rank \d+'s( twice| \d times)?)*",
        "RANKS",
        hint,
    )
    return re.sub(r"-?\d[\d.]*", "N", hint)


@pytest.fixture
def declared(monkeypatch):
    """Return {file: set}, to which hints of sets' files are added as they are tried."""
    found = {file: set() for file in [*FILES, COMMON]}

    def spy(about, hints_of):
        def spying(given):
            compare = about(given)

            def spied(what, got, wanted, hints=(), *args, **kwargs):
                hints = dict(hints)
                # as they are: a rank to which this is sent would import `kind`
                hints_of.update(hints)
                return compare(what, got, wanted, hints, *args, **kwargs)

            return spied

        return spying

    for file in found:
        module = sys.modules[f"course.school.{file}"]
        monkeypatch.setattr(module, "about", spy(module.about, found[file]))
    return found


@pytest.mark.parametrize("file", FILES)
def test_each_hint_is_told_to_the_wrong_answer_of_its_name(file, declared, monkeypatch):
    names = [name for name in WRONG if find(name).run.__module__.endswith(f".{file}")]
    said = {
        (name, hint): hint_of(name, cell, monkeypatch)
        for name in names
        for hint, cell in WRONG[name].items()
    }

    def others():
        return {
            key: hint
            for key, hint in said.items()
            if hint is None or not hint.startswith(key[1])
        }

    for name, hint in others():  # on a busy machine they may need all their seconds
        said[name, hint] = told(name, define(name, WRONG[name][hint]))
    assert others() == {}, (
        "{(exercise, how its hint should begin): the hint that it was told}. The first "
        "that fits is told: change the order, or another hint has the same numbers"
    )
    TRIED[file] = set(map(kind, declared[COMMON])), set(map(kind, said.values()))
    told_to_nobody = set(map(kind, declared[file])) - TRIED[file][1]
    assert told_to_nobody == set(), f"write such an answer into wrong/{file}.py"


def test_each_hint_that_files_have_in_common_is_told_to_a_wrong_answer_of_one():
    if set(TRIED) != set(FILES):
        pytest.skip("it looks at what the tests above have tried, of all files")
    # one template: of tensors, of chunks, of parameters
    tried, told_to_one = (
        {re.sub(r"^.* on rank N", "PART", hint) for hints in sets for hint in hints}
        for sets in zip(*TRIED.values())
    )
    assert tried - told_to_one == set(), "write such an answer into a file of wrong/"
