"""Store notebooks in git, and compare a run with the stored outputs.

tidy          remove what differs between machines and runs; store charts in 256 colours
refresh       store a run, where its outputs changed
redrawn       the cells whose charts have other pixels than the stored ones
outdated      the text cells that quote a number which no output says any more
find_files    the files of several patterns
differences   the cells whose outputs differ from the stored ones
outputs_as_text, plain_text   what a cell says, to compare; and without tags and breaks
write_text    write a file whole or not at all
GIVEN         the files that a learner reads and runs, in `make lab` and in the book
"""

import base64
import copy
import html
import io
import os
import re
from pathlib import Path

import nbformat
from nbval.plugin import get_sanitize_patterns
from PIL import Image

NOTEBOOKS = Path(__file__).parents[1]
LESSONS, SETS = "[0-9][0-9]_*.ipynb", "exercises/source/ps*/ps*.ipynb"
GIVEN = [
    LESSONS,
    "glossary.md",
    "claims.md",
    "exercises/README.md",
    "exercises/release/*/*.ipynb",
    "results/*",
    "programs/**/*.py",
    "config/*.yaml",
    "clusters/*",
]
KERNEL = dict(
    name="python3", display_name="Python 3 (ipykernel)", language="python"
)
# pairs: a pattern of what rounding changes, the word to put there; nbval reads this file
ROUNDING = get_sanitize_patterns(
    (NOTEBOOKS / "rounding.cfg").read_text(encoding="utf-8")
)


def find_files(folder, patterns):
    """Return the files of each pattern in turn, sorted."""
    return [
        path for pattern in patterns for path in sorted(folder.glob(pattern))
    ]


def code_cells(nb):
    """Return the code cells."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def varies(cell):
    """Say whether a cell's outputs are others in each run, so nobody compares them."""
    return "nbval-ignore-output" in cell.metadata.get("tags", [])


def measures(cell):
    """Say whether a cell measures seconds, so its lesson runs alone for the book."""
    return "seconds" in cell.metadata.get("tags", [])


def draws_seconds(cell):
    """Say whether a cell's chart shows measured seconds: another one in each run."""
    return measures(cell) or "draws-seconds" in cell.metadata.get("tags", [])


def cleared(nb):
    """Return a copy of a notebook, without outputs."""
    nb = copy.deepcopy(nb)
    for cell in code_cells(nb):
        cell.update(outputs=[], execution_count=None)
    return nb


def tidy(nb):
    """Bring `nb` into the form that git keeps."""
    nb.metadata = {"kernelspec": KERNEL}
    for cell in nb.cells:
        kept = {key: cell.metadata.get(key) for key in ("nbgrader", "tags")}
        cell.metadata = {key: value for key, value in kept.items() if value}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _few_colours(
                    output.data["image/png"]
                )
    return nb


def refresh(path, nb, redraw=False):
    """Write the executed `nb` to `path`; return whether that changed the file.

    If only times, rounding and charts differ, the stored outputs stay: the file of a
    lesson that says the same as before does not change. With `redraw`, each cell with
    another chart is stored anew.
    """
    before = path.read_text(encoding="utf-8")
    old = tidy(nbformat.reads(before, 4))
    before_run = [cell.source for cell in old.cells]
    after_run = [cell.source for cell in nb.cells]
    if before_run == after_run and not differences(old, nb):
        for kept, now in zip(code_cells(old), code_cells(nb)):
            if redraw and _charts(kept) != _charts(now):
                kept.outputs = now.outputs
        nb = old
    after = nbformat.writes(tidy(nb)).rstrip("\n") + "\n"
    write_text(path, after)
    return after != before


def write_text(path, text):
    """Write `text` to `path`; if that is interrupted, the old file stays."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def differences(old, new):
    """Return {cell id: (stored outputs, new outputs)} of the cells that differ.

    Charts in pixels are not compared, for another machine may draw others (`redrawn`
    names them); nor is what varies.
    """
    found = {}
    for before, after in zip(code_cells(old), code_cells(new)):
        texts = "", ""
        if not varies(before):
            texts = outputs_as_text(before), outputs_as_text(after)
        numbered_alike = before.execution_count == after.execution_count
        if texts[0] != texts[1] or not numbered_alike:
            found[before.id] = texts
    return found


def redrawn(old, new):
    """Return the ids of cells whose charts have other pixels.

    Not of cells that vary or draw seconds.
    """
    return [
        before.id
        for before, after in zip(code_cells(old), code_cells(new))
        if not (varies(before) or draws_seconds(before))
        and _charts(before) != _charts(after)
    ]


def outdated(old, new):
    """Return {cell id: numbers} of the text cells whose numbers no output says any more.

    These are numbers of two or more digits that stood in an output of `old` and stand
    in none of `new`, written in the text as they were in the output.
    """
    before, after = (
        {
            number.replace(",", "")
            for cell in code_cells(nb)
            for number in _numbers(plain_text(outputs_as_text(cell)))
        }
        for nb in (old, new)
    )
    found = {}
    for cell in new.cells:
        if cell.cell_type == "markdown":
            numbers = [
                number
                for number in dict.fromkeys(_numbers(cell.source))
                if number.replace(",", "") in before - after
            ]
            if numbers:
                found[cell.id] = numbers
    return found


def _numbers(text):
    """Return the numbers of two or more significant digits, as they are written."""
    numbers = re.findall(
        r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)", text
    )
    return [
        number
        for number in numbers
        if len(re.sub(r"\D", "", number.split("e")[0]).lstrip("0")) > 1
    ]


def plain_text(text):
    """Return text without the tags of a picture or a table, all on one line."""
    return " ".join(
        html.unescape(re.sub(r"</?[a-zA-Z][^>]*>", " ", text)).split()
    )


def _charts(cell):
    """Return the size and the pixels of each chart, in 256 colours."""
    charts = []
    for output in cell.outputs:
        if text := output.get("data", {}).get("image/png"):
            image = _open(_few_colours(text)).convert("RGB")
            charts.append((image.size, image.tobytes()))
    return charts


def outputs_as_text(cell):
    """Return all that a cell printed and showed as one text, without rounding."""
    kinds = {}
    for output in cell.outputs:
        texts = output.get(
            "data", {output.get("name", "error"): output.get("text", "")}
        )
        for kind, text in texts.items():
            if kind != "image/png":
                kinds[kind] = kinds.get(kind, "") + str(text)
    whole = "\n".join(
        f"{kind}: {text}" for kind, text in sorted(kinds.items())
    )
    for pattern, word in ROUNDING:
        whole = re.sub(pattern, word, whole)
    return whole


def _open(text):
    return Image.open(io.BytesIO(base64.b64decode(text)))


def _few_colours(text):
    """Return a PNG in 256 colours: the same picture in a third of the bytes."""
    image = _open(text)
    if image.mode == "P":
        return text
    file = io.BytesIO()
    image.convert("RGB").quantize(256).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
