"""A lesson's settings: what they may be, and the lesson with other ones.

They are the literals of the cell tagged `parameters`. The comment of each says what it
may be, and after a comma what it means:

    world_size = 4  # 2 to 8, the number of devices
    data = "digits"  # "digits" or "blobs"

    read      the settings of a lesson; refuses what is not written so
    plan      the values that a lesson is run with
    changed   the lesson with these values
    said      these values, to print
    broken    the first line that said True and does not any more
"""

import ast
import re
from collections import namedtuple

from stored import cleared, code_cells

Setting = namedtuple(
    "Setting", "name stored values"
)  # the least first, or as written

WORD = r"\"[^\"]*\"|'[^']*'|True|False|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
RANGE = rf"(?:{WORD})(?:(?: to | or |, )(?:{WORD}))+"
LINE = re.compile(rf"(\w+) = ({WORD}) +# ({RANGE})(?:, \S.*)?")


def read(path, nb):
    """Return the settings of a lesson; ValueError names it and the line of one."""
    settings, cell = [], _parameters(nb)
    for number, line in enumerate(cell.source.splitlines(), 1):
        setting = _setting(line)
        if line and not setting:
            raise ValueError(
                f"{path.name}, cell {cell.id}, line {number}: {line}\n    a setting is a name, "
                'its value, a range that has it, such as "# 2 to 8" or "# 4 or 8", '
                "and after a comma what it means"
            )
        settings += [setting] if setting else []
    return settings


def _parameters(nb):
    return next(
        cell
        for cell in nb.cells
        if "parameters" in cell.metadata.get("tags", [])
    )


def _setting(line):
    if not (found := LINE.fullmatch(line)):
        return None
    stored, *said = map(
        ast.literal_eval, re.findall(WORD, f"{found[2]} {found[3]}")
    )
    values = (
        [float(value) for value in said]
        if isinstance(stored, float)
        else said
    )
    if {type(value) for value in values} != {type(stored)}:
        return None
    within = (
        values[0] <= stored <= values[-1]
        if " to " in found[3]
        else stored in values
    )
    return Setting(found[1], stored, values) if within else None


def plan(settings):
    """Return the runs, dicts of values: each extreme alone, all least, all greatest.

    Without what is stored, which is run anyway, and without repeats.
    """
    stored = {setting.name: setting.stored for setting in settings}
    runs = [
        stored | {setting.name: value}
        for setting in settings
        for value in setting.values
    ]
    for end in (0, -1):
        runs.append(
            {setting.name: setting.values[end] for setting in settings}
        )
    return [
        run for i, run in enumerate(runs) if run not in [stored, *runs[:i]]
    ]


def changed(nb, values):
    """Return the lesson with these settings, without outputs."""
    nb = cleared(nb)
    _parameters(nb).source = "\n".join(
        f"{name} = {value!r}" for name, value in values.items()
    )
    return nb


def said(nb):
    """Return the settings of a lesson as a line to print."""
    return "  " + _parameters(nb).source.replace("\n", ", ")


def broken(stored, new):
    """Return "", or which cell printed a check that was True when it was stored.

    Lines are the same check if they differ in numbers alone.
    """
    for before, after in zip(code_cells(stored), code_cells(new)):
        checks = _checks(before)
        true = {label for label, _ in checks} - {
            label for label, line in checks if "False" in line
        }
        for label, line in _checks(after):
            if label in true and "False" in line:
                return f"FAILED in cell {before.id}: it prints {line!r}"
    return ""


def _checks(cell):
    """Return the lines that say True or False: each one's words, and the line."""
    texts = [
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    ]
    lines = [
        line.strip()
        for text in texts
        for line in text.splitlines()
        if re.search(r"\b(?:True|False)\b", line)
    ]
    numbers = r"\b(?:True|False|nan|inf)\b|\d[\d.]*(?:e[+-]?\d+)?|[\s,+-]+"
    return [
        (re.sub(r" +", " ", re.sub(numbers, " ", line)).strip(), line)
        for line in lines
    ]
