"""What `make test` leaves to `make test-all`, and how that is chosen."""

import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.support.long import LONG, SHARED, WHOLE, choose, left, name_of, read

TESTS = Path(__file__).parent
DEFINED = {str(path.relative_to(TESTS).with_suffix("")):
           re.findall(r"^def (test_\w+)", path.read_text(), re.M)
           for path in TESTS.rglob("test_*.py")}


def test_all_that_is_listed_is_there():
    names = {f"{file}::{name}" for file, tests in DEFINED.items() for name in tests}
    assert LONG.keys() - names - set(SHARED) == set()
    assert set(SHARED) <= DEFINED.keys() and set(WHOLE) <= names - LONG.keys()


def test_of_every_file_something_is_run_but_of_those_that_share_what_is_dear():
    silent = [file for file, tests in DEFINED.items()
              if all(LONG.get(f"{file}::{name}") == 0 for name in tests)]
    assert silent == []


def items(*nodeids):
    return [SimpleNamespace(nodeid=f"tests/{nodeid}") for nodeid in nodeids]


def test_a_name_is_that_of_the_test_and_its_file():
    assert name_of("tests/audit/test_rows.py::test_a[x.py::y-1]") == "audit/test_rows::test_a"
    assert name_of("notebooks/00.ipynb::Cell 3") == "notebooks/00.ipynb::Cell 3"


def test_of_a_family_the_first_and_every_so_many_are_run(monkeypatch):
    monkeypatch.setitem(LONG, "test_a::test_some", 3)
    monkeypatch.setitem(LONG, "test_a::test_none", 0)
    monkeypatch.setitem(LONG, "test_b", 0)
    some = items(*(f"test_a.py::test_some[{i}]" for i in range(7)))
    none = items("test_a.py::test_none", "test_b.py::test_any[1]", "test_b.py::test_more")
    rest = items("test_a.py::test_other[0]", "test_c.py::test_none")
    assert left([*rest, *some, *none]) == [*some[1:3], *some[4:6], *none]


def test_slow_tests_are_left_out_and_families_speak_by_some_of_their_cases():
    chosen = choose({
        "a::quick": [0.2], "a::slow": [0.4], "a::few_slow": [0.1] * 6 + [3.0],
        "a::slow_family": [0.1] * 7 + [9.0], "a::quick_family": [0.1] * 100,
        "a::large_family": [0.2] * 21, "a::small_family": [0.2] * 9,
        WHOLE[0]: [0.4] * 17})
    assert {name: every for name, every in chosen.items() if name not in SHARED} == {
        "a::slow": 0, "a::few_slow": 0, "a::slow_family": 8, "a::quick_family": 3,
        "a::large_family": 2}


def test_a_file_of_slow_tests_keeps_the_quickest_and_a_shared_one_none():
    chosen = choose({"a::one": [2.0], "a::two": [1.0, 1.5], "a::three": [9.0],
                     f"{SHARED[0]}::one": [0.1]})
    assert chosen == {**dict.fromkeys(SHARED, 0), "a::one": 0, "a::two": 2, "a::three": 0}


def test_times_are_read_from_a_report(tmp_path):
    (tmp_path / "all.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.course.lab.test_a" name="test_b[x[0]]" '
        'time="0.5"/><testcase classname="tests.course.lab.test_a" name="test_b[y]" time="1"/>'
        '</testsuite></testsuites>')
    assert read(tmp_path / "all.xml") == {"lab/test_a::test_b": [0.5, 1.0]}


def test_quick_runs_what_is_not_left_out():
    def collected(*options):
        words = ["-m", "pytest", "--collect-only", "-q", *options, "tests/test_equivalence.py"]
        return subprocess.run([sys.executable, *words], cwd=TESTS.parent, check=True,
                              capture_output=True, text=True).stdout
    name = "test_a_hundred_steps_on_replicas_are_those_of_one_device"
    every = LONG[f"test_equivalence::{name}"]
    cases = collected().count(name)
    assert cases >= every > 1 and collected("--quick").count(name) == math.ceil(cases / every)
    assert collected("--quick").count("test_a_planted_bug_is_seen[") == 17
