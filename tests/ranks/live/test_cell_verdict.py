"""The words for what happened in a cell."""

import linecache

import pytest

from manual_dp.ranks.live.cell_verdict import all_wait, cell_line, outcome_of_cell

LIBRARY = "/site-packages/torch/distributed/distributed_c10d.py"
RECV = f'''  File "{LIBRARY}", line 2500 in recv
  File "{LIBRARY}", line 80 in wrapper
  File "cell 3", line 2 in exchange
  File "cell 4", line 1 in <module>
  File "/manual_dp/ranks/live/cells.py", line 90 in _run_cell
'''
SLEEP = '  File "cell 3", line 1 in <module>\n'


@pytest.fixture
def cell():
    lines = ["x = 1\n", "    dist.recv(x, 1)\n", "y = [" + "1, " * 40 + "]\n"]
    linecache.cache["cell 3"] = 100, None, lines, "cell 3"
    yield
    del linecache.cache["cell 3"]


def test_a_cell_line_is_a_cell_a_line_and_its_text(cell):
    assert cell_line("cell 3", 2) == "cell 3, line 2: dist.recv(x, 1)"
    assert cell_line("cell 3", 3) == "cell 3, line 3: y = [" + "1, " * 20 + "1,..."
    assert len(cell_line("cell 3", 3)) == len("cell 3, line 3: ") + 70


@pytest.mark.parametrize(
    "stacks, answer",
    [
        ({0: ("S", RECV), 1: ("S", RECV)}, True),
        ({0: ("S", RECV), 1: ("S", SLEEP)}, False),
        ({0: ("R", RECV)}, False),
        ({0: ("T", "")}, False),
        ({0: ("S", "")}, False),
    ],
)
def test_a_rank_waits_if_it_sleeps_in_a_collective(stacks, answer):
    assert all_wait(stacks) == answer


@pytest.mark.parametrize(
    "state, text, said",
    [
        ("S", SLEEP, "rank 1 had not finished (cell 3, line 1: x = 1)"),
        ("R", SLEEP, "rank 1 was running (cell 3, line 1: x = 1)"),
        ("T", "", "rank 1 was stopped"),
        ("S", "", "rank 1 did not answer"),
    ],
)
def test_who_does_not_wait_holds_up_the_others(state, text, said, cell, tmp_path):
    job = {"world_size": 4, "ranks": [0, 1], "timeout": 3}
    found = outcome_of_cell(str(tmp_path), job, {}, {0: ("S", RECV), 1: (state, text)})
    first, waits, holds, _ = str(found).splitlines()
    assert (first, found.rank) == ("time was up after 3 s: rank 1 had not finished", 1)
    assert (waits[:22], holds) == ("rank 0 waited in recv ", said)
