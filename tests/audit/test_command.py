"""`python -m manual_dp audit`: the table, the exit status, the file."""

import json

import pytest

from manual_dp.__main__ import main
from tests.support.broken_training import BROKEN, CLEAN

HERE = __name__


def broken():
    return BROKEN["uneven shards, means"][1]


def clean():
    return CLEAN["torch DDP, 2 ranks, even"]


def no_dict():
    return [1]


def unknown():
    return {**clean(), "speed": 3}


NUMBER = 3


def audited(capsys, *args):
    status = main(["audit", *args])
    return status, capsys.readouterr().out


def test_a_clean_report_is_status_0(capsys):
    status, out = audited(capsys, HERE + ":clean")
    assert status == 0
    assert out.startswith("audit: 3 steps on 2 ranks, float64: clean\n")


def test_a_finding_is_status_1_and_goes_into_the_file(capsys, tmp_path):
    path = tmp_path / "report.json"
    status, out = audited(capsys, HERE + ":broken", "--world-size", "3",
                          "--out", str(path))
    assert status == 1
    assert "on 3 ranks" in out and "uneven-shards" in out and "repair: " in out
    saved = json.loads(path.read_text())
    assert [f["code"] for f in saved["findings"]] == ["uneven-shards"]
    assert saved["world_size"] == 3


@pytest.mark.parametrize("name, words", [
    (HERE, "say package.module:function"),
    ("no_such_module:f", "No module named 'no_such_module'"),
    (HERE + ":nothing", "has no function nothing"),
    (HERE + ":NUMBER", "has no function NUMBER"),
    (HERE + ":no_dict", "must return a dict, got list"),
    (HERE + ":unknown", "unexpected keyword argument 'speed'")])
def test_what_cannot_be_run_is_status_2(capsys, name, words):
    with pytest.raises(SystemExit) as end:
        main(["audit", name])
    assert end.value.code == 2
    assert words in capsys.readouterr().err
