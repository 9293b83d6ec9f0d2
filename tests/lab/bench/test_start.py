"""Imports and first launches are timed in a Python of their own."""

import subprocess
import sys

from manual_dp.lab.bench import ROWS, bench
from manual_dp.lab.bench import start as page


def test_imports_are_timed_in_processes_of_their_own(monkeypatch):
    check_output, codes = subprocess.check_output, []

    def quick(command, cwd):
        python, flag, code = command
        assert python == sys.executable and (cwd / "manual_dp").is_dir()
        codes.append(code)
        name = "manual_dp" if "manual_dp" in code else "torch"
        return check_output([python, flag, code.replace(name, "json")], cwd=cwd)
    monkeypatch.setattr(subprocess, "check_output", quick)
    row = bench(["import"], repeat=1)["rows"]["import"]
    assert row["min"] > 0
    assert ["manual_dp" in code for code in codes] == [True, False, False, True]
    assert ["import torch" in code for code in codes] == [False, True, True, False]


def test_a_launch_is_divided_by_one_second(monkeypatch):
    asked = []
    monkeypatch.setattr(page, "run_ranks", lambda *given: asked.append(given))
    what, ours, theirs = ROWS["launch-8"][0](None)
    assert what.endswith("in seconds") and theirs() == 1.0
    assert 0 <= ours() < 60 and asked == [(int, 8)]


def test_the_first_launch_is_timed_in_a_python_of_its_own(monkeypatch):
    asked = []

    def check_output(command, cwd):
        asked.append(command)
        assert (cwd / "manual_dp").is_dir()
        return b"1.25\n"
    monkeypatch.setattr(subprocess, "check_output", check_output)
    what, ours, theirs = ROWS["launch-first"][0](None)
    assert what.endswith("in seconds") and (ours(), theirs()) == (1.25, 1.0)
    [(python, flag, code)] = asked
    begin, end = code.split("t = time.time(); ")
    assert python == sys.executable and "import run_ranks" in begin
    assert end == "run_ranks(int, 2); print(time.time() - t)"
