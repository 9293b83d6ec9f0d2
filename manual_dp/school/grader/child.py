"""The process in which learners' cells run: it can read no answer. Made by worker.py.

    python -I -S child.py SETTINGS     waits for jobs, as long as its worker lives
       fork
       jail.py                         one a job: no other processes to be seen
          fork
          answer.py                    own session, limits, no course files
             fork
             a warden and its ranks    where an exercise asks for them: ranks.py

`serve` gets jobs and sends replies, as JSON, over a socket, stdin. It has torch loaded,
what OPEN and GIVEN list, under the names that it has in a notebook, and what runs and
watches answers. Of the course it has nothing else: `-S` keeps the rest off the path,
landlock.py off the disk.
"""

import gc
import importlib
import importlib.util
import json
import os
import signal
import sys
import types
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

OPEN = {"files.vision": ["ensure_torchvision"], "devices": ["try_devices"],
        "lenet": ["init_params", "lenet", "loss"]}
# of school/, in the order in which they import one another
GIVEN = {"tools": ["alarm", "settings", "plain", "devices", "optimizers", "afresh",
                   "images", "ranks", "rounds", "run"], "ps1": ["run"],
         "ps2": ["run"], "ps3": ["run"], "ps4": ["run"],
         "ps5": ["roll", "run"], "ps6": ["run"],
         "ps7": ["given", "clock", "run"], "ps8": ["trainer", "run"],
         "ps9": ["run"]}
# of grader/, too: what runs and watches answers
BESIDE = ["usage", "jail", "apart", "seal", "landlock", "litter", "watch",
          "statements", "answer"]
USED = ["jail", "landlock", "litter", "watch", "answer"]
PROCESSES = "ranks.launch.processes"


def serve(settings):
    """Run the jobs that arrive, one after another, until the worker hangs up."""
    processes = _from_file(settings["package"], PROCESSES)
    processes.adopt()  # what jobs leave behind becomes ours, to be killed
    processes.follow(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the grader's to handle
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    line = Connection(os.dup(0))
    os.dup2(1, 0)  # to nowhere
    sys.path += settings["path"]
    private = _load(settings["package"])
    jail, landlock, litter, watch, answer = (private[f"manual_dp.school.grader.{file}"]
                                             for file in USED)
    enclose = jail.enclose if jail.available() else jail.alone
    hide = partial(landlock.restrict, settings["readable"])
    litter.sweep(settings["folder"])
    os.dup2(1, 2)  # until here the worker listens
    line.send_bytes(b"enclosed" if enclose is jail.enclose else b"open")
    while True:
        try:
            job = json.loads(line.recv_bytes())
        except EOFError:
            return
        page = f"manual_dp.school.{job['name'].partition('/')[0]}.run"
        _prepare(private[page])
        gc.freeze()  # or forks would go through what they share, and so copy it
        with litter.folder(settings["folder"]) as folder:
            run = partial(answer.answer, job, folder, hide=hide, given=private[page],
                          start=sys.modules[page].START)
            reply = watch.watch(partial(enclose, run), folder, job["seconds"],
                                job["memory"])
        line.send_bytes(json.dumps(reply).encode())


def _load(package):
    """Import torch and what an answer may see; return what runs and measures answers.

    That is the same pages twice: an answer can import, and change, what nobody uses.
    """
    import torch
    import torch.distributed  # noqa: F401
    torch.set_num_threads(1)
    import cloudpickle  # noqa: F401  (or every job's first run_ranks would)
    with suppress(ImportError):
        import IPython.core.inputtransformer2  # noqa: F401  (for cells with magics)
    _course(package)
    _empty("manual_dp.school.grader")
    for file in BESIDE:
        _from_file(package, f"school.grader.{file}")
    private = {name: sys.modules.pop(name) for name in list(sys.modules)
               if name.partition(".")[0] == "manual_dp"}
    _course(package, private["manual_dp.ranks.launch.verdict"].RankError)
    return private


def _course(package, error=None):
    """Load what OPEN and GIVEN list; `error` is its RankError, which processes send."""
    top = _empty("manual_dp")
    _empty("manual_dp.files")
    for file, words in OPEN.items():
        module = _from_file(package, file)
        vars(top).update((word, vars(module)[word]) for word in words)
    _empty("manual_dp.ranks")
    _empty("manual_dp.ranks.launch")
    _from_file(package, PROCESSES)
    verdict = _from_file(package, "ranks.launch.verdict")
    verdict.RankError = error or verdict.RankError
    for file in ("rank", "nursery"):
        _from_file(package, f"ranks.launch.{file}")
    _from_file(package, "ranks.launch", "ranks.launch.__init__")
    top.ranks = _from_file(package, "ranks", "school.grader.ranks")
    _empty("manual_dp.school")
    _empty("manual_dp.school.checks").check = lambda *args, **kwargs: None
    for folder, files in GIVEN.items():
        _empty(f"manual_dp.school.{folder}")
        for file in files:
            _from_file(package, f"school.{folder}.{file}")


def _prepare(given):
    """Import what torch would import in every job of this set, at every job's cost."""
    for name in getattr(given, "IMPORTS", ()):
        with suppress(ImportError):  # another torch: jobs import what they need
            name() if callable(name) else importlib.import_module(name)


def _empty(name):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = []
    return module


def _from_file(package, name, page=None):
    """Load a page of the course as manual_dp.`name`, from its file: see `-S`."""
    name, path = f"manual_dp.{name}", f"{package}/{(page or name).replace('.', '/')}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
