"""Answers that attack: none gains a point, touches another process, leaves a thing.

Every fourth is tried, and those that a test names; all with `--all-programs` (`make
audits`). Without namespaces they would hit what runs this test: then none is tried.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manual_dp.school.grader import jail, landlock
from tests.conftest import programs
from tests.support.wrong.attacks import ATTACKS, FORGED, GREED

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not jail.available() or not landlock.available(),
                                reason="this system has no namespaces, or no Landlock")
OWN = {"all open files", "a sparse file", "memory in messages under way"}
# who takes too much is told of what
TOO_MUCH = {
    "memory of three children": "its processes took too much memory, more than 2 GiB",
    "memory in files without a name": "took too much memory, more than 2 GiB",
    "shared memory of children": "took too much memory, more than 2 GiB",
    "three thousand threads": "it started too many threads, more than 256",
    "threads of many children": "it started too many threads, more than 256"}
# who reaches for the grader is told so
REACHED = {
    "found in a caller's frame": "cannot use f_back, f_globals while it is graded",
    "the stack, by torch": "cannot use _getframe while it is graded",
    "the stack, by inspect.stack": "cannot use _getframe while it is graded",
    "memory, by ctypes": "cannot use ctypes.dlsym while it is graded",
    "the constructor replaced": "cannot replace torch.tensor while it is graded"}


def tried(config):
    """Return the names of the attacks that are tried, in their order."""
    some = {*programs(config, ATTACKS), *TOO_MUCH, *(f"forged: {name}" for name in REACHED)}
    return [name for name in ATTACKS if name in some]


def pytest_generate_tests(metafunc):
    if "attack" in metafunc.fixturenames:
        metafunc.parametrize("attack", tried(metafunc.config))


@pytest.fixture(scope="module")
def found(tmp_path_factory, pytestconfig):
    """Return what every attack did, by its name; tried one after another."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "temporary").mkdir()
    done = subprocess.run(
        # a shell that waits: the grader's parent, which is attacked too
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m",
         "tests.support.attacked", *tried(pytestconfig)], cwd=folder, timeout=1500,
        capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
             "TMPDIR": str(folder / "temporary")})
    assert (done.returncode, done.stderr) == (0, "")
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


def test_they_are_many_and_all_of_these_are_tried(found, pytestconfig):
    assert len(ATTACKS) >= 100 and list(found) == tried(pytestconfig)


def test_no_attack_touches_a_process_or_leaves_anything(found, attack):
    assert (found[attack]["touched"], found[attack]["left"]) == ([], [])


def test_an_attack_gets_what_the_answer_beside_it_deserves(found, attack):
    assert attack in OWN or (found[attack]["message"] is None) == ATTACKS[attack][2]


@pytest.mark.parametrize("name", TOO_MUCH)
def test_who_takes_too_much_is_told_of_what(found, name):
    assert name in GREED and TOO_MUCH[name] in found[name]["message"]


@pytest.mark.parametrize("name", REACHED)
def test_who_reaches_for_the_grader_is_told_so(found, name):
    assert name in FORGED and REACHED[name] in found[f"forged: {name}"]["message"]
