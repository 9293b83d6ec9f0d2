"""The audit stays small: a new case changes a rule, or is said to be not checked."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import manual_dp.audit
from manual_dp.audit.notes import Run, Update
from manual_dp.audit.report import WORDS

FOLDER = Path(manual_dp.audit.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
BUDGET = 2350  # lines of all files


def test_the_package_keeps_its_budget():
    counts = {path.name: len(path.read_text().splitlines()) for path in FILES}
    assert sum(counts.values()) <= BUDGET, counts
    assert max(counts.values()) <= 300, counts


def test_there_are_few_codes_and_few_fields():
    assert len(WORDS) <= 26
    assert len(dataclasses.fields(Update)) <= 26
    assert len(dataclasses.fields(Run)) <= 26


def test_functions_are_short_and_simple():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, (path.name, node.name)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901",
         "--config", "lint.mccabe.max-complexity=15", FOLDER],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_code_is_given_by_some_rule():
    source = "".join(path.read_text() for path in FILES if path.name != "report.py")
    assert [code for code in WORDS if f'"{code}"' not in source] == []
