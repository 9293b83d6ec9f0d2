"""A lesson's settings: what they may be, and the lesson with other ones.

They are the literals of the cell tagged `parameters`. The comment of each says what it
may be, and after a comma what it means:

    world_size = 4  # 2 to 8, the number of devices
    data = "digits"  # "digits" or "blobs"

    read      the settings of a lesson; refuses what is not written so
    plan      the values that a lesson is run with
    changed   the lesson with these values
    broken    the first line that said True and does not any more
"""

import ast
import copy
import re
from collections import namedtuple

from stored import code_cells

Setting = namedtuple("Setting", "name stored values")  # the least first, or as written

WORD = r"\"[^\"]*\"|'[^']*'|True|False|-?\d[\d.e+-]*"
CHOICES = rf"(?:{WORD})(?:, (?:{WORD}))* or (?:{WORD})"
LINE = re.compile(rf"(\w+) = ({WORD}) +# (?:({WORD}) to ({WORD})|({CHOICES}))(?:, \S.*)?")


def read(path, nb):
    """Return the settings of a lesson; ValueError names it and the line of one."""
    cell = _parameters(nb)
    if cell is None:
        raise ValueError(f"{path.name}: no cell is tagged parameters")
    settings = []
    for number, line in enumerate(cell.source.splitlines(), 1):
        try:
            settings += [_setting(line)] if line else []
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{path.name}, cell {cell.id}, line {number}: "
                             f"{line}\n    {error}") from None
    return settings


def _parameters(nb):
    return next((cell for cell in nb.cells
                 if "parameters" in cell.metadata.get("tags", [])), None)


def _setting(line):
    if not (found := LINE.fullmatch(line)):
        raise ValueError('a setting is a name, its value, and a range such as "# 2 to 8" '
                         'or "# 4 or 8", and after a comma what it means')
    name, value, *ends, choices = found.groups()
    stored = ast.literal_eval(value)
    values = [ast.literal_eval(word) for word in (
        re.findall(WORD, choices) if choices else ends)]
    if isinstance(stored, float):
        values = [float(value) for value in values]
    alike = {type(value) for value in values} == {type(stored)}
    if not alike or not (stored in values if choices else values[0] <= stored <= values[1]):
        raise ValueError("its value is not in its range, or of another kind")
    return Setting(name, stored, values)


def plan(settings):
    """Return the runs, dicts of values: each extreme alone, all least, all greatest.

    Without what is stored, which is run anyway, and without repeats.
    """
    stored = {setting.name: setting.stored for setting in settings}
    runs = [stored | {setting.name: value}
            for setting in settings for value in setting.values]
    for end in (0, -1):
        runs.append({setting.name: setting.values[end] for setting in settings})
    return [run for i, run in enumerate(runs) if run not in [stored, *runs[:i]]]


def changed(nb, values):
    """Return the lesson with these settings."""
    nb = copy.deepcopy(nb)
    cell = _parameters(nb)
    cell.source = "\n".join(f"{name} = {value!r}" for name, value in values.items())
    return nb


def broken(stored, new):
    """Return "", or which cell printed a check that was True when it was stored.

    Lines are the same check if they differ in numbers alone.
    """
    for before, after in zip(code_cells(stored), code_cells(new)):
        held = {}
        for label, _, true in _checks(before):
            held[label] = true and held.get(label, True)
        for label, line, true in _checks(after):
            if held.get(label) and not true:
                return f"FAILED in cell {before.id}: it prints {line!r}"
    return ""


def _checks(cell):
    """Yield of each line that says True or False: its words, the line, whether all is True."""
    for output in cell.outputs:
        text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for line in map(str.strip, text.splitlines()):
            if truths := re.findall(r"\b(?:True|False)\b", line):
                label = re.sub(r"\b(?:True|False|nan|inf)\b|\d[\d.]*(?:e[+-]?\d+)?", "", line)
                yield re.sub(r"[\s,+-]+", " ", label).strip(), line, "False" not in truths
