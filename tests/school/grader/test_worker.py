"""What a graded answer can see, and what becomes of the process that runs it."""

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

import manual_dp
from manual_dp.school.exercise import find
from manual_dp.school.grader import child
from manual_dp.school.grader import worker as page
from manual_dp.school.grader.child import GIVEN
from manual_dp.school.grader.landlock import available
from manual_dp.school.grader.limits import Doubtful
from manual_dp.school.grader.worker import Worker, grade
from tests.support.answers import EXERCISES, READY, cells_of

COURSE = Path(manual_dp.__file__).parent
# Looks everywhere for answers: on the disk, in modules and what is in them, in the
# environment, in other processes. Says what it found in the text of an error. That it
# cannot look into the stack and among all objects: test_seal.py.
SEARCH = '''
import json, os, re, sys, types
found = []

def interesting(text):
    return [mark for mark in MARKS if mark in text]

def allreduce(data):
    for top in PLACES:
        for place, folders, names in os.walk(top):
            for name in names:
                if name.endswith((".py", ".ipynb", ".pyc")):
                    try:
                        with open(os.path.join(place, name), errors="ignore") as file:
                            found.extend(("file", name, MARKS.index(m))
                                         for m in interesting(file.read()))
                    except OSError:
                        pass
    found.extend(("module", name, "") for name in sys.modules
                 if name.startswith("manual_dp") and name not in OPEN)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("manual_dp"):
            for thing in list(vars(module).values()):
                home = getattr(thing, "__module__", "") or ""
                if home.startswith("manual_dp") and home not in OPEN:
                    found.append(("function", home, str(thing)[:40]))
                for text in (thing, getattr(thing, "__doc__", "")):
                    if isinstance(text, str) and interesting(text):
                        found.append(("text", module.__name__, text[:20]))
    for key, value in os.environ.items():
        found.extend(("environment", key, m) for m in interesting(key + value))
    try:
        for number in os.listdir("/proc"):
            if number.isdigit() and int(number) != os.getpid():
                with open(f"/proc/{number}/environ", "rb") as file:
                    file.read()
                found.append(("process", "other", ""))
    except OSError:
        pass
    raise ValueError(json.dumps([f"{a} {b} {c}" for a, b, c in sorted(set(found))][:8]))
'''
OPEN = ["manual_dp", "manual_dp.files", "manual_dp.files.vision",
        "manual_dp.devices", "manual_dp.lenet", "manual_dp.ranks",
        "manual_dp.ranks.launch", "manual_dp.ranks.launch.nursery",
        "manual_dp.ranks.launch.processes", "manual_dp.ranks.launch.rank",
        "manual_dp.ranks.launch.verdict",
        "manual_dp.school",
        "manual_dp.school.checks",
        *(name for folder, files in GIVEN.items() for name in (
            f"manual_dp.school.{folder}",
            *(f"manual_dp.school.{folder}.{file}" for file in files)))]
# what runs and measures answers, which they cannot import
BESIDE = [f"manual_dp.school.grader.{file}" for file in child.BESIDE]
# what stands in solutions, checks and named wrong answers, and nowhere else
MARKS = ["### BEGIN" " SOLUTION", "requires_grad_() is missing: " "backward would",
         "puts the sum into " "the list", "Replace every tensor by " "the sum over ranks"]
# whose functions a graded process holds: none knows an answer
FILES = [f"{COURSE}/{name}.py" for name in (
    "files/vision", "devices", "lenet", *(f"ranks/launch/{name}" for name in (
        "__init__", "nursery", "processes", "rank", "verdict")),
    "school/grader/child", "school/grader/ranks",
    *(f"school/grader/{name}" for name in child.BESIDE),
    *(f"school/{folder}/{file}" for folder, files in GIVEN.items() for file in files))]


@pytest.fixture
def fresh():
    worker = Worker()
    yield worker
    worker.close()


def answer_of(worker, source, **changes):
    """Run `source` as the answer to ps1/allreduce; return the message."""
    exercise = replace(find("ps1/allreduce"), **changes)
    return grade(worker, exercise, {"allreduce": source})


def search(worker, places):
    names = {"MARKS": MARKS, "PLACES": places, "OPEN": OPEN, "FILES": FILES,
             "COURSE": str(COURSE)}
    start = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    message = answer_of(worker, start + SEARCH, seconds=60)
    return json.loads(re.search(r"ValueError: (\[.*\])", message)[1])


PLACES = [str(COURSE), str(EXERCISES.parent), str(Path(__file__).parent), "/proc/self"]


@pytest.mark.skipif(not available(), reason="this system cannot hide files")
def test_no_answer_can_be_read_from_inside_a_graded_process(worker):
    assert search(worker, PLACES) == []


