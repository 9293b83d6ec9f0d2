"""Make the book: lessons, problem sets, glossary and module, to read in a browser.

    build    the book in a folder; returns what was wrong

Lessons come with the outputs of the runs that are given, or else with those that are
stored: jupyter-book runs nothing. book/toc.yml says what stands where. It works on a copy
of the project, beside the result, which is put in its place when it is whole.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell
from stored import GIVEN, tidy
from tqdm import tqdm

MAIN = "from jupyter_book.cli.main import main; main()"


class BookError(Exception):
    """No book was made, and why."""


def build(notebooks, out, runs=()):
    """Write the book of the folder `notebooks` to `out`; return its warnings.

    `runs` has the lessons that were run just now. Raises BookError; then `out` stays as
    it was.
    """
    root = notebooks.parent
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{out.name}-", dir=out.parent
    ) as place:
        source = Path(place, "source")
        given = [f"notebooks/{pattern}" for pattern in [*GIVEN, "book/*"]]
        module = [
            f"manual_dp/{pattern}.py"
            for pattern in ("*", "ranks/*", "models/*")
        ]
        for pattern in ["README.md", "LICENSE", *given, *module]:
            for file in root.glob(pattern):
                page = source / file.relative_to(root)
                page.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, page)
                if pattern in module:
                    _show(page)
        for run in runs:
            nbformat.write(_lesson(run), source / run.path.relative_to(root))
        warnings = _run_jupyter_book(source, place)
        if (
            out.exists()
        ):  # the old book goes with `place`, when the new one is there
            out.rename(Path(place, "old"))
        Path(place, "_build", "html").rename(out)
    return warnings


def _show(file):
    """Write a page that shows a file of the module."""
    title = file.parent.name if file.stem == "__init__" else file.name
    text = file.read_text(encoding="utf-8")
    file.with_suffix(".md").write_text(
        f"# {title}\n\n````python\n{text}````\n", encoding="utf-8"
    )


def _lesson(run):
    """Return what ran as a page: an error is not folded away."""
    nb = tidy(run.nb)
    for cell in nb.cells:
        if any(
            output.output_type == "error"
            for output in cell.get("outputs", [])
        ):
            cell.metadata.tags = []
    if run.failure:
        nb.cells.insert(
            1,
            new_markdown_cell(
                f":::{{warning}}\n```none\n{run.failure}\n```\n:::",
                id="failure",
            ),
        )
    return nb


def _run_jupyter_book(source, place):
    """Build `source` into `place`; return the lines that warn."""
    command = [
        sys.executable,
        "-c",
        MAIN,
        "build",
        source,
        "--path-output",
        place,
        "--config",
        source / "notebooks/book/config.yml",
        "--toc",
        source / "notebooks/book/toc.yml",
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            lines = [
                re.sub(
                    r"\x1b\[[\d;]*[A-Za-z]", "", line
                ).strip()  # no colours
                for line in tqdm(
                    process.stdout, "the book", leave=False, disable=None
                )
            ]
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        said = [
            line
            for line in lines
            if re.search("error|not import", line, re.I)
        ]
        raise BookError(
            "\n".join(said[:3])
            or f"jupyter-book ended with {process.returncode}"
        )
    return [
        line.replace(f"{source}{os.sep}", "")
        for line in lines
        if "WARNING" in line or "ERROR" in line
    ]
