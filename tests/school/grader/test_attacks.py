"""Answers that attack: none gains a point, touches another process, leaves a thing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manual_dp.school.grader import jail, landlock
from tests.support.wrong.attacks import ATTACKS, FORGED, GREED

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.xdist_group("attacks")  # they are all tried once
# what only their own namespaces keep them from
ENCLOSED = pytest.mark.skipif(not jail.available() or not landlock.available(),
                              reason="this system has no namespaces, or no Landlock")
OWN = {"all open files", "a sparse file", "memory in messages under way"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what every attack did, by its name; tried one after another."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "temporary").mkdir()
    done = subprocess.run(
        # a shell that waits: the grader's parent, which is attacked too
        ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m",
         "tests.support.attacked"], cwd=folder, timeout=1500, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                        "TMPDIR": str(folder / "temporary")})
    assert (done.returncode, done.stderr) == (0, "")
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


def test_all_are_tried(found):
    assert len(ATTACKS) >= 100 and list(found) == list(ATTACKS)


@ENCLOSED
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_touches_a_process_or_leaves_anything(found, name):
    assert (found[name]["touched"], found[name]["left"]) == ([], [])


@ENCLOSED
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in OWN])
def test_an_attack_gets_what_the_answer_beside_it_deserves(found, name):
    assert (found[name]["message"] is None) == ATTACKS[name][2]


@ENCLOSED
@pytest.mark.parametrize("name, words", {
    "memory of three children": "its processes took too much memory, more than 2 GiB",
    "memory in files without a name": "took too much memory, more than 2 GiB",
    "shared memory of children": "took too much memory, more than 2 GiB",
    "three thousand threads": "it started too many threads, more than 256",
    "threads of many children": "it started too many threads, more than 256"}.items())
def test_who_takes_too_much_is_told_of_what(found, name, words):
    assert name in GREED and words in found[name]["message"]


@pytest.mark.parametrize("name, words", {
    "found in a caller's frame": "cannot use f_back, f_globals while it is graded",
    "the stack, by torch": "cannot use _getframe while it is graded",
    "the stack, by inspect.stack": "cannot use _getframe while it is graded",
    "memory, by ctypes": "cannot use ctypes.dlsym while it is graded",
    "the constructor replaced": "cannot replace torch.tensor while it is graded",
}.items())
def test_who_reaches_for_the_grader_is_told_so(found, name, words):
    assert name in FORGED and words in found[f"forged: {name}"]["message"]
