"""Make what learners get: the problem sets without solutions and hidden checks.

python notebooks/tools/release.py       let nbgrader write notebooks/exercises/release
... --zip build/manual_dp_course.zip    and pack the course for learners
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "notebooks" / "exercises"
# what the zip has of the project's folder
PACKED = (
    "README.md",
    "LICENSE",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "environment.yml",
    "manual_dp",
    "notebooks",
)
# tests, sources of sets, how one grades, and what is about them, are not in it
NOT_PACKED = r"\bmake (test|release)\b|CONTRIBUTING\.md|\bhours, grading\b"
# sections of pages that are not for learners
NOT_FOR_LEARNERS = "For an instructor", "Homework and grading"
# what it has of the folder of exercises
PACKED_EXERCISES = ("README.md", "release")


def release(exercises):
    """Let nbgrader make release/ of source/; return its exit status.

    A notebook that is the same stays as it is, and so does its folder: a kernel that
    somebody has open there works on.
    """
    print("the problem sets: nbgrader makes release/ of source/", flush=True)
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "nbgrader",
                "generate_assignment",
                "*",
                "--force",
                "--no-db",
                # its next step is that of one set, and of a class
                "--GenerateAssignment.post_convert_hook=None",
                f"--CourseDirectory.release_directory={place}",
                "--log-level=ERROR",
            ],
            cwd=exercises,
        )
        if done.returncode == 0:
            replace_files(Path(place), exercises / "release")
    return done.returncode


def replace_files(new, old):
    """Make the notebooks in `old` those in `new`; print each that changes."""
    for path in sorted(old.glob("*/*.ipynb")):
        if not (new / path.relative_to(old)).exists():
            print(
                f"release/{path.relative_to(old)}: deleted, it has no source"
            )
            path.unlink()
    for path in sorted(new.glob("*/*.ipynb")):
        place = old / path.relative_to(new)
        if not place.exists() or place.read_bytes() != path.read_bytes():
            print(f"release/{path.relative_to(new)}: written from its source")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def without_answers(page):
    """Return the page for instructors without its list of where answers stand."""
    return re.sub(
        r"- \*\*What the students' zip holds.*?(?=\n## )",
        "",
        page,
        flags=re.S,
    )


def without_sections(page):
    """Return the page without the sections on how one hands out and grades."""
    for title in NOT_FOR_LEARNERS:
        page = re.sub(
            rf"^## {title}\n.*?(?=^## |\Z)", "", page, flags=re.S | re.M
        )
    return page


def without_what_is_not_there(page):
    """Return the page without the sentences that name what the zip does not have.

    A line that has no other sentence goes.
    """
    lines = []
    for line in page.split("\n"):
        said = line.split(". ")
        kept = [one for one in said if not re.search(NOT_PACKED, one)]
        if kept:
            text = ". ".join(kept)
            if kept[-1] != said[-1] and line.endswith("."):
                text += "."
            lines.append(text)
    return "\n".join(lines)


def pack(path):
    """Write the course to a zip, without solutions and without what was handed in."""

    def not_for_learners(folder, names):
        """Return the names in a folder that copytree leaves out."""
        if Path(folder) == ROOT:
            return set(names) - set(PACKED)
        if Path(folder) == EXERCISES:
            return set(names) - set(PACKED_EXERCISES)
        hidden = shutil.ignore_patterns(
            "__pycache__", ".*", "*.egg-info", "lightning_logs"
        )
        return hidden(folder, names)

    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, path.stem)
        shutil.copytree(ROOT, copy, ignore=not_for_learners)
        for name, mend in (
            ("notebooks/book/instructors.md", without_sections),
            ("notebooks/exercises/README.md", without_sections),
            ("notebooks/exercises/README.md", without_what_is_not_there),
            ("README.md", without_what_is_not_there),
            ("Makefile", without_what_is_not_there),
        ):
            page = copy / name
            page.write_text(mend(page.read_text(encoding="utf-8")), "utf-8")
        shutil.make_archive(path.with_suffix(""), "zip", place)
    print(f"for learners: {path}")
    print(
        "Next: give it to your students; when they have handed in, see Collect in "
        "notebooks/exercises/README.md"
    )


if __name__ == "__main__":
    if status := release(EXERCISES):
        sys.exit(status)
    if sys.argv[1:2] == ["--zip"]:
        pack(Path(sys.argv[2]))
