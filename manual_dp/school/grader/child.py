"""The process in which learners' cells run: it can read no answer. Made by worker.py.

    python -I -S child.py SETTINGS     waits for jobs, as long as its worker lives
       fork
       answer.py                       one a job: own session, limits, no course files
          fork
          rank 0, rank 1 ...           where an exercise asks for ranks

`serve` reads a job a line on stdin and writes a reply a line on stdout. It has torch
loaded, and what OPEN and GIVEN list under the names that it has in a notebook. Of the
course it has nothing else: `-S` keeps the rest off the path, landlock.py off the disk.
"""

import ctypes
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import types

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
OPEN = {"devices": ["try_devices"], "lenet": ["init_params", "lenet", "loss"]}
# of school/, in the order in which they import one another
GIVEN = {"tools": ["plain", "images", "ranks", "rounds", "run"], "ps1": ["run"],
         "ps2": ["run"], "ps3": ["run"], "ps4": ["network", "run"],
         "ps5": ["roll", "run"], "ps6": ["run"]}


def serve(settings):
    """Run the jobs that arrive on stdin, one after another, until that closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the grader's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if sys.platform == "linux":  # what jobs leave behind becomes ours, to be killed
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    jobs, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    sys.path += settings["path"]
    landlock, watch, answer = _load(settings["package"])
    os.dup2(null, 2)  # until here the worker listens
    print("ready", file=replies, flush=True)
    for line in jobs:
        job = json.loads(line)
        _prepare(job["name"].partition("/")[0])
        folder = tempfile.mkdtemp(prefix="manual_dp-grade-", dir=settings["folder"])

        def run(pipe, job=job, folder=folder):
            answer.answer(job, folder, pipe,
                          lambda: landlock.restrict(settings["readable"], folder))
        try:
            reply = watch.watch(run, folder, job["seconds"])
        finally:
            _remove(folder)
        print(json.dumps(reply), file=replies, flush=True)


def _load(package):
    """Import torch and what an answer may see; return landlock, watch and answer."""
    import torch
    import torch.distributed  # noqa: F401
    torch.set_num_threads(1)
    top = _empty("manual_dp")
    for file, words in OPEN.items():
        module = _from_file(f"manual_dp.{file}", f"{package}/{file}.py")
        vars(top).update((word, vars(module)[word]) for word in words)
    top.ranks = _from_file("manual_dp.ranks", f"{package}/school/grader/ranks.py")
    _empty("manual_dp.school")
    _empty("manual_dp.school.checks").check = lambda *args, **kwargs: None
    for folder, files in GIVEN.items():
        _empty(f"manual_dp.school.{folder}")
        for file in files:
            _from_file(f"manual_dp.school.{folder}.{file}",
                       f"{package}/school/{folder}/{file}.py")
    return [_from_file(name, f"{package}/school/grader/{name}.py")
            for name in ("landlock", "watch", "answer")]


def _remove(folder):
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # a thousand folders, one in the other
        pass
    if os.path.exists(folder):  # or folders that nobody may enter
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, folder], stderr=subprocess.DEVNULL, check=False)


def _prepare(problem_set):
    """Import what torch would import in every job of this set, at every job's cost."""
    given = sys.modules[f"manual_dp.school.{problem_set}.run"]
    for name in getattr(given, "IMPORTS", ()):
        try:
            importlib.import_module(name)
        except ImportError:  # another torch: jobs import what they need
            pass


def _empty(name):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = []
    return module


def _from_file(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
