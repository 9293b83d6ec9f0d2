import pytest

from course.__main__ import main
from tests.support.commands import refuses


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "the following arguments are required: COMMAND"),
        (["compare", "--world-size", "2", "0"], "--world-size: '0' is no whole number"),
        (["points", "ps99"], "there is no ps99.ipynb"),
        (["compare", "--steps", "0"], "--steps: '0' is no whole number"),
        (["compare", "--batch-size", "-6"], "--batch-size: '-6' is no whole number"),
        (["compare", "--out", "."], "--out: '.' is no file in an existing folder"),
        (["compare", "--world-size", "65"], "world_size must be at most 64 and"),
        (["bench", "--repeat", "0"], "--repeat: '0' is no whole number"),
        (["bench", "--out", "."], "--out: '.' is no file in an existing folder"),
    ],
)
def test_a_wrong_argument_is_one_line(capsys, arguments, message):
    line = refuses(main, capsys, *arguments)
    assert line.startswith("python -m course") and ": error: " in line
    assert message in line


def test_a_row_that_bench_does_not_know_is_one_line(capsys):
    assert "no row is called 'speed'" in refuses(
        main, capsys, "bench", "--only", "speed"
    )
