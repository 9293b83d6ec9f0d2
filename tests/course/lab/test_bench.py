"""The bench: each row runs, and its ratio is ours over theirs."""

import json

import pytest

from course.__main__ import main
from course.lab import bench as page
from course.lab.bench import ROWS, bench


# a new Python takes seconds to import torch: that row is timed with something small
@pytest.mark.parametrize("name", [name for name in ROWS if name != "import"])
def test_a_row_times_both_sides(name, capsys):
    found = bench([name], repeat=1, rows=4, numbers=640)["rows"][name]
    assert len(found["seconds"]) == 1
    assert 0 < found["min"] <= found["median"] <= found["max"]
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == name


def test_an_import_is_timed_in_a_new_python():
    assert 0 < page._import("json")() < 60


def test_a_ratio_is_ours_over_theirs_and_the_first_pair_is_dropped(monkeypatch):
    ours, theirs = iter([9, 1, 2, 6]), iter([1, 2, 2, 2])
    monkeypatch.setitem(
        ROWS,
        "planted",
        (1.5, lambda rows, numbers: (lambda: next(ours), lambda: next(theirs))),
    )
    assert bench(["planted"], 3)["rows"]["planted"] == {
        "median": 1,
        "min": 0.5,
        "max": 3,
        "aim": 1.5,
        "seconds": [[1, 2], [2, 2], [6, 2]],
    }


def test_the_command_asks_for_rows_and_writes_its_report(monkeypatch, tmp_path):
    asked, out = [], tmp_path / "bench.json"
    monkeypatch.setattr(
        page, "bench", lambda *given: asked.append(given) or {"rows": {}}
    )
    assert (
        main(["bench", "--only", "step-2", "ring", "--repeat", "3", "--out", str(out)])
        == 0
    )
    assert main(["bench"]) == 0
    assert asked == [(["step-2", "ring"], 3), (None, 15)]
    assert json.loads(out.read_text()) == {"rows": {}}
