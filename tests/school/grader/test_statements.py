"""A cell run as in a notebook: IPython's lines, and statements that fail."""

import signal
import textwrap

import pytest

from manual_dp.school.grader.statements import (
    DEFINITIONS,
    Notebook,
    Nothing,
    TooLong,
    plain,
    run_cell,
)


def ran(source, **more):
    """Return the names that a cell leaves, and its first error."""
    space = {}
    space["get_ipython"] = lambda: Notebook(space)
    error = run_cell(plain(source), "<cell x>", space, 5, **more)
    del space["get_ipython"], space["__builtins__"]
    return space, error


@pytest.mark.parametrize("source", [
    "%matplotlib inline\nx = 3", "%%time\nx = 3", "\n\n%%capture out\nx = 3",
    "x = 3\nx?", "x = 3\n?x", "x = 3\nx??", "!ls -l\nx = 3", "x = 3\n%timeit x + 1",
    "%time x = 3", "x = 3\n%time x + 1", "if True:\n    %time pass\n    x = 3"])
def test_lines_of_ipython_do_no_harm(source):
    assert ran(source) == ({"x": 3}, None)


def test_a_commands_lines_are_none_and_other_languages_are_left_out():
    assert ran("files = !ls\nn = len(files)") == ({"files": [], "n": 0}, None)
    assert ran("%%bash\nls") == ({}, None)


@pytest.mark.parametrize("source", ["x = (7\n%4)", "x = 'a?'", "x = 3  # what?"])
def test_python_stays_as_it_is(source):
    assert plain(source) == source


def test_lines_keep_their_numbers():
    _, error = ran("\n\n!ls\nx = 3\n1 / 0\n")
    assert error.__traceback__.tb_next.tb_lineno == 5


def test_what_fails_does_not_keep_the_next_statements_from_running():
    names, error = ran("assert False\nx = 1\nno_such\ny = 2")
    assert names == {"x": 1, "y": 2} and isinstance(error, AssertionError)


def test_a_cell_that_is_not_python_is_refused():
    with pytest.raises(SyntaxError):
        ran("def f(:\n    pass")


def test_only_definitions_run_if_told_so():
    source = "import math\nx = 1\nf = lambda: 2\ndef g(): pass\nx = x + 1 / 0\nprint(y)"
    names, _ = ran(source, only=DEFINITIONS)
    assert set(names) == {"math", "x", "f", "g"}


def test_a_future_of_the_first_line_holds_for_all():
    names, error = ran("from __future__ import annotations\ndef f(x: nowhere): pass")
    assert error is None and names["f"].__annotations__ == {"x": "nowhere"}


def test_what_only_tries_something_out_ends_and_the_clocks_are_put_back():
    before = signal.getsignal(signal.SIGALRM)
    source = plain("while True:\n    pass\nx = 1")
    space = {}
    assert isinstance(run_cell(source, "<cell x>", space, 0.05), TooLong)
    assert space["x"] == 1 and signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_nothing_can_be_used_like_anything():
    space = {"data": Nothing(), "trace": Nothing(), "chart": Nothing()}
    source = textwrap.dedent("""
        train_iter, test_iter = data("digits"), data["x"]
        for X, y in train_iter:
            1 / 0
        with trace.all_reduces() as sizes:
            n = len(sizes)
        assert chart(1, 2) < 1e-12
        text = f"{chart.a.b():.3f}"
    """)
    assert run_cell(source, "<cell x>", space, 5) is None
    assert (space["n"], space["text"]) == (0, "nothing")
