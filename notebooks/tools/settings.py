"""Run lessons at the extremes of their settings: does every check still hold?

    python notebooks/tools/settings.py [--lesson 03 04]     default: all lessons

A lesson's settings are the literals of its cell tagged `parameters`. The comment of
each says what it may be, and after a comma what it means:

    world_size = 4  # 2 to 8, the number of devices
    data = "digits"  # "digits" or "blobs"

    read        the settings of a lesson; refuses what is not written so
    plan        the runs that a lesson needs
    run         one of them, in a copy of the lessons' folder
    broken      the first check that was True and is not any more
"""

import argparse
import ast
import asyncio
import copy
import io
import re
import shutil
import sys
import tempfile
import time
import tokenize
from collections import namedtuple
from pathlib import Path

import nbformat
from kernels import let_signals_stop
from lessons import execute
from tqdm import tqdm

Setting = namedtuple("Setting", "name stored values")  # the least first, or as written

WORD = r"\"[^\"]*\"|'[^']*'|True|False|-?\d[\d.e+-]*"
CHOICES = rf"(?:{WORD})(?:, (?:{WORD}))* or (?:{WORD})"
RANGE = re.compile(rf"# (?:({WORD}) to ({WORD})|({CHOICES}))(?:, \S.*)?")
ROW = "{:<24} {:<44} {:7.1f}  {}"


def read(path, nb):
    """Return the settings of a lesson; ValueError names it and the line of one."""
    cell = _parameters(nb)
    if cell is None:
        raise ValueError(f"{path.name}: no cell is tagged parameters")
    comments = {token.start[0]: token.string for token in tokenize.generate_tokens(
        io.StringIO(cell.source).readline) if token.type == tokenize.COMMENT}
    settings = []
    for node in ast.parse(cell.source).body:
        try:
            settings.append(_setting(node, comments.get(node.lineno, "")))
        except ValueError as error:
            line = cell.source.splitlines()[node.lineno - 1]
            raise ValueError(f"{path.name}, cell {cell.id}, line {node.lineno}: "
                             f"{line}\n    {error}") from None
    return settings


def _parameters(nb):
    tagged = [cell for cell in nb.cells if "parameters" in cell.metadata.get("tags", [])]
    return tagged[0] if tagged else None


def _setting(node, comment):
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        raise ValueError("a setting is a name and its value")
    found = RANGE.fullmatch(comment)
    if not found:
        raise ValueError('its comment is no range, such as "# 2 to 8" or "# 4 or 8", '
                         "and after a comma what it means")
    least, greatest, choices = found.groups()
    stored = ast.literal_eval(node.value)
    words = re.findall(WORD, choices) if choices else [least, greatest]
    try:
        values = [ast.literal_eval(word) for word in words]
    except SyntaxError:
        raise ValueError("a value in its range is no number") from None
    if isinstance(stored, float):
        values = [value if isinstance(value, str) else float(value) for value in values]
    if {type(value) for value in values} != {type(stored)}:
        raise ValueError("its range is of another kind than its value")
    inside = stored in values if choices else values[0] <= stored <= values[1]
    if not inside:
        raise ValueError("its value is not in its range")
    return Setting(node.targets[0].id, stored, values)


def plan(settings):
    """Return the runs, dicts of values: each extreme alone, all least, all greatest.

    Without what is stored, which `make test-all` runs, and without repeats.
    """
    stored = {setting.name: setting.stored for setting in settings}
    runs = [stored | {setting.name: value}
            for setting in settings for value in setting.values]
    for end in (0, -1):
        runs.append({setting.name: setting.values[end] for setting in settings})
    return [run for i, run in enumerate(runs) if run not in [stored, *runs[:i]]]


