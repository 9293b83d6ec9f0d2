"""Make what learners get: the problem sets without solutions and hidden checks.

    python notebooks/tools/release.py       writes notebooks/exercises/release
    ... --zip build/manual_dp_course.zip    and the course as a learner gets it

    generate   the notebooks that nbgrader makes of the sources, as texts
    release    all of them, stored where learners open them; returns what changed
    pack       lessons, module and released sets as one file, to install from

nbgrader works in a folder of its own, which is removed: no gradebook is left, and
nothing is written unless every source is in order.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from nbgrader.apps.api import capture_log
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from stored import write_text
from traitlets.config import Config
from traitlets.log import get_logger

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks" / "exercises"
PACKED = ("README.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt",
          "environment.yml", "manual_dp", "notebooks")


def generate(folder):
    """Return the released notebooks of the course in `folder`, {"ps1/ps1.ipynb": text}.

    Raises ValueError for a source that nbgrader refuses, and if there is none.
    """
    with tempfile.TemporaryDirectory() as place:
        for source in sorted((folder / "source").glob("*/*.ipynb")):
            where = Path(place, "source", source.parent.name)
            where.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, where)
            _run_nbgrader(place, where.name)
        made = _texts(Path(place, "release"))
    if not made:
        raise ValueError(f"no problem set in {folder / 'source'}")
    return made


def release(folder):
    """Store the released notebooks of the course in `folder`; return what was done.

    The list has "changed ps1/ps1.ipynb" or "removed ..." for each file that was not
    yet, or no longer, what the sources generate.
    """
    wanted, place, done = generate(folder), folder / "release", []
    stored = _texts(place)
    for name in sorted({*wanted, *stored}):
        path = place / name
        if name not in wanted:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        elif wanted[name] != stored.get(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, wanted[name])
        else:
            continue
        done.append(f"{'changed' if name in wanted else 'removed'} {name}")
    return done


def _texts(folder):
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for path in folder.glob("*/*.ipynb")}


def pack(path):
    """Write the course to a zip, without solutions and without what was handed in."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(ROOT, Path(place, path.stem), ignore=_not_for_learners)
        shutil.make_archive(path.with_suffix(""), "zip", place)


def main(argv=None):
    """Read the command line, release every problem set; return the exit status."""
    parser = argparse.ArgumentParser("release.py")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--zip", type=Path)
    args = parser.parse_args(argv)
    try:
        done = release(args.folder)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(done) or "release/ is what source/ generates")
    if args.zip:
        pack(args.zip)
        print(f"for learners: {args.zip}")
    return 0


def _not_for_learners(folder, names):
    keep = {str(ROOT): PACKED, str(FOLDER): ("README.md", "release")}.get(str(folder))
    if keep:
        return set(names) - set(keep)
    return shutil.ignore_patterns(
        "__pycache__", ".*", "*.egg-info", "lightning_logs")(folder, names)


def _run_nbgrader(place, name):
    config = Config(SaveCells={"enabled": False})  # that is into a gradebook
    course = CourseDirectory(root=place, assignment_id=name, config=config)
    get_logger().handlers = []  # it logs what is wrong, and raises what says nothing
    done = capture_log(GenerateAssignment(course, no_database=True, config=config))
    if not done["success"]:
        said = done.get("log", "").replace("\n    ", "\n").split("[ERROR] ")[1:]
        what = said[0].strip() if said and "Cell contents" in said[0] else ""
        reason = next((text for text in said if "Traceback" in text), done["error"])
        raise ValueError(f"{name}: {reason.strip().splitlines()[-1]}\n{what}".strip())


if __name__ == "__main__":
    sys.exit(main())
