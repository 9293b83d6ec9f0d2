"""`python -m manual_dp audit -- train.py`: scripts as they are, on ranks.

New pythons run the right script and the one that is interrupted; the others are run by
ranks that have imported torch. Two wait for a hang's deadline.
"""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path

import pytest

from manual_dp.audit import audit_script, command
from manual_dp.audit.notes import Run, pack
from manual_dp.audit.summary import BY_HAND, NO_END
from manual_dp.ranks import RankError
from tests.audit.scripts import SCRIPT

ROOT = Path(__file__).parents[2]
START = "rank, world_size ="
GROUP = "dist.init_process_group('gloo')\n" + START
LOOP = "    for i, (X, y) in enumerate(loader):\n"


@pytest.fixture(autouse=True)
def this_package(monkeypatch):
    """Let a script import what this process does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


@pytest.fixture
def script(tmp_path):
    def write(*edits):
        text = SCRIPT
        for old, new in [
            (START, GROUP),
            ("watched = watch(model, optimizer)\n", ""),
            ("watched.finish()\n", ""),
            *edits,
        ]:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


CLEANS_UP = """
import atexit, pathlib
atexit.register(lambda: pathlib.Path(__file__).with_suffix(f".{rank}").unlink())
pathlib.Path(__file__).with_suffix(f".{rank}").touch()
print("a line before it trains")
"""


def test_a_right_script_has_no_finding_and_may_clean_up(script, capfd):
    path = script(
        ("net = Net()\n", CLEANS_UP + "net = Net()\n"),
        ("in range(1):", "in range(10**6):"),  # it is left, and does not end by itself
    )
    report = audit_script([path], show=True)
    assert str(report).startswith(
        "audit: no finding in 3 steps on 2 ranks (differences below 0.01 % unseen)\n"
    )
    assert report.findings == [] and report.look_at == [] and report.steps == 3
    norm = "batch norm's own statistics: 4 rows a rank"
    assert report.not_looked_at == [norm, NO_END, BY_HAND]
    assert report.looked_at[:2] == ["1 optimizer", "7 parameters of 1 model"]
    assert report.looked_at[4].endswith("forwards, as models got them")
    assert [one.name for one in path.parent.iterdir()] == ["train.py"]
    assert "rank 1: a line before it trains" in capfd.readouterr().out


def test_a_broken_script_is_named_with_its_line(script, forked_audit):
    report = audit_script([script(("model(X).transpose", "net(X).transpose"))], steps=2)
    assert [f.code for f in report.findings] == ["not-synchronised"]
    assert (
        report.findings[0].place == "forward at train.py, line 39" and report.steps == 2
    )


@pytest.mark.parametrize(
    "edits, words",
    [
        (
            [
                (
                    LOOP,
                    LOOP
                    + "        if i == 2 and rank == 0:\n            dist.barrier()\n",
                )
            ],
            [
                "rank 0: collective",
                "barrier",
                "train.py, line 38",
                "rank 1: collective",
            ],
        ),
        # rank 0 validates through the wrapper: pytorch 20611
        (
            [(LOOP, LOOP + "        if i == 3 and rank == 0:\n            model(X)\n")],
            ["rank 0: collective", "broadcast"],
        ),
    ],
)
def test_a_hang_names_the_calls_and_ends_within_its_timeout(
    script, forked_audit, edits, words
):
    begin = time.monotonic()
    report = audit_script([script(*edits)], timeout=6)
    assert time.monotonic() < begin + 90
    assert [f.code for f in report.findings][0] in ("hang", "mismatch")
    if report.findings[0].code == "hang":
        assert all(word in report.findings[0].says for word in words), report


@pytest.mark.parametrize(
    "line, words",
    [
        ("os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL"),
        ("raise KeyError('of the script')", "rank 1 raised KeyError: 'of the script'"),
    ],
)
def test_a_rank_that_dies_is_named(script, forked_audit, line, words):
    report = audit_script(
        [
            script(
                (
                    LOOP,
                    LOOP + f"        if i == 3 and rank:\n"
                    f"            import os\n            {line}\n",
                )
            )
        ]
    )
    assert [f.code for f in report.findings] == ["exception"], report
    assert words in report.findings[0].says
    assert "audit/script.py" not in report.details  # frames of ours


def test_a_rank_that_aborts_is_known_by_what_it_printed(tmp_path, forked_audit):
    text = "Received data size doesn't match expected size"
    lines = (
        f'import os, sys\nprint("{text}", file=sys.stderr, flush=True)\nos.abort()\n'
    )
    (tmp_path / "train.py").write_text(lines)
    report = audit_script([tmp_path / "train.py"])
    assert [f.code for f in report.findings] == ["mismatch"]
    assert text in report.details


def test_a_rank_that_dies_after_the_last_step_is_told(tmp_path):
    run = pack(Run([], [], [], [], unjudged="the steps: not judged here"))
    for rank, kind in enumerate(["ended", "killed"]):
        end = {"kind": kind, "text": f"rank {rank} was {kind}", "details": ""}
        Path(tmp_path, f"end-{rank}").write_text(json.dumps(end))
        Path(tmp_path, f"run-{rank}").write_bytes(run)
        Path(tmp_path, f"last-{rank}").touch()
    error = RankError("rank 1 ended", 1, "", "raised")
    report = command._report("train.py", tmp_path, 2, 3, error)
    assert report.findings == []
    assert report.not_looked_at[0] == (
        "why rank 1 was killed after these steps: repeat it with more --steps"
    )


def test_a_script_that_wraps_nothing_is_refused_with_what_to_write(
    tmp_path, forked_audit
):
    (tmp_path / "train.py").write_text("print('nothing to see')\n")
    with pytest.raises(RuntimeError, match="no optimizer's step was heard"):
        audit_script([tmp_path / "train.py"])


@pytest.mark.parametrize(
    "words, error, says",
    [
        ([], FileNotFoundError, "no script is named"),
        (["torchrun", "train.py"], FileNotFoundError, "there is no script torchrun"),
        (["-m", "no_such.train"], FileNotFoundError, "there is no module no_such"),
        (
            ["lesson.ipynb"],
            RuntimeError,
            "is a notebook: write its cells into a script",
        ),
        (["train.sh"], RuntimeError, "is no Python script"),
    ],
)
def test_what_is_no_script_is_refused(words, error, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lesson.ipynb", "train.sh"):
        (tmp_path / name).touch()
    with pytest.raises(error, match=says):
        audit_script(words)


@pytest.mark.parametrize(
    "text, says",
    [
        ("for", "Python cannot run it: invalid syntax"),
        ("from . import model", "say audit -m package.module"),
        ("name = input()", "reads its input, and the audit's ranks have none"),
        (
            "from multiprocessing import Process\n"
            "def work(): pass\n"
            "Process(target=work).start()\n",
            "say watch\\(model, optimizer\\) in each",
        ),
        (
            "import argparse\n"
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--lr', required=True)\n"
            "parser.parse_args()\n",
            "ended with status 2, as for wrong arguments",
        ),
        (
            "raise RuntimeError('Found no NVIDIA driver')",
            "asks for a GPU, and there is",
        ),
        (
            "raise TypeError('BF16 all reduce communication hook required CUDA 11+')",
            "asks for a GPU, and there is",
        ),
    ],
)
def test_what_cannot_be_looked_at_is_told_with_what_to_do(
    text, says, tmp_path, forked_audit
):
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(RuntimeError, match=says):
        audit_script([path])


def test_a_module_that_its_package_lacks_is_named(forked_audit, tmp_path, monkeypatch):
    (tmp_path / "pkg").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="there is no module pkg.trian"):
        audit_script(["-m", "pkg.trian"])


def test_a_module_is_run_from_where_it_is(script, forked_audit, tmp_path, monkeypatch):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    script().rename(package / "train.py")
    monkeypatch.chdir(tmp_path)
    report = audit_script(["-m", "pkg.train"], steps=1)
    assert report.findings == [] and report.steps == 1


def test_a_script_that_ends_early_says_so(script, forked_audit):
    last = "            optimizer.zero_grad()\n"
    report = audit_script([script((last, last + "            raise SystemExit(0)\n"))])
    assert report.findings == [] and report.steps == 1
    assert "2 of 3 steps: the run ended after 1" in report.not_looked_at


def test_the_command_has_a_status(script, forked_audit, capsys):
    parser = ArgumentParser()
    command.add_parser(parser.add_subparsers(), int)
    path = script(("model(X).transpose", "net(X).transpose"))
    args = parser.parse_args(["audit", "--steps", "1", "--", str(path)])
    assert args.command(args) == 1
    assert "not-synchronised" in capsys.readouterr().out
    path = script(("optimizer.step()", "optimizer.step() if rank == 0 else None"))
    args = parser.parse_args(["audit", "--steps", "1", "--", str(path)])
    assert args.command(args) == 2
    assert "audit: nothing was compared on 2 ranks" in capsys.readouterr().out


def test_one_rank_is_compared_with_nothing(script, forked_audit, capsys):
    parser = ArgumentParser()
    command.add_parser(parser.add_subparsers(), int)
    args = ["audit", "--steps", "1", "--world-size", "1", "--", str(script())]
    args = parser.parse_args(args)
    assert args.command(args) == 2
    said = capsys.readouterr().out
    assert "audit: nothing was compared in 1 step on 1 rank" in said
    assert "not looked at     a comparison: one rank has none beside it" in said


def test_if_strict_a_line_to_check_counts(script, forked_audit, capsys):
    parser = ArgumentParser()
    command.add_parser(parser.add_subparsers(), int)
    path = str(script((", y) / 2", ", y)")))
    for words, status in ([], 0), (["--strict"], 1):
        args = parser.parse_args(["audit", *words, "--", path])
        assert args.command(args) == status
        assert "no finding, 1 to check" in capsys.readouterr().out


@pytest.mark.parametrize("words, said", [(["--"], False), ([], True)])
def test_an_option_behind_the_script_is_told_to_be_the_scripts(
    words, said, script, forked_audit, capsys
):
    parser = ArgumentParser()
    command.add_parser(parser.add_subparsers(), int)
    args = parser.parse_args(["audit", *words, str(script()), "--steps=1"])
    args.command(args)
    told = "--steps=1 stands behind the script" in capsys.readouterr().err
    assert told == said


def test_an_interrupt_leaves_no_process_behind(script, interruptible):
    marker = f"marker-{os.getpid()}"
    path = script((LOOP, LOOP + "        import time; time.sleep(60)\n"))
    code = (
        "from manual_dp.audit import audit_script\n"
        f"audit_script(['{path}', '{marker}'])"
    )
    running = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    for _ in range(2000):  # on a busy machine three Pythons import torch for a minute
        if len(ranks(marker)) == 3:
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    assert running.wait(120) != 0
    time.sleep(1)
    assert ranks(marker) == []


def ranks(marker):
    """Return the processes whose command line has the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in path.read_text() and path.parent.name != str(os.getpid()):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def test_what_ranks_print_is_shown_line_by_line(tmp_path, capsys):
    printed = command.Printed(tmp_path, 2)
    with open(tmp_path / "out-1", "w") as out:
        print("half of", end="", file=out, flush=True)
        printed.look()
        assert capsys.readouterr().out == ""
        print(" a line\nno end", end="", file=out, flush=True)
    printed.stop()
    assert capsys.readouterr().out == "rank 1: half of a line\nrank 1: no end\n"