@pytest.mark.skipif(not available(), reason="this system cannot hide files")
def test_where_files_are_not_hidden_the_same_search_finds_answers(fresh, monkeypatch):
    monkeypatch.setattr(page, "readable", lambda: ["/"])
    assert "file allreduce.py 3" in search(fresh, [f"{COURSE}/"])
    assert "file judge.py 1" in search(fresh, [f"{COURSE}/school/ps1"])
    assert "file ps1.ipynb 0" in search(fresh, [f"{EXERCISES}/source/ps1"])


@pytest.mark.skipif(not available(), reason="this system cannot hide files")
def test_the_instructors_files_cannot_be_read(worker, tmp_path):
    (tmp_path / "grades.csv").write_text("anna,15\n")
    for path in (tmp_path / "grades.csv", Path(__file__), Path.home()):
        message = answer_of(worker, f"import os\nos.stat({str(path)!r})\n"
                                    f"os.listdir({str(path)!r}) if os.path.isdir("
                                    f"{str(path)!r}) else open({str(path)!r})")
        assert "PermissionError" in message


def test_given_names_no_solution():
    # what a graded process has loaded: no docstring, comment or code of a solution
    given = "\n".join(Path(path).read_text() for path in FILES)
    assert all(words in given for words in ("def run(", "class RankError"))
    for problem_set in READY:
        for source in cells_of(problem_set).values():
            for part in re.findall(r"### BEGIN SOLUTION\n(.*?)### END", source, re.S):
                body = [line.strip() for line in part.splitlines()]
                long = [line for line in body if len(line) > 45]
                assert [line for line in long if line in given] == []


def test_given_imports_nothing_that_a_graded_process_has_not():
    seen = set()
    for path in map(Path, FILES):
        found = re.findall(r"(?:from|import) (manual_dp[.\w]*)", path.read_text())
        assert set(found) <= {*OPEN, *BESIDE, "manual_dp.school.grader"}, path.name
        seen |= set(found)
    assert "manual_dp.ranks" in seen


# messages

ON_RANKS = """import torch.distributed as dist
from manual_dp.ranks import run_ranks
def allreduce(data):
    run_ranks(work, 2)
def work():
"""


@pytest.mark.parametrize("source, message", [
    ("def allreduce(data):\n    helper(data)", "put what an answer needs into its cell"),
    ("from manual_dp import allreduce", "cannot use the course's own solution"),
    ("def sum_up(data):\n    pass", "the answer cells define no allreduce"),
    ("def allreduce(data):\n    raise NotImplementedError()", "Not written yet"),
    (ON_RANKS + "    raise NotImplementedError('write me')", "Not written yet"),
    (ON_RANKS + "    return 1 // dist.get_rank()",
     "RankError: rank 0 raised ZeroDivisionError: integer division or modulo by zero\n"
     "line 4 of <cell allreduce>: run_ranks(work, 2)"),
    ("def allreduce(data):\n    return 1 / 0",
     "ZeroDivisionError: division by zero\nline 2 of <cell allreduce>: return 1 / 0"),
    ("def allreduce(data)\n    pass", "SyntaxError"),
    ("import os\nos._exit(3)", "it ended the process with exit code 3"),
    ("import os\nos.abort()", "it ended with SIGABRT"),
])
def test_a_message_says_what_happened(worker, source, message):
    assert message in answer_of(worker, source)


def test_a_missing_cell_is_named():
    message = grade(None, find("ps1/train_batch"), {"split_batch": "", "sgd": ""})
    assert message == "The answer cell train_batch is missing."


def test_magics_of_the_notebook_do_no_harm(worker):
    right = cells_of("ps1")["allreduce"]
    assert answer_of(worker, "%matplotlib inline\n!ls\n" + right) is None
    remainder = "rest = (7\n%4)\nassert rest == 3\n"  # this is Python
    assert answer_of(worker, remainder + right) is None


# the process

def test_a_lost_process_is_replaced_and_the_answer_run_again(worker):
    right = cells_of("ps1")["allreduce"]
    assert answer_of(worker, right) is None
    worker.process.kill()
    worker.process.wait()
    assert answer_of(worker, right) is None


def graded(worker, sources, known):
    """Grade answers to ps1/allreduce; return which are right, and how many were run."""
    runs = []

    class Counted:
        @staticmethod
        def run(job):
            runs.append(job)
            return worker.run(job)
    return [grade(Counted, find("ps1/allreduce"), {"allreduce": source}, known) is None
            for source in sources], len(runs)


def test_a_right_answer_that_is_known_is_not_run_again(worker):
    right, known = cells_of("ps1")["allreduce"], {}
    assert graded(worker, [right] * 3, known) == ([True] * 3, 1)
    assert graded(worker, [right + "  # mine"], known) == ([True], 1)
    assert graded(worker, [right] * 2, None) == ([True] * 2, 2)


