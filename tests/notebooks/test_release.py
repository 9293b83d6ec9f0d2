"""notebooks/tools/release.py: what learners get is what the sources generate.

No cell runs here. nbgrader runs in a process of its own: it changes the folder it works
in, and what it logs. The first one is a new python, as `make` starts it; others are forks.
"""

import copy
import json
import multiprocessing
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import nbformat
import pytest
import release as program  # notebooks/tools, which pyproject.toml puts on the path

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "notebooks" / "exercises"
SETS = sorted(path.stem for path in (EXERCISES / "source").glob("*/*.ipynb"))


def release(folder, *options):
    """Run the program in a fork; return its exit status, what it said, its complaint."""
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")

        def run():
            with (open(out, "w") as said, open(err, "w") as complaint,
                  redirect_stdout(said), redirect_stderr(complaint)):
                status = program.main(["--folder", str(folder), *map(str, options)])
            sys.exit(status)
        fork = multiprocessing.get_context("fork").Process(target=run)
        fork.start()
        fork.join(300)
        return fork.exitcode, out.read_text(), err.read_text()


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and ".ipynb_checkpoints" not in path.parts}


def load(kind, name):
    return json.loads((EXERCISES / kind / name / f"{name}.ipynb").read_text())


def text(cell):
    return "".join(cell["source"])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the sources, after one run that made release/ from nothing.

    The run has packed the project, too, as it is: beside the folder, in for_learners.zip.
    """
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(EXERCISES / "source", folder / "source")
    done = subprocess.run(
        [sys.executable, ROOT / "notebooks" / "tools" / "release.py", "--folder", folder,
         "--zip", folder.parent / "for_learners.zip"],
        capture_output=True, text=True, timeout=300)
    return folder, (done.returncode, done.stdout, done.stderr)


@pytest.fixture
def small(tmp_path):
    """A folder with the source of problem set 1, and a release of long ago."""
    for kind in ("source", "release"):
        (tmp_path / kind / "ps1").mkdir(parents=True)
    path = tmp_path / "source" / "ps1" / "ps1.ipynb"
    shutil.copy(EXERCISES / "source" / "ps1" / "ps1.ipynb", path)
    (tmp_path / "release" / "ps1" / "ps1.ipynb").write_text("old")
    return tmp_path, path


def test_what_is_stored_is_what_the_sources_generate(made):
    folder, (status, said, complaint) = made
    assert (status, complaint) == (0, "")
    assert said.splitlines() == [
        *(f"changed {name}/{name}.ipynb" for name in SETS),
        f"for learners: {folder.parent / 'for_learners.zip'}"]
    assert files(EXERCISES / "release") == files(folder / "release")  # make release


def test_nothing_else_is_left_in_the_folder_and_the_sources_stay(made):
    folder, _ = made
    assert sorted(path.name for path in folder.iterdir()) == ["release", "source"]
    assert files(folder / "source") == files(EXERCISES / "source")
    assert len(files(folder / "release")) == len(SETS)


def test_a_second_run_writes_nothing(made):
    folder, _ = made
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.ipynb")}
    assert release(folder) == (0, "release/ is what source/ generates\n", "")
    assert {path: path.stat().st_mtime_ns for path in before} == before


# what learners unpack

@pytest.fixture(scope="module")
def unpacked(made):
    folder, _ = made
    shutil.unpack_archive(folder.parent / "for_learners.zip", folder.parent / "unpacked")
    return folder.parent / "unpacked" / "for_learners"


def test_learners_get_lessons_module_and_sets_and_no_solutions(unpacked):
    names = set(files(unpacked))
    exercises = {name for name in names if name.startswith("notebooks/exercises/")}
    assert exercises == {"notebooks/exercises/README.md", *(
        f"notebooks/exercises/release/{name}/{name}.ipynb" for name in SETS)}
    assert {"notebooks/00_start_here.ipynb", "manual_dp/__init__.py", "pyproject.toml",
            "constraints.txt", "Makefile", "LICENSE", "notebooks/tools/lab.py"} <= names
    assert {name.split("/")[0] for name in names} <= {
        path.name for path in ROOT.iterdir()} - {"tests", "build", ".venv", ".git"}
    assert not any("__pycache__" in name or "/." in name for name in names)
    modules = {path.relative_to(ROOT).as_posix()
               for path in (ROOT / "manual_dp").rglob("*.py")}
    assert modules <= names


def test_every_link_that_learners_get_leads_to_a_file_they_have(unpacked):
    lost, found = [], 0
    for path in [*unpacked.rglob("*.md"), *unpacked.rglob("*.ipynb")]:
        prose = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            prose = "\n".join(text(cell) for cell in json.loads(prose)["cells"]
                              if cell["cell_type"] == "markdown")
        links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", prose)
        found += len(links)
        lost += [(path.name, link) for link in links if not (path.parent / link).exists()]
    assert found > 300 and lost == []


# what a released notebook holds

STUB = {"code": "# YOUR CODE HERE\nraise NotImplementedError()",
        "markdown": "YOUR ANSWER HERE"}
SOLUTION = r"^( *)### BEGIN SOLUTION\n(.*?)### END SOLUTION"
HIDDEN = r"\n### BEGIN HIDDEN TESTS\n.*?### END HIDDEN TESTS"


def blank(cell):
    """Return what a cell of a source must read when it is handed out."""
    def stub(match):
        return textwrap.indent(STUB[cell["cell_type"]], match[1])
    without = re.sub(HIDDEN, "", text(cell), flags=re.S)
    return re.sub(SOLUTION, stub, without, flags=re.M | re.S)


@pytest.mark.parametrize("name", SETS)
def test_no_solution_no_hidden_check_and_no_output_is_handed_out(name):
    source, handed_out = load("source", name)["cells"], load("release", name)["cells"]
    assert [cell["id"] for cell in handed_out] == [cell["id"] for cell in source]
    assert list(map(text, handed_out)) == list(map(blank, source))
    assert all(cell["outputs"] == [] and cell["execution_count"] is None
               for cell in handed_out if cell["cell_type"] == "code")
    prose = "\n\n".join(map(text, handed_out))
    assert not re.search(r"(BEGIN|END) (SOLUTION|HIDDEN)|times=", prose)
    solutions = [match[2].strip() for cell in source
                 for match in re.finditer(SOLUTION, text(cell), re.M | re.S)]
    assert solutions and [words for words in solutions if words in prose] == []


@pytest.mark.parametrize("name", SETS)
def test_a_learner_can_open_it_and_cannot_delete_or_edit_what_is_not_hers(name):
    nb = load("release", name)
    nbformat.validate(copy.deepcopy(nb))
    assert nb["metadata"] == load("source", name)["metadata"]
    for cell in nb["cells"]:
        meta = cell["metadata"]
        assert set(meta) <= {"deletable", "editable", "nbgrader", "tags"}
        assert meta["deletable"] is False
        assert meta.get("editable", True) is bool(meta["nbgrader"]["solution"])
        assert re.fullmatch("[0-9a-f]{32}", meta["nbgrader"]["checksum"])


@pytest.mark.parametrize("old, new, words", [
    ("### END SOLUTION", "###", "ps1: RuntimeError: no end solution"),
    ("### END HIDDEN TESTS", "###", "ps1: RuntimeError: No end hidden tests"),
    ('"grade_id": "clipped_sgd"', '"grade_id": "setup"', "ps1: .*[dD]uplicate"),
    ('{\n "cells"', '\n "cells"', "ps1: .*NotJSONError")])
def test_a_source_that_is_not_in_order_is_named_and_nothing_is_written(
        small, old, new, words):
    folder, path = small
    path.write_text(path.read_text().replace(old, new))
    # a set that comes first and is in order is not written either
    shutil.copytree(EXERCISES / "source" / "ps1", folder / "source" / "ps0")
    before = files(folder)
    status, said, complaint = release(folder)
    assert (status, said) == (1, "") and re.match(words, complaint)
    assert "Traceback" not in complaint and "/tmp" not in complaint
    assert files(folder) == before


def test_a_set_without_a_source_is_taken_away(small):
    folder, _ = small
    (folder / "release" / "ps9").mkdir()
    (folder / "release" / "ps9" / "ps9.ipynb").write_text("{}")
    status, said, _ = release(folder)
    assert status == 0
    assert said.splitlines() == ["changed ps1/ps1.ipynb", "removed ps9/ps9.ipynb"]
    assert list(files(folder / "release")) == ["ps1/ps1.ipynb"]
    assert not (folder / "release" / "ps9").exists()


def test_a_folder_without_sources_is_an_error_of_one_line(tmp_path):
    status, said, complaint = release(tmp_path)
    assert (status, said) == (1, "")
    assert complaint == f"no problem set in {tmp_path / 'source'}\n"


# what collects which notebooks

def collected(folder, *arguments):
    """Return the notebooks that `pytest --nbval` collects in `folder`, by path."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval",
         "--nbval-current-env", "--collect-only", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300)
    return {line.partition("::")[0] for line in done.stdout.splitlines()
            if ".ipynb::" in line}


def test_nbval_on_the_whole_folder_leaves_out_what_is_handed_out_and_in(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    exercises = Path("notebooks", "exercises")
    wanted = ["notebooks/00_start_here.ipynb", f"{exercises}/source/ps1/ps1.ipynb"]
    others = [f"{exercises}/{kind}/ps1.ipynb" for kind in (
        "release/ps1", "submitted/alice/ps1", "autograded/alice/ps1",
        "source/ps1/.ipynb_checkpoints")]
    for name in wanted + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(EXERCISES / "source" / "ps1" / "ps1.ipynb", tmp_path / name)
    assert collected(tmp_path, "notebooks") == set(wanted)
