"""Open a learner's own copies of the lessons in JupyterLab, without outputs.

    python notebooks/tools/lab.py [--folder build/lab] [-- what JupyterLab takes]

A notebook or program that is there stays as the learner left it. So an edit never
touches git, and no answer stands below its question.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import nbformat
from stored import cleared, write_text

NOTEBOOKS = Path(__file__).parents[1]
FIRST = "00_start_here.ipynb"
ALL = "[All lessons](../README.md#what-to-read) | "  # here they stand on the left
SETTINGS = {  # of this JupyterLab alone: no question about news, texts as pages
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},
    "@jupyterlab/docmanager-extension:plugin": {
        "defaultViewers": {"markdown": "Markdown Preview"}},
}


def copy_lessons(notebooks, folder):
    """Copy the lessons and what they link to; return how many are new, how many kept."""
    new, kept = 0, 0
    for pattern in ("[0-9][0-9]_*.ipynb", "exercises/release/*/*.ipynb",
                    "exercises/README.md", "glossary.md", "results/*", "programs/*.py",
                    "programs/article/*.py", "config/*.yaml", "clusters/*"):
        for path in sorted(notebooks.glob(pattern)):
            copy = folder / path.relative_to(notebooks)
            if path.suffix in (".ipynb", ".py"):  # a learner's own from now on
                if copy.exists():
                    kept += 1
                    continue
                new += 1
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = _own(text)
            write_text(copy, text)
    return new, kept


def _own(text):
    nb = cleared(nbformat.reads(text.replace(ALL, ""), 4))
    for cell in nb.cells:
        if "hide-input" in cell.metadata.get("tags", []):  # JupyterLab's word for it
            cell.metadata["jupyter"] = {"source_hidden": True}
    return nbformat.writes(nb) + "\n"


def main(argv=None):
    """Copy what is not there yet, say so, become JupyterLab."""
    parser = argparse.ArgumentParser("lab.py")
    parser.add_argument("--folder", type=Path, default="build/lab")
    parser.add_argument("options", nargs="*", help="for JupyterLab, after --")
    args = parser.parse_args(argv)
    new, kept = copy_lessons(NOTEBOOKS, args.folder)
    print(f"Your copies, without outputs, are in {args.folder}: {new} new, {kept} kept as "
          "you left them. To begin one afresh, delete it and say make lab again.",
          flush=True)
    place = args.folder / ".settings"
    place.mkdir(exist_ok=True)
    write_text(place / "overrides.json", json.dumps(SETTINGS, indent=1) + "\n")
    command = [sys.executable, "-m", "jupyterlab", f"--LabApp.default_url=lab/tree/{FIRST}",
               f"--ServerApp.root_dir={args.folder.resolve()}",
               f"--LabApp.app_settings_dir={place.resolve()}"]
    os.execv(sys.executable, [*command, *args.options])


if __name__ == "__main__":
    main()
