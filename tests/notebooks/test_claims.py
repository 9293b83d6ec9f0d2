"""notebooks/tools/claims.py: the verdicts of lesson 20, decided again.

The program runs on a planted lesson of four cells.
"""

import random

import claims as program  # notebooks/tools, which pyproject.toml puts on the path
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from settings import read

PARAMETERS = "seed = 0  # 0 to 4\nranks = 4  # 3 to 8"
CLAIM = """\
%matplotlib inline
from course.lab.claims import Claim, Verdicts
verdict = Verdicts([Claim("Book", "page 1", "4 < 9", "Is it?"),
                    Claim("Blog", "page 2", "2 is odd", "Is it?")])"""
SAID = """\
    verdict  source  words
  1 true     Book    "4 < 9"
  2 false    Blog    "2 is odd"
checkpoint 20.1: 2 claims
"""


def lesson(first="ranks < 9"):
    """Return a lesson; `first` is how it decides its first claim."""
    decided = (f"verdict(1, ({first}, 'so'), (ranks > 9, 'not so'))\n"
               "verdict(2, (ranks < 0, 'no'), (ranks > 0, 'so'))")
    cells = [new_code_cell(CLAIM, id="setup"),
             new_code_cell(PARAMETERS, id="parameters"),
             new_code_cell(decided, id="decided"),
             new_code_cell("assert ranks == 4\nprint(verdict.table())", id="end",
                           outputs=[new_output("stream", text=SAID)])]
    cells[1].metadata.tags, cells[3].metadata.tags = ["parameters"], ["checkpoint"]
    return new_notebook(cells=cells)


def run(nb, tmp_path, *flags):
    path = tmp_path / "16_try.ipynb"
    nbformat.write(nb, path)
    return program.main(["--lesson", str(path), *flags])


def test_verdicts_are_read_from_the_stored_table():
    assert program.stored(lesson()) == {1: "true", 2: "false"}


def test_a_seed_is_the_runs_and_other_settings_lie_in_their_ranges(tmp_path):
    settings = read(tmp_path / "16_try.ipynb", lesson())
    drawn = [program.draw(settings, seed) for seed in range(20)]
    assert [values["seed"] for values in drawn] == list(range(20))
    ranks = {values["ranks"] for values in drawn}
    assert ranks == {3, 4, 5, 6, 7, 8} and drawn[7] == program.draw(settings, 7)


def test_a_run_decides_with_the_values_that_it_is_given(capsys):
    nb = lesson("ranks == 5")
    assert program.decide(nb, {"seed": 0, "ranks": 5}) == {1: "true", 2: "false"}
    with pytest.raises(ValueError, match="claim 1: both runs answer False"):
        program.decide(nb, {"seed": 0, "ranks": 6})
    assert capsys.readouterr().out == ""


def test_stable_verdicts_are_one_line_a_run_and_status_0(tmp_path, capsys):
    assert run(lesson(), tmp_path, "--seeds", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all("2 verdicts as stored" in line for line in lines)


def test_a_verdict_that_turns_is_named_and_status_1(tmp_path, capsys):
    nb = lesson()
    nb.cells[2].source = "verdict(1, (ranks > 9, 'so'), (ranks < 9, 'not so'))"
    assert run(nb, tmp_path, "--seeds", "1") == 1
    assert ("claim 1: true is stored, now false; claim 2: false is stored, now None"
            in capsys.readouterr().out)


def test_a_claim_that_can_no_longer_be_decided_is_named(tmp_path, capsys):
    assert run(lesson("ranks > 10"), tmp_path, "--seeds", "1") == 1
    assert "ValueError: claim 1: both runs answer False" in capsys.readouterr().out


def test_the_draw_leaves_pythons_own_generator_alone(tmp_path):
    state = random.getstate()
    program.draw(read(tmp_path / "16_try.ipynb", lesson()), 3)
    assert random.getstate() == state
