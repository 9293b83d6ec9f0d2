"""`python -m manual_dp audit`: the table, the exit status, the file."""

import json

import pytest
import torch
import torch.distributed as dist

from manual_dp.__main__ import main
from manual_dp.audit import Report
from tests.support.broken_training import (
    BROKEN,
    CLEAN,
    average,
    case,
    mean_loss,
    net,
    shard,
)

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


def not_all():
    def only_on_two(model, *batch):
        if dist.get_world_size() == 1:
            raise ValueError("needs two")
        model.zero_grad()
        mean_loss(model, *map(shard, batch)).backward()
        average(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return case(net, only_on_two)


def raises():
    return BROKEN["an exception on rank 1"][1]


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


def test_what_could_not_be_checked_is_status_3(capsys):
    status, out = audited(capsys, "--steps", "1", HERE + ":not_all")
    assert status == 3
    assert out.startswith("audit: 1 step on 2 ranks, float64: no finding, but not all")
    assert "not checked" in out and "needs two" in out


def test_a_traceback_is_printed_below_the_table(capsys):
    status, out = audited(capsys, HERE + ":raises", "--timeout", "40")
    assert status == 1 and "KeyError: 'no such file on rank 1'" in out
    assert "Traceback (most recent call last)" in out and "in raising" in out


def test_options_stand_before_a_script_and_its_own_behind_it(monkeypatch, capsys):
    asked = {}

    def script(words, **options):
        asked.update(options, words=words)
        return Report([], [], 3, 2)
    monkeypatch.setattr("manual_dp.audit.audit_script", script)
    status, out = audited(capsys, "--steps", "2", "--world-size", "3", "--", "my/train.py",
                          "--steps", "7", "-v", "x.py")
    assert asked == {"words": ["my/train.py", "--steps", "7", "-v", "x.py"],
                     "steps": 2, "world_size": 3, "alone": True}
    assert status == 0 and out == "audit: 2 steps on 3 ranks, float64: clean\n"


@pytest.mark.parametrize("words, says", [
    (["--", "nowhere.py"], "there is no script nowhere.py"),
    ([HERE + ":clean", "more"], "takes no more"), (["--steps", "0"], "no whole number"),
    ([], "the following arguments are required")])
def test_words_that_do_not_fit_are_status_2(capsys, words, says):
    with pytest.raises(SystemExit) as end:
        main(["audit", *words])
    assert end.value.code == 2 and says in capsys.readouterr().err


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
