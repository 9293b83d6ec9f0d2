"""notebooks/tools/release.py: what learners get is what the sources generate.

No cell runs here. nbgrader runs in a process of its own, as `make` starts it.
"""

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest
import release as program  # notebooks/tools, which pyproject.toml puts on the path

from tests.support.lessons import lost_links

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "notebooks" / "exercises"
SETS = sorted(path.stem for path in (EXERCISES / "source").glob("*/*.ipynb"))


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".ipynb_checkpoints" not in path.parts
    }


def load(kind, name):
    return json.loads((EXERCISES / kind / name / f"{name}.ipynb").read_text())


def text(cell):
    return "".join(cell["source"])


def course(place, *sets):
    """Write the sources of these sets, and nbgrader's settings, into a folder."""
    for name in sets:
        shutil.copytree(EXERCISES / "source" / name, place / "source" / name)
    for path in EXERCISES.glob("*.py"):
        shutil.copy(path, place)
    return place


def test_what_is_stored_is_what_the_sources_generate_and_what_is_the_same_stays(
    tmp_path, capsys
):
    # 10 s of a processor: only nbgrader itself generates
    folder = course(tmp_path, *SETS)
    stored = files(folder) | {
        f"release/{name}": text for name, text in files(EXERCISES / "release").items()
    }
    release = folder / "release"
    shutil.copytree(
        EXERCISES / "release",
        release,
        ignore=shutil.ignore_patterns(".ipynb_checkpoints"),
    )
    same, old = (release / name / f"{name}.ipynb" for name in ("ps1", "ps2"))
    before = same.stat()
    same.with_name("a_kernel_works_here").touch()  # it works on: the folder stays
    old.write_text("of an older source")
    shutil.rmtree(release / "ps3")
    (release / "ps0").mkdir()
    (release / "ps0" / "ps0.ipynb").write_text("of a set that went")
    assert program.release(folder) == 0
    wanted = [
        "the problem sets: nbgrader makes release/ of source/",
        "release/ps0/ps0.ipynb: deleted, it has no source",
        "release/ps2/ps2.ipynb: written from its source",
        "release/ps3/ps3.ipynb: written from its source",
    ]
    said = capsys.readouterr().out.splitlines()
    by_hand = [line for line in said if line not in wanted]
    assert said == wanted, (
        f"edited by hand, if the sources are as they were: {by_hand}. Edit the source, "
        "and say make release"
    )
    after = {
        name: text for name, text in files(folder).items() if "__pycache__" not in name
    }
    assert after.pop("release/ps1/a_kernel_works_here") == b""
    other = [
        name for name in {**after, **stored} if after.get(name) != stored.get(name)
    ]
    assert not other, "not what the sources generate: edit source/, say make release"
    assert sorted(path.stem for path in release.glob("*/*.ipynb")) == SETS
    now = same.stat()
    assert (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_source_that_is_not_in_order_is_named(tmp_path, capfd):
    path = course(tmp_path, "ps1") / "source" / "ps1" / "ps1.ipynb"
    path.write_text(path.read_text().replace("### END SOLUTION", "###"))
    assert program.release(tmp_path) != 0
    said = capfd.readouterr().err
    assert "ps1" in said and "no end solution" in said
    assert list((tmp_path / "release").rglob("*.ipynb")) == []


# what learners unpack


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    program.pack(folder / "for_learners.zip")
    shutil.unpack_archive(folder / "for_learners.zip", folder)
    return folder / "for_learners"


def test_learners_get_lessons_module_and_sets_and_no_solutions(unpacked):
    names = set(files(unpacked))
    exercises = {name for name in names if name.startswith("notebooks/exercises/")}
    assert exercises == {
        "notebooks/exercises/README.md",
        *(f"notebooks/exercises/release/{name}/{name}.ipynb" for name in SETS),
    }
    assert {
        "notebooks/00_start_here.ipynb",
        "manual_dp/__init__.py",
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "LICENSE",
        "notebooks/tools/lab.py",
    } <= names
    assert {name.split("/")[0] for name in names} <= {
        path.name for path in ROOT.iterdir()
    } - {"tests", "build", ".venv", ".git"}
    assert not any("__pycache__" in name or "/." in name for name in names)
    modules = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "manual_dp").rglob("*.py")
    }
    assert modules <= names


def test_learners_are_not_told_where_answers_stand(unpacked):
    page = Path("notebooks", "book", "instructors.md")
    whole, theirs = ((folder / page).read_text() for folder in (ROOT, unpacked))
    assert "| 9.5 (`finish`) |" in whole and "9.5 (`finish`)" not in theirs
    assert "## The same matter in two places" in theirs


def test_learners_are_not_told_how_one_grades(unpacked):
    for name, section, kept in (
        ("exercises/README.md", "For an instructor", "## For a learner"),
        ("book/instructors.md", "Homework and grading", "## Write an exercise"),
    ):
        whole, theirs = (
            (folder / "notebooks" / name).read_text() for folder in (ROOT, unpacked)
        )
        assert f"## {section}\n" in whole and section not in theirs
        assert kept in theirs
        assert "all answers" not in theirs and "break in" not in theirs
    whole, theirs = ((folder / "README.md").read_text() for folder in (ROOT, unpacked))
    assert "grading" in whole and "grading" not in theirs
    assert "make release" not in (unpacked / "Makefile").read_text()


def test_learners_are_not_told_of_tests_that_they_do_not_have(unpacked):
    for name in "README.md", "Makefile":
        whole, theirs = ((folder / name).read_text() for folder in (ROOT, unpacked))
        assert "make test" in whole and "make test" not in theirs
        assert "CONTRIBUTING" not in theirs
        assert "make course" in theirs and "make lab" in theirs
        lost = len(whole) - len(theirs)
        assert 0 < lost < 500, "more than the sentences about tests is gone"


def test_every_link_that_learners_get_leads_to_a_file_and_to_a_heading_in_it(unpacked):
    assert lost_links(unpacked) == []


# what a released notebook holds

STUB = {
    "code": "# YOUR CODE HERE\nraise NotImplementedError()",
    "markdown": "YOUR ANSWER HERE",
}
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
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None
        for cell in handed_out
        if cell["cell_type"] == "code"
    )
    prose = "\n\n".join(map(text, handed_out))
    assert not re.search(r"(BEGIN|END) (SOLUTION|HIDDEN)|times=", prose)
    solutions = [
        match[2].strip()
        for cell in source
        for match in re.finditer(SOLUTION, text(cell), re.M | re.S)
    ]
    assert solutions and [words for words in solutions if words in prose] == []
