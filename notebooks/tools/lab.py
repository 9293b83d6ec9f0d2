"""Open a learner's own copies of the lessons in JupyterLab, without outputs.

    python notebooks/tools/lab.py [options of JupyterLab]

A copy that is there stays as the learner left it. A learner edits copies, so git sees
no change; a copy has no outputs, so no answer stands below its question.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell
from stored import GIVEN, NOTEBOOKS, cleared, find_files

FOLDER = Path("build", "lab")
RUN = "*Your copy has no outputs: run its cells from the top, with Shift+Enter.*"
# a link that copies do without: JupyterLab lists the lessons on the left
ALL = "[All lessons](../README.md#what-to-read) | "


def copy_lessons(folder):
    """Copy the lessons and what they link to; return how many are new, how many kept."""
    new, kept = 0, 0
    for path in find_files(NOTEBOOKS, GIVEN):
        copy = folder / path.relative_to(NOTEBOOKS)
        if copy.exists():  # a learner's own
            kept += 1
            continue
        new += 1
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = _for_lab(text)
        copy.write_text(text, encoding="utf-8")
    return new, kept


def _for_lab(text):
    """Return a lesson without outputs; the cells that the book folds are folded."""
    nb = cleared(nbformat.reads(text.replace(ALL, ""), 4))
    # a cell of its own: in a problem set the title is locked, and nbgrader compares it
    nb.cells.insert(1, new_markdown_cell(RUN, id="your-copy"))
    for cell in nb.cells:
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
    return nbformat.writes(nb) + "\n"


def main(options):
    """Copy what is not there yet, print how much, and replace this process by JupyterLab."""
    new, kept = copy_lessons(FOLDER)
    print(
        f"Your copies, without outputs, are in {FOLDER}: {new} new, {kept} kept as you left "
        "them. To begin one afresh, delete it and say make lab again.",
        flush=True,
    )
    # `!python` in a cell and `python` in a terminal of the lab: the course's own
    course = os.path.dirname(sys.executable)
    path = os.pathsep.join([course, os.environ.get("PATH", os.defpath)])
    os.execve(
        sys.executable,
        [
            sys.executable,
            "-m",
            "jupyterlab",
            "--LabApp.default_url=lab/tree/00_start_here.ipynb",
            f"--ServerApp.root_dir={FOLDER.resolve()}",
            f"--LabApp.app_settings_dir={NOTEBOOKS / 'config'}",
            # an instructor's page, which says an error where no course is graded
            "--ServerApp.jpserver_extensions={'nbgrader.server_extensions.formgrader': False}",
            # a container's user is often root, whom JupyterLab else refuses
            "--allow-root",
            *options,
        ],
        os.environ | {"PATH": path},
    )


if __name__ == "__main__":
    main(sys.argv[1:])