def test_a_wrong_answer_is_known_when_two_runs_agree(worker):
    wrong = "def allreduce(data):\n    pass"
    assert graded(worker, [wrong] * 4, {}) == ([False] * 4, 2)


def test_an_answer_that_failed_once_can_still_be_right(worker):
    right, known = cells_of("ps1")["allreduce"], {}
    busy = replace(find("ps1/allreduce"), seconds=0)  # over before it began
    assert "returned nothing" in grade(worker, busy, {"allreduce": right}, known)
    assert graded(worker, [right] * 3, known) == ([True] * 3, 1)


def test_where_answers_cannot_run_nobody_gets_a_zero_for_it(monkeypatch):
    worker = Worker()
    monkeypatch.setattr(page, "site", lambda: [])  # so child.py finds no torch
    with pytest.raises(RuntimeError, match="answers cannot be run on this system: "
                                           "ModuleNotFoundError: No module named 'torch"):
        answer_of(worker, cells_of("ps1")["allreduce"])
    monkeypatch.setattr(page, "site", lambda: [str(Path(torch.__file__).parents[1])])
    monkeypatch.setattr(page, "readable", lambda: [])  # gloo finds no network
    with pytest.raises(RuntimeError, match="answers cannot be run on this system"):
        answer_of(worker, cells_of("ps1")["allreduce"])
    assert worker.process is None


def test_a_stopped_worker_runs_nothing_more(fresh):
    fresh.stop()
    with pytest.raises(RuntimeError, match="the worker was stopped"):
        answer_of(fresh, cells_of("ps1")["allreduce"])


def test_a_worker_that_was_stopped_as_it_started_runs_no_further_answer(
        worker, monkeypatch):
    right = cells_of("ps1")["allreduce"]
    assert answer_of(worker, right) is None
    # what `stop` leaves if the process was not there yet
    monkeypatch.setattr(worker, "stopped", True)
    with pytest.raises(RuntimeError, match="the worker was stopped"):
        answer_of(worker, right)


def test_each_job_starts_afresh(worker):
    right = cells_of("ps1")["allreduce"]
    assert answer_of(worker, "torch.Tensor.copy_ = None\n" + right) is not None
    assert answer_of(worker, "open('left', 'w').close()\n" + right) is None
    look = "    import os\n    assert os.listdir('.') == []\n    for tensor in data[1:]"
    assert answer_of(worker, right.replace("    for tensor in data[1:]", look, 1)) is None


def test_the_clock_ends_an_answer_that_only_waits(worker):
    start = time.monotonic()
    message = answer_of(worker, "def allreduce(data):\n    import time\n"
                                "    time.sleep(999)", seconds=1)
    assert "was stopped after 3 s" in message and 3 <= time.monotonic() - start < 30


def test_the_environment_is_not_handed_on(worker, monkeypatch):
    monkeypatch.setenv("PASSWORD", "secret")
    message = answer_of(worker, "import os\nraise ValueError(sorted(os.environ))")
    assert "PASSWORD" not in message and "OMP_NUM_THREADS" in message
    assert os.environ["PASSWORD"] == "secret"


# what it touches

def test_an_answer_that_changes_limits_of_others_stops_the_batch(fresh, monkeypatch):
    right = cells_of("ps1")["allreduce"]
    assert answer_of(fresh, right) is None
    other = psutil.Process(fresh.process.pid)
    limits = other.rlimit(psutil.RLIMIT_FSIZE)
    other.rlimit(psutil.RLIMIT_FSIZE, (2**40, 2**40))
    with pytest.raises(Doubtful, match=f"the RLIMIT_FSIZE of process {other.pid} "
                                       "changed while an answer ran: what ran"):
        answer_of(fresh, right)
    with pytest.raises(Doubtful):  # for good
        answer_of(fresh, right)
    assert limits != (2**40, 2**40)


def test_where_answers_see_one_another_they_run_one_at_a_time(fresh, monkeypatch):
    right = cells_of("ps1")["allreduce"]
    assert answer_of(fresh, right) is None
    for enclosed in (True, False):
        fresh.enclosed, held = enclosed, []
        monkeypatch.setattr(fresh, "_ask", lambda job, held=held: held.append(
            page.ALONE.locked()) or {"text": "", "end": "ended"})
        answer_of(fresh, right)
        assert held == [not enclosed]


def test_closing_ends_the_process_and_what_it_runs(worker):
    assert answer_of(worker, cells_of("ps1")["allreduce"]) is None
    process = psutil.Process(worker.process.pid)
    worker.close()
    worker.close()  # twice does no harm
    assert not process.is_running()


def test_an_answer_finds_no_gpu_which_would_not_start_within_its_memory(worker):
    message = answer_of(worker, "import os\nraise ValueError(os.environ['CUDA_VISIBLE_"
                                "DEVICES'] + '; no GPU')")
    assert "ValueError: ; no GPU" in message
