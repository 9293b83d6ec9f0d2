"""Decide the claims of lesson 20 again, with other seeds and sizes.

    python notebooks/tools/claims.py [--seeds 5]

Run k has `seed = k` and draws the lesson's other settings inside their ranges. Its
verdicts are held against those that are stored in the lesson.

    stored      the verdicts that the stored table has, {number: verdict}
    draw        the settings of one run
    decide      the verdicts of a run with these settings
"""

import argparse
import contextlib
import io
import random
import re
import sys
import time
from pathlib import Path

import nbformat
from settings import read

LESSON = Path("notebooks/20_claims_tested.ipynb")
VERDICT = re.compile(r"^ *(\d+) (true if|true|false) ", re.MULTILINE)


def stored(nb):
    """Return {number: verdict} from the output of the lesson's checkpoint."""
    [cell] = [cell for cell in nb.cells if "checkpoint" in _tags(cell)]
    said = "".join(output.get("text", "") for output in cell.outputs)
    return {int(number): verdict for number, verdict in VERDICT.findall(said)}


def draw(settings, seed):
    """Return values for a lesson's settings: this seed, the others from their ranges."""
    drawn = random.Random(f"run {seed}")  # numbers alone give neighbours alike
    values = {setting.name: drawn.randint(*setting.values) for setting in settings}
    return values | {"seed": seed}


def decide(nb, values):
    """Run the lesson's code with these settings; return {number: verdict}.

    Without its checkpoint, which knows the verdicts. Raises what a cell raises.
    """
    names = {"__name__": "__main__"}  # what a cell defines is sent to ranks as it is
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in nb.cells:
            if cell.cell_type == "code" and "checkpoint" not in _tags(cell):
                source = cell.source.replace("%matplotlib inline", "")
                exec(compile(source, f"<cell {cell.id}>", "exec"), names)  # noqa: S102 ours
                names |= values if "parameters" in _tags(cell) else {}
    return names["verdict"].given


def _tags(cell):
    return cell.metadata.get("tags", [])


def main(argv=None):
    """Read the command line, decide again; return the exit status."""
    parser = argparse.ArgumentParser("claims.py")
    parser.add_argument("--seeds", type=int, default=5, help="runs (default: 5)")
    parser.add_argument("--lesson", type=Path, default=LESSON)
    args = parser.parse_args(argv)
    nb = nbformat.read(args.lesson, 4)
    before, settings = stored(nb), read(args.lesson, nb)
    return int(any([_report(nb, draw(settings, seed), before)
                    for seed in range(args.seeds)]))


def _report(nb, values, before):
    start, said = time.perf_counter(), ", ".join(f"{name}={value}" for name, value
                                                 in values.items())
    try:
        now = decide(nb, values)
        wrong = [f"claim {number}: {before.get(number)} is stored, now {now.get(number)}"
                 for number in sorted(before | now)
                 if before.get(number) != now.get(number)]
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    found = "; ".join(wrong) or f"{len(before)} verdicts as stored"
    print(f"{said:44} {time.perf_counter() - start:6.1f} s  {found}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
