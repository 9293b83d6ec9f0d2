"""Make the book: lessons, problem sets, glossary and module, to read in a browser.

    build    write the book to a folder; return jupyter-book's warnings

A lesson comes with the outputs of its run, if one is given, or else with the stored ones:
jupyter-book runs nothing. book/toc.yml says what stands where. The page for instructors
comes without its list of where answers stand: students may read the book. jupyter-book
works on a copy of the project, beside the folder for the book; the finished book replaces
the old.
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
from release import without_answers
from stored import GIVEN, tidy
from tqdm import tqdm

MAIN = "from jupyter_book.cli.main import main; main()"


class BookError(Exception):
    """Say why no book was made."""


def build(notebooks, out, runs=()):
    """Write the book of the folder `notebooks` to `out`; return its warnings.

    `runs` has the lessons that were run just now. If jupyter-book fails, raises BookError
    and leaves `out` as it was.
    """
    root = notebooks.parent
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{out.name}-", dir=out.parent
    ) as place:
        source = Path(place, "source")
        pages = ["book/*.*", "book/templates/*"]
        given = [f"notebooks/{pattern}" for pattern in [*GIVEN, *pages]]
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
        page = source / "notebooks" / "book" / "instructors.md"
        page.write_text(
            without_answers(page.read_text(encoding="utf-8")), "utf-8"
        )
        _label(source)
        warnings = _run_jupyter_book(source, place)
        if out.exists():
            # not deleted before the new book is made: it goes with `place`
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


def _label(source):
    """Write explicit anchors, and the links to them, as MyST's labels.

    MyST finds no anchor that is HTML, such as `<a id="starved"></a>`.
    """
    anchor = re.compile(r'<a id=\\?"([\w-]+)\\?"></a>')
    link = re.compile(r"(\]\()[\w./]+\.ipynb(#([\w-]+)\))")
    pages = [*source.rglob("*.ipynb"), *source.rglob("*.md")]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    labels = {
        name for text in texts.values() for name in anchor.findall(text)
    }

    def to_label(found):
        return found[1] + found[2] if found[3] in labels else found[0]

    for page, text in texts.items():
        labelled = link.sub(to_label, anchor.sub(r"(\1)=", text))
        if labelled != text:
            page.write_text(labelled, encoding="utf-8")


def _lesson(run):
    """Return a run as a page: a cell with an error is not folded, a failure is told."""
    nb = tidy(run.nb)
    for cell in nb.cells:
        kinds = [output.output_type for output in cell.get("outputs", [])]
        if "error" in kinds:
            cell.metadata.tags = []
    if run.failure:
        text = f":::{{warning}}\n```none\n{run.failure}\n```\n:::"
        nb.cells.insert(1, new_markdown_cell(text, id="failure"))
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
            lines = []
            for line in tqdm(
                process.stdout, "the book", leave=False, disable=None
            ):
                without_colours = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", line)
                lines.append(without_colours.strip())
        except BaseException:  # Ctrl-C, too
            process.kill()
            raise
    if process.returncode:
        errors = [
            line
            for line in lines
            if re.search("error|not import", line, re.I)
        ]
        raise BookError(
            "\n".join(errors[:3])
            or f"jupyter-book ended with {process.returncode}"
        )
    return [
        line.replace(f"{source}{os.sep}", "")
        for line in lines
        if re.search("WARNING|ERROR", line)
    ]
