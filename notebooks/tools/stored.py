"""Notebooks as git keeps them: what is stored, and what differs when they run again.

tidy          nothing of this machine or run is kept; charts have 256 colours
refresh       write what ran, where something changed
differences   the cells that say something else than what is stored
write_text    a file that is written whole or not at all
GIVEN         what a learner reads and runs, in `make lab` and in the book
"""

import base64
import copy
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
# what is rounding, and the word for it; nbval takes the same file
ROUNDING = get_sanitize_patterns(
    (NOTEBOOKS / "rounding.cfg").read_text(encoding="utf-8")
)


def code_cells(nb):
    """Return the cells that run."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def measures(cell):
    """Say whether a cell's outputs are of a clock, and another in each run."""
    return "nbval-ignore-output" in cell.metadata.get("tags", [])


def cleared(nb):
    """Return a copy without outputs."""
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


def refresh(path, nb):
    """Write the executed `nb` to `path`; return whether that changed the file.

    Where nothing but what a clock gave or rounding differs, the old outputs stay: a
    lesson that has not changed stays the same file.
    """
    before = path.read_text(encoding="utf-8")
    old = tidy(nbformat.reads(before, 4))
    same = [cell.source for cell in old.cells] == [
        cell.source for cell in nb.cells
    ]
    if same and not differences(old, nb):
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
    """Return {cell id: (stored, now)} of the cells that say something else.

    A chart in pixels is another on each machine; what a clock gave is in each run.
    """
    found = {}
    for before, after in zip(code_cells(old), code_cells(new)):
        said = ("", "") if measures(before) else (_said(before), _said(after))
        if (
            said[0] != said[1]
            or before.execution_count != after.execution_count
        ):
            found[before.id] = said
    return found


def _said(cell):
    """Return all that a cell printed and showed as one text, without rounding."""
    kinds = {}
    for output in cell.outputs:
        texts = output.get(
            "data", {output.get("name", "error"): output.get("text", "")}
        )
        for kind, text in texts.items():
            if kind != "image/png":
                kinds[kind] = kinds.get(kind, "") + str(text)
    said = "\n".join(
        f"{kind}: {text}" for kind, text in sorted(kinds.items())
    )
    for pattern, word in ROUNDING:
        said = re.sub(pattern, word, said)
    return said


def _few_colours(text):
    """Return a PNG with a palette: the same picture in a third of the bytes."""
    image = Image.open(io.BytesIO(base64.b64decode(text)))
    if image.mode == "P":
        return text
    file = io.BytesIO()
    image.convert("RGB").quantize(256).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
