"""notebooks/tools/claims.py: the verdicts of lesson 20, decided again.

The program runs on a planted lesson of four cells.
"""

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


def lesson(first="ranks < 9", control="ranks > 9"):
    """Return a lesson that decides its first claim by these two runs."""
    decided = (f"verdict(1, ({first}, 'so'), ({control}, 'not so'))\n"
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


def test_settings_are_drawn_from_their_ranges_the_same_for_the_same_seed(tmp_path):
    settings = read(tmp_path / "16_try.ipynb", lesson())
    drawn = [program.draw(settings, seed) for seed in range(20)]
    assert [values["seed"] for values in drawn] == list(range(20))
    ranks = {values["ranks"] for values in drawn}
    assert ranks == {3, 4, 5, 6, 7, 8} and drawn[7] == program.draw(settings, 7)


@pytest.mark.parametrize("runs, said, status", [
    (["ranks < 9", "ranks > 9"], "2 verdicts as stored", 0),
    (["ranks > 9", "ranks < 9"], "claim 1: true is stored, now false", 1),
    (["ranks > 9", "ranks > 9"], "ValueError: claim 1: both runs answer False", 1)])
def test_a_verdict_that_turns_or_cannot_be_decided_is_named(
        tmp_path, capsys, runs, said, status):
    assert run(lesson(*runs), tmp_path, "--seeds", "1") == status
    assert said in capsys.readouterr().out
