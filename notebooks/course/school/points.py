"""How many points a learner's copy of a problem set has, words left out.

points    a row for each check: points of how many, and why
find      the learner's copy of a set
lines     the rows as text, with their sum

What runs is what is graded: the learner's answer cells, between the other cells as they
were handed out. The hidden checks ask for the same, on more inputs.
"""

import os
import re
import tempfile
from pathlib import Path

from course.school.checks import RELEASE, UNFINISHED

SECONDS = 400  # for a cell; a check ends earlier, by itself
WORDS = "words are not graded here"
HERE = Path(__file__).parents[3]  # the project's folder
COPIES = ("", "build/lab/exercises/release", "notebooks/exercises/release")


def find(name):
    """Return the path of a notebook, given itself or as a set's name, such as ps1.

    Of a set's copies it is the first: in this folder, of `make lab`, as handed out.
    """
    if Path(name).suffix == ".ipynb":
        paths = [Path(name)]
    else:
        places = (HERE / folder / name for folder in COPIES[1:])
        paths = [Path(f"{name}.ipynb"), *(place / f"{name}.ipynb" for place in places)]
    for path in paths:
        if path.exists():
            return path
    raise ValueError(f"there is no {' and no '.join(map(str, paths))}")


def points(path):
    """Run the answers and checks of a notebook; return rows (check, points, most, why).

    Points are None where nobody can know them yet: of words, and of checks that did not
    run, or not to the end. An exercise with 0 points is left out of its set: no row.
    """
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    nb, refused = _as_graded(nbformat.read(path, 4))
    ran, stopped = set(), ""
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        speak = {"connection_file": f"{folder}/connection.json"}
        if os.name == "posix":  # over files: a port may be taken
            speak |= {"transport": "ipc", "ip": f"{folder}/kernel"}
        client = NotebookClient(
            nb,
            km=AsyncKernelManager(**speak),
            timeout=SECONDS,
            allow_errors=True,
            interrupt_on_timeout=True,
            on_cell_executed=lambda cell, **_: ran.add(cell.id),
        )
        try:
            client.execute(cleanup_kc=True)
        except DeadKernelError:
            stopped = "an answer ends the kernel"
        except CellTimeoutError:
            stopped = "an answer does not end, or prints too much"
    return [
        _row(cell, "" if cell.id in ran else f"not run: {stopped}", refused)
        for cell in nb.cells
        if _meta(cell).get("grade") and _meta(cell)["points"]
    ]


def lines(rows):
    """Return the rows as lines, and their sum."""
    width = max(len(name) for name, *_ in rows)
    said = [
        f"{name:{width}}  {'-' if earned is None else f'{earned:g}':>4} of {most:<4g}"
        f"{why}".rstrip()
        for name, earned, most, why in rows
    ]
    code = [(earned or 0, most) for _, earned, most, why in rows if why != WORDS]
    earned, most = map(sum, zip(*code))
    return [*said, f"{'sum':{width}}  {earned:>4g} of {most:<4g}for code"]


def _as_graded(nb):
    """Return the set as it was handed out, with the learner's answers in it.

    And {name: why} of the answers that are left out, since grading refuses them.
    """
    import nbformat

    from course.school.lint import refusal

    answers = _answers(nb)
    sets = [nbformat.read(path, 4) for path in sorted(RELEASE.glob("*/*.ipynb"))]
    common = [len(_answers(one).keys() & answers.keys()) for one in sets]
    if not any(common):
        raise ValueError("this notebook has no answer cell of a problem set")
    handed_out = sets[common.index(max(common))]
    code = [cell.source for cell in handed_out.cells if cell.cell_type == "code"]
    refused = {}
    for cell in handed_out.cells:
        name = _meta(cell).get("grade_id")
        if name in answers:
            text = "\n".join(answers[name])
            if why := refusal(text, code[0]):
                refused[name] = f"not graded: {why}"
            else:
                cell.source = text
    return handed_out, refused


def _answers(nb):
    """Return {grade id: texts} of the answers in code; one may stand in many cells."""
    found = {}
    for cell in nb.cells:
        if cell.cell_type == "code" and _meta(cell).get("solution"):
            found.setdefault(_meta(cell)["grade_id"], []).append(cell.source)
    return found


def _row(cell, not_run, refused=()):
    name = _meta(cell)["grade_id"].removeprefix("check_")
    most = _meta(cell)["points"]
    if cell.cell_type != "code":
        return name, None, most, WORDS
    if name in refused:
        return name, 0, most, refused[name]
    if not_run:
        return name, None, most, not_run
    for output in cell.outputs:
        if output.output_type == "error":
            judged = UNFINISHED not in output.evalue
            why = _why(f"{output.ename}: {output.evalue}")
            return name, 0 if judged else None, most, why
        if output.output_type == "execute_result":  # right in parts
            printed = "".join(part.get("text", "") for part in cell.outputs)
            return name, float(output.data["text/plain"]), most, _why(printed)
    return name, most, most, ""


def _why(text):
    """Return the one line of a check's message that helps most."""
    if hint := re.search(r"^perhaps (.+)", text, re.M):
        return hint[1]
    first = text.partition("\n")[0]
    if said := re.match(r"Wrong: \S+ (?:is )?([^.:]+)", first):
        return said[1]  # such as "not written yet"
    return first


def _meta(cell):
    return cell.metadata.get("nbgrader", {})
