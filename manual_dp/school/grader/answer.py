"""The process of one job: shut the doors, run the learner's cells, write the numbers.

The job names an exercise, its cells and its cases. What comes out is JSON: {"nonce",
"out": a result for each case} or {"nonce", "error", "blank"}. Whoever reads it decides;
the exit code and what the cells print mean nothing.
"""

import json
import os
import resource
import sys
import tempfile
import traceback
import types
from contextlib import suppress

from manual_dp.ranks.launch.processes import follow
from manual_dp.school.grader.statements import (
    DEFINITIONS,
    Notebook,
    Nothing,
    plain,
    run_cell,
)

FILE = 16 * 2**20  # bytes


def answer(job, folder, pipe, hide):
    """Be the process of `job`; write to `pipe` what its answers return, and end."""
    os.setsid()
    follow()
    os.closerange(3, pipe)
    os.closerange(pipe + 1, 1024)
    os.environ.clear()
    os.environ.update(HOME=folder, TMPDIR=folder, OMP_NUM_THREADS="1")
    os.chdir(folder)
    tempfile.tempdir = None
    _limit(job["seconds"], job["memory"])
    hide()
    try:
        text = json.dumps({"nonce": job["nonce"], "out": _run(job)})
    except BaseException as error:
        cause = getattr(error, "cause", type(error).__name__)  # a rank's, or ours
        text = json.dumps({"nonce": job["nonce"], "error": _describe(error, job),
                           "blank": cause == "NotImplementedError"})
    with os.fdopen(pipe, "w") as file:
        file.write(text)
    os._exit(0)


def _run(job):
    from manual_dp.school.tools.run import run
    problem_set = job["name"].partition("/")[0]
    given = sys.modules[f"manual_dp.school.{problem_set}.run"]
    sys.modules["__main__"] = space = types.ModuleType("__main__")
    vars(space).update(given.START)
    first = _fill(vars(space), job, given)
    try:
        if missing := [name for name in job["answers"] if not hasattr(space, name)]:
            raise NameError(f"the answer cells define no {missing[0]}")
        answers = [getattr(space, name) for name in job["answers"]]
        return [run(job["name"], case, answers) for case in job["cases"]]
    except Exception as error:  # perhaps for want of what failed before
        raise (first or error) from None


def _fill(space, job, given):
    """Run the cells in `space`; return the first error of the answer's own cell."""
    space.update(dict.fromkeys((*given.TRIED, "display"), Nothing()), **given.START)
    space["get_ipython"] = lambda: notebook
    notebook, seconds, first = Notebook(space), job["seconds"] / 3, None
    for grade_id, source in job.get("beside", ()):  # helpers that stand in other cells
        with suppress(Exception):
            run_cell(plain(source), _file(grade_id), space, seconds, DEFINITIONS)
    parts = dict(given.START)
    exec(compile(job.get("parts", ""), "<the course's own parts>", "exec"), parts)
    space.update((name, parts[name]) for name in job.get("given", ()))
    for grade_id, source in job["cells"]:
        error = run_cell(plain(source), _file(grade_id), space, seconds)
        first = first or error
    return first


def _limit(seconds, memory):
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # what is mapped already comes on top
        with open("/proc/self/statm") as file:
            memory += int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _describe(error, job):
    """Return the error's last line, and where in which cell it came up."""
    vars(error).pop("__notes__", None)  # a RankError has a traceback there
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    sources = {_file(grade_id): source for grade_id, source in job["cells"]}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in sources:
            lines = sources[frame.filename].splitlines()
            line = lines[frame.lineno - 1].strip() if frame.lineno <= len(lines) else ""
            return f"{text[-500:]}\nline {frame.lineno} of {frame.filename}: {line}"
    return text[-500:]


def _file(grade_id):
    return f"<cell {grade_id}>"
