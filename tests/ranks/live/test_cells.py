"""What a rank does with a cell: its last value, its names, its text."""

import pytest

from manual_dp.ranks import RankError, Ranks

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture(scope="module")
def one():
    with Ranks(1) as ranks:
        yield ranks


@pytest.mark.parametrize(
    "code, value",
    [
        ("", None),
        ("x = 1", None),
        ("x = 1\nx + 1  # and a comment", 2),
        ("if True:\n    5", None),
        ("'''a\nb'''", "a\nb"),
        ("__name__", "__main__"),
        ("n = 2\n[n * i for i in range(3)]", [0, 2, 4]),
        ("lambda: 1", "called"),
    ],
)
def test_the_last_expression_is_the_cells_value(one, code, value):
    [got] = one.run(code)
    assert ("called" if callable(got) and got() == 1 else got) == value


def test_the_source_of_a_function_can_be_shown(one):
    one.run("def f():\n    return 1")
    assert one.run("import inspect\ninspect.getsource(f)") == ["def f():\n    return 1"]


def test_each_line_of_a_traceback_is_of_a_cell_or_of_what_it_calls():
    with Ranks(1) as ranks, pytest.raises(RankError) as caught:
        ranks.run("def f():\n    return 1 / 0\nf()")
    lines = caught.value.details.splitlines()
    assert "           ~~^~~" in lines
    lines = [
        line for line in lines if line.strip("~^ ")
    ]  # Python 3.13 marks calls, too
    assert lines[1:5] == [
        '  File "run 1", line 3, in <module>',
        "    f()",
        '  File "run 1", line 2, in f',
        "    return 1 / 0",
    ]


def test_a_value_that_is_shown_is_not_sent(capsys):
    with Ranks(2) as ranks:
        assert ranks.run_cell("rank", "cell 1", show=True) == [None, None]
        assert capsys.readouterr().out == "rank 0: 0\nrank 1: 1\n"
        assert ranks.run_cell("rank", "cell 2", show=False) == [None, None]
        assert ranks.run_cell("object()", "cell 3", [1], show=True) == [None]
    assert capsys.readouterr().out == "rank 1: <object object>\n"
