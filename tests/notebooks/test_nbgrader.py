"""Problem set 1 goes through nbgrader, by the very commands of the exercises' README.

Five learners hand in: `right` has the solutions, `blank` what was handed out, `split`
the solutions in cells that JupyterLab split and copied, `warned` right answers of which
torch warns, and `wrong` one wrong answer, with an edited check below it that would let
it pass. Problem set 8, which starts ranks
and trains with Lightning, takes minutes: with `--all-programs` (`make audits`) alone.
"""

import copy
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manual_dp.school.exercise import exercises
from tests.support.wrong.ps1 import WRONG

EXERCISES = Path(__file__).parents[2] / "notebooks" / "exercises"
MISTAKE = "to without a copy"


def notebook(folder, name="ps1"):
    return json.loads((EXERCISES / folder / name / f"{name}.ipynb").read_text())


def cells(nb):
    return {cell["metadata"]["nbgrader"]["grade_id"]: cell for cell in nb["cells"]}


def solved(name="ps1"):
    """Return what was handed out, with the solutions written into it."""
    nb, source = notebook("release", name), cells(notebook("source", name))
    for name, cell in cells(nb).items():
        if cell["metadata"]["nbgrader"]["solution"]:
            text = "".join(source[name]["source"])
            cell["source"] = re.sub(r" *### (BEGIN|END) SOLUTION\n?", "", text)
    return nb


def with_a_mistake():
    nb = solved()
    cells(nb)["get_params"]["source"] = WRONG["get_params"][MISTAKE]
    cells(nb)["check_get_params"]["source"] = "print('ps1/get_params: right')"
    return nb


def split():
    """Return the solutions, each in two cells, a check twice, old attempts above."""
    nb = solved()
    for name, cell in cells(nb).items():
        place = nb["cells"].index(cell)
        if name == "check_sgd":
            nb["cells"].insert(place, {**copy.deepcopy(cell), "id": "again"})
        elif name in WRONG:
            lines = "".join(cell["source"]).splitlines(keepends=True)
            texts = [WRONG[name][next(iter(WRONG[name]))], f"def {name}(x:",
                     *map("".join, (lines[:2], lines[2:]))]
            nb["cells"][place:place + 1] = [
                {**copy.deepcopy(cell), "id": f"{name}-{i}".replace("_", "-"),
                 "source": text.strip("\n")} for i, text in enumerate(texts)]
    return nb


def that_warns():
    """Return right answers of which torch warns, from Python and from C++."""
    nb = solved()
    for name, right, warned in (
            ("get_params", "p.detach().to(device, copy=True).requires_grad_()",
             "torch.tensor(p, device=device, requires_grad=True)"),
            ("train_batch", "l.item()", "float(l)")):
        text = "".join(cells(nb)[name]["source"])
        assert text.count(right) == 1
        cells(nb)[name]["source"] = text.replace(right, warned)
    return nb


HANDED_IN = {"right": solved, "split": split, "blank": lambda: notebook("release"),
             "wrong": with_a_mistake, "warned": that_warns}


def commands():
    text = (EXERCISES / "README.md").read_text()
    return re.findall(r"^    (nbgrader .*)$", text, re.M)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The course's folder, copied, after an instructor's four commands."""
    return graded(tmp_path_factory.mktemp("home"), "ps1",
                  {learner: make() for learner, make in HANDED_IN.items()})


def graded(home, name, handed_in, seconds=400):
    """Say the four commands for a set in a copy of the course's folder; return that."""
    folder = home / "exercises"
    # what is handed out is made here, from the source alone
    shutil.copytree(EXERCISES, folder, ignore=shutil.ignore_patterns(
        "release", "submitted", "autograded", "feedback", "grade*",
        f"ps[!{name[2:]}]"))
    for learner, nb in handed_in.items():
        place = folder / "submitted" / learner / name
        place.mkdir(parents=True)
        (place / f"{name}.ipynb").write_text(json.dumps(nb))
    # a path without .venv: the settings find what nbgrader calls by name
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("JUPYTER", "IPYTHON", "PYTEST"))}
    environment |= {"HOME": str(home), "PATH": os.defpath, "OMP_NUM_THREADS": "1"}
    for line in commands():
        subprocess.run([sys.executable, "-m", *line.replace("ps1", name).split()],
                       cwd=folder, env=environment, check=True, timeout=seconds,
                       capture_output=True)
    return folder


@pytest.fixture(scope="module")
def grades(course):
    return table(course)


def table(folder):
    with open(folder / "nbgrader.csv", newline="") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def test_the_readme_says_the_four_commands():
    assert [line.split()[1] for line in commands()] == [
        "generate_assignment", "autograde", "generate_feedback", "export"]


def test_the_table_has_all_learners(grades):
    assert set(grades) == set(HANDED_IN)
    assert {row["assignment"] for row in grades.values()} == {"ps1"}


def test_solutions_get_all_points_for_code(grades):
    assert float(grades["right"]["score"]) == 15
    assert float(grades["right"]["max_score"]) == 19  # words wait for a person


def test_cells_that_were_split_or_copied_stop_nothing_and_get_all_points(grades):
    assert float(grades["split"]["score"]) == 15


def test_what_torch_warns_of_costs_no_points(grades):
    assert float(grades["warned"]["score"]) == 15


def test_what_was_handed_out_gets_nothing(grades):
    assert float(grades["blank"]["score"]) == 0


def test_a_mistake_costs_its_exercise_alone_and_an_edited_check_saves_nothing(grades):
    assert float(grades["wrong"]["score"]) == 15 - 2


def test_feedback_says_what_the_checks_said(course):
    pages = {learner: (course / "feedback" / learner / "ps1" / "ps1.html").read_text()
             for learner in HANDED_IN}
    for name in ("get_params", "split_batch", "allreduce", "sgd", "train_batch"):
        assert re.search(rf"ps1/{name}: right, on \d+ random inputs", pages["right"])
        assert re.search(rf"ps1/{name}: right, on \d+ random inputs", pages["split"])
        assert f"ps1/{name} is not written yet" in pages["blank"]
        assert (f"ps1/{name} is not right yet" in pages["wrong"]) == (
            name == "get_params")


def test_nbgrader_hands_out_what_is_stored(course):
    assert ((course / "release" / "ps1" / "ps1.ipynb").read_bytes()
            == (EXERCISES / "release" / "ps1" / "ps1.ipynb").read_bytes())


def test_a_set_with_ranks_and_lightning_goes_the_same_way(tmp_path, pytestconfig):
    if not pytestconfig.getoption("--all-programs"):
        pytest.skip("it takes minutes: --all-programs")
    folder = graded(tmp_path, "ps8", {"right": solved("ps8"),
                                      "blank": notebook("release", "ps8")}, 3000)
    rows = table(folder)
    assert {name: float(row["score"]) for name, row in rows.items()} == {
        "right": 25, "blank": 0}
    assert float(rows["right"]["max_score"]) == 29
    said = (folder / "feedback" / "right" / "ps8" / "ps8.html").read_text()
    assert all(re.search(rf"{name}: right, on \d+ random inputs", said)
               for name in exercises("ps8"))