def run(path, nb, values, timeout):
    """Run a lesson with these settings; return "", or what went wrong.

    It runs in a copy of its folder, so whatever its cells write is gone afterwards.
    """
    changed = copy.deepcopy(nb)
    cell = _parameters(changed)
    lines = cell.source.splitlines()
    for node in ast.parse(cell.source).body:
        value = values[node.targets[0].id]
        lines[node.lineno - 1:node.end_lineno] = [f"{node.targets[0].id} = {value!r}"] + [
            ""] * (node.end_lineno - node.lineno)
    cell.source = "\n".join(lines)
    for cell in changed.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    with (tempfile.TemporaryDirectory(prefix="settings-") as place,
          tqdm(changed.cells, path.stem, leave=False, disable=None) as bar):
        folder = Path(place, path.parent.name)
        shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns(
            ".*", "__pycache__"))
        failure = asyncio.run(execute(changed, folder, timeout, bar))
    return failure or broken(nb, changed)


def broken(stored, new):
    """Return "", or which cell printed a check that was True when it was stored.

    Lines are the same check if they differ in numbers alone. Where a line has no
    counterpart, its cell may not print False more often than it did.
    """
    for before, after in zip(stored.cells, new.cells):
        if before.cell_type == "code":
            line = _broken_line(_checks(before), _checks(after))
            if line:
                return f"FAILED in cell {before.id}: it prints {line!r}"
    return ""


def _broken_line(before, after):
    free = 0  # the Falses that no line of the same text accounts for
    for label, (_, was) in before.items():
        now = after[label][1] if label in after else []
        if all(was):
            if not all(now):
                return after[label][0][now.index(False)]
        elif len(was) != len(now):
            free += was.count(False)
        elif any(old and not new for old, new in zip(was, now)):
            return next(line for line, old, new in zip(after[label][0], was, now)
                        if old and not new)
    for label, (lines, now) in after.items():
        was = before[label][1] if label in before else []
        if not was or not all(was) and len(was) != len(now):
            free -= now.count(False)
            if free < 0:
                return lines[now.index(False)]
    return ""


def _checks(cell):
    """Return {text: (lines, truth values)} of the lines that print truth values."""
    found = {}
    for line in "\n".join(map(_text, cell.outputs)).splitlines():
        truths = [word == "True" for word in re.findall(r"\b(?:True|False)\b", line)]
        if truths:
            label = re.sub(r"\b(?:True|False|nan|inf)\b|\d[\d.]*(?:e[+-]?\d+)?", "", line)
            lines, values = found.setdefault(re.sub(r"[\s,+-]+", " ", label).strip(),
                                             ([], []))
            lines += [line.strip()] * len(truths)
            values += truths
    return found


def _text(output):
    return output.get("text", "") or output.get("data", {}).get("text/plain", "")


def main(argv=None):
    """Read the command line, run the lessons; return the exit status."""
    parser = argparse.ArgumentParser("settings.py")
    parser.add_argument("--lesson", nargs="+", help="numbers (default: all)")
    parser.add_argument("--notebooks", type=Path, default="notebooks")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a cell")
    args = parser.parse_args(argv)
    numbers = args.lesson and {number.zfill(2) for number in args.lesson}
    paths = [path for path in sorted(args.notebooks.resolve().glob("[0-9][0-9]_*.ipynb"))
             if not numbers or path.name[:2] in numbers]
    if not paths or numbers and numbers != {path.name[:2] for path in paths}:
        parser.error(f"no such lesson in {args.notebooks}")
    let_signals_stop()
    lessons, unreadable = _read_all(paths)
    if unreadable:
        print(*unreadable, sep="\n", file=sys.stderr)
        return 1
    try:
        return int(any([_report(*lesson, values, args.timeout)
                        for *lesson, settings in lessons for values in plan(settings)]))
    except KeyboardInterrupt:
        return 130


def _read_all(paths):
    lessons, unreadable = [], []
    for path in paths:
        nb = nbformat.read(path, 4)
        try:
            lessons.append((path, nb, read(path, nb)))
        except ValueError as error:
            unreadable.append(str(error))
    return lessons, unreadable


def _report(path, nb, values, timeout):
    start = time.perf_counter()
    failure = run(path, nb, values, timeout)
    said = ", ".join(f"{name}={value!r}" for name, value in values.items())
    print(ROW.format(path.stem, said, time.perf_counter() - start, failure or "ok"),
          flush=True)
    return failure


if __name__ == "__main__":
    sys.exit(main())
