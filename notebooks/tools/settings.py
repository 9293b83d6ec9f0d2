"""A lesson's settings: what they may be, and the lesson with other ones.

They are the literals of the cell tagged `parameters`, as course/lab/ranges.py reads
them.

    has_any         whether a notebook has settings; a page that is no lesson has none
    read_settings   the settings of a lesson; refuses a line of another form
    plan            the values to run a lesson with
    with_values     the lesson with these values
    as_line         the values of a lesson, to print
    broken          the first printed line that was True and is False now
"""

import re

from stored import cleared, code_cells


def has_any(nb):
    """Return whether a notebook has a cell of settings."""
    return any("parameters" in c.metadata.get("tags", []) for c in nb.cells)


def read_settings(path, nb):
    """Return the settings of a lesson.

    Raises ValueError, which names lesson, cell and line, for a line that is no setting.
    """
    from course.lab import ranges  # `course` imports torch, which else waits

    settings, cell = [], _parameters(nb)
    for number, line in enumerate(cell.source.splitlines(), 1):
        if not line:
            continue
        setting = ranges.read(line)
        if not setting or not ranges.is_inside(setting):
            raise ValueError(
                f"{path.name}, cell {cell.id}, line {number}: {line}\n    a setting is a name, "
                'its value, a range that has it, such as "# 2 to 8" or "# 4 or 8", '
                "and after a comma what it means"
            )
        settings.append(setting)
    return settings


def _parameters(nb):
    return next(
        cell
        for cell in nb.cells
        if "parameters" in cell.metadata.get("tags", [])
    )


def plan(settings):
    """Return a dict of values for each run: each extreme alone, all least, all greatest.

    A run with the stored values is left out, for `make test` runs it, and so are repeats.
    """
    stored = {setting.name: setting.value for setting in settings}
    wanted = [
        stored | {setting.name: value}
        for setting in settings
        for value in setting.values
    ]
    for end in (0, -1):
        wanted.append(
            {setting.name: setting.values[end] for setting in settings}
        )
    runs = []
    for values in wanted:
        if values != stored and values not in runs:
            runs.append(values)
    return runs


def with_values(nb, values):
    """Return a copy of the lesson with these settings, without outputs."""
    nb = cleared(nb)
    _parameters(nb).source = "\n".join(
        f"{name} = {value!r}" for name, value in values.items()
    )
    return nb


def as_line(nb):
    """Return the settings of a lesson as one line to print."""
    return "  " + _parameters(nb).source.replace("\n", ", ")


def broken(stored, new):
    """Name the cell and line that print False where the stored lesson prints True.

    Two lines are the same check if they differ in numbers alone. Returns "" if all
    checks hold.
    """
    for before, after in zip(code_cells(stored), code_cells(new)):
        held = {}  # label: whether every stored line with this label is True
        for label, line in _checks(before):
            held[label] = held.get(label, True) and "False" not in line
        for label, line in _checks(after):
            if held.get(label) and "False" in line:
                return f"FAILED in cell {before.id}: it prints {line!r}"
    return ""


def _checks(cell):
    """Return a pair for each line with True or False: its other words, and the line."""
    values = r"\b(?:True|False|nan|inf)\b|\d[\d.]*(?:e[+-]?\d+)?|[\s,+-]+"
    checks = []
    for output in cell.outputs:
        shown = output.get("data", {}).get("text/plain", "")
        for line in (output.get("text") or shown).splitlines():
            if re.search(r"\b(?:True|False)\b", line):
                words = re.sub(r" +", " ", re.sub(values, " ", line)).strip()
                checks.append((words, line.strip()))
    return checks
