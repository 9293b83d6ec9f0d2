"""The process of one job: shut the doors, run the learner's cells, write the numbers.

The job names an exercise, its cells and its cases. What comes out is JSON: {"nonce",
"out": a result for each case, "said": {}}; after an error the results of those before
it, and said holds "error" and "blank". Whoever reads it decides; the exit code and what
the cells print mean nothing.
"""

import os
import resource
import sys
import tempfile
import traceback
import types
from contextlib import suppress
from json import dumps  # now: an answer may put another one there

from manual_dp.ranks.launch.processes import follow
from manual_dp.school.grader.apart import Told, programs
from manual_dp.school.grader.seal import Replaced, guard, refuse
from manual_dp.school.grader.statements import (
    DEFINITIONS,
    Notebook,
    Nothing,
    plain,
    run_cell,
)
from manual_dp.school.tools.run import LEFT, call

FILE = 16 * 2**20  # bytes
OPENED = 256       # files at a time


def answer(job, folder, pipe, hide, given, start):
    """Be the process of `job`; write to `pipe` what its answers return, and end.

    given: the page that measures answers to this set. start: the names that cells find;
    what they can reach from there is not what measures them.
    """
    follow()
    os.closerange(3, pipe)
    os.closerange(pipe + 1, 1024)
    os.environ.clear()
    os.environ.update(HOME=folder, TMPDIR=folder, OMP_NUM_THREADS="1",
                      CUDA_VISIBLE_DEVICES="")
    os.chdir(folder)
    tempfile.tempdir = None
    _limit(job["seconds"], job["memory"])
    hide(folder)
    out = []  # each as JSON: what comes before an error is judged all the same
    try:
        for result in _run(job, hide, given, start):
            out.append(dumps(result))
        said = {}
    except BaseException as error:
        said = _tell(error, job)
    text = (f'{{"nonce": {dumps(job["nonce"])}, "out": [{", ".join(out)}], '
            f'"said": {dumps(said)}}}')
    with os.fdopen(pipe, "w") as file:
        file.write(text)
    os._exit(0)


def _run(job, hide, given, start):
    """Yield what the answers make of each case."""
    torch_was, name, again = Replaced(), job["name"].partition("/")[2], None
    if name in getattr(given, "APART", ()):
        program, again = programs(job, lambda: _define(job, start, given.TRIED)[0],
                                  lambda error: _tell(error, job), hide)
        answers = [program]
    else:
        answers = _define(job, start, given.TRIED)
    measure = getattr(given, name)
    for case in job["cases"]:
        result = call(measure, case, answers)
        torch_was.refuse()
        left = job.pop(LEFT, None)  # by a rank's process
        yield {LEFT: left} if left else result
    if again:
        again()


def _define(job, start, tried):
    """Run the cells; return the answers that they define."""
    sys.modules["__main__"] = space = types.ModuleType("__main__")
    cells, beside = ([(_file(grade_id), plain(source))
                      for grade_id, source in job.get(name, ())]
                     for name in ("cells", "beside"))
    guard()
    job["first"] = _fill(vars(space), job, start, tried, cells, beside)
    if missing := [name for name in job["answers"] if not hasattr(space, name)]:
        raise NameError(f"the answer cells define no {missing[0]}")
    return [getattr(space, name) for name in job["answers"]]


def _fill(space, job, start, tried, cells, beside):
    """Run the cells in `space`; return the first error of the answer's own."""
    space.update(dict.fromkeys((*tried, "display"), Nothing()), **start)
    space["get_ipython"] = lambda: notebook
    notebook, seconds, first = Notebook(space), job["seconds"] / 3, None
    for file, source in beside:  # helpers that stand in other cells
        with suppress(Exception):
            refuse(source, file)
            run_cell(source, file, space, seconds, DEFINITIONS)
    parts = dict(start)
    exec(compile(job.get("parts", ""), "<the course's own parts>", "exec"), parts)
    space.update((name, parts[name]) for name in job.get("given", ()))
    for file, source in cells:
        refuse(source, file)
        error = run_cell(source, file, space, seconds)
        first = first or error
    return first


def _limit(seconds, memory):
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPENED, OPENED))
    if sys.platform == "linux":  # what is mapped already comes on top
        with open("/proc/self/statm") as file:
            memory += int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _tell(error, job):
    """Return what the reply says of an error."""
    if isinstance(error, Told):
        return error.said
    if isinstance(error, Exception):  # perhaps for want of what failed before
        error = job.get("first") or error
    cause = getattr(error, "cause", type(error).__name__)  # a rank's, or ours
    return {"error": _describe(error, job), "blank": cause == "NotImplementedError"}


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
