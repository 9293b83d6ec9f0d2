"""Submissions that want the points without the answer: {name: (cell, source, passes)}.

The first 25 are the table of ways that were tried on other graders; then more.
"""

RIGHT = """
def get_params(params, device):
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
"""
LAZY = """
def get_params(params, device):
    return [torch.zeros_like(p).requires_grad_() for p in params]
"""


def _call(*lines):
    """Return a get_params that does `lines` when it is called, then the wrong thing."""
    return LAZY.replace("    return", "    " + "\n    ".join(lines) + "\n    return")


HOSTILE = {
    "right": ("get_params", RIGHT, True),
    "does nothing": ("allreduce", "def allreduce(data):\n    pass", False),
    "only the first": ("allreduce", "def allreduce(data):\n"
                       "    data[0].copy_(sum(data))", False),
    "the mean": ("allreduce", "def allreduce(data):\n    mean = sum(data) / len(data)\n"
                 "    for t in data:\n        t.copy_(mean)", False),
    "replaces the items of the list": (
        "allreduce", "def allreduce(data):\n    total = sum(data)\n"
        "    for i in range(len(data)):\n        data[i] = total", False),
    "os._exit at import": ("get_params", "import os\nos._exit(0)", False),
    "os._exit in the call": ("get_params", _call("import os", "os._exit(0)"), False),
    "os._exit at exit": ("get_params", LAZY + "import atexit, os\n"
                         "atexit.register(os._exit, 0)", False),
    "sys.exit at import": ("get_params", "import sys\nsys.exit(0)", False),
    "sys.exit in the call": ("get_params", _call("import sys", "sys.exit(0)"), False),
    "patches torch.equal and assert_close": (
        "get_params", LAZY + "torch.equal = torch.allclose = lambda *a, **k: True\n"
        "torch.testing.assert_close = lambda *a, **k: None", False),
    "patches pytest": (
        "get_params", LAZY + "import _pytest.runner\n"
        "_pytest.runner.pytest_runtest_call = lambda *a, **k: None", False),
    "pytest.skip": ("get_params", _call("import pytest", "pytest.skip('no')"), False),
    "SkipTest": ("get_params", _call("import unittest",
                                     "raise unittest.SkipTest"), False),
    "pytest.xfail": ("get_params", _call("import pytest", "pytest.xfail('no')"), False),
    "pytest.exit": ("get_params", _call("import pytest",
                                        "pytest.exit('bye', returncode=0)"), False),
    "an endless loop": ("get_params", _call("while True: pass"), False),
    "an endless loop that ignores signals": (
        "get_params", "import signal\nfor s in (signal.SIGINT, signal.SIGTERM, "
        "signal.SIGXCPU):\n    signal.signal(s, signal.SIG_IGN)\n"
        + _call("while True: pass"), False),
    "eats memory": ("get_params", _call("hoard = []",
                                        "while True: hoard.append(b'x' * 10**8)"), False),
    "forks and sleeps": ("get_params", "import os, time\nos.fork()\ntime.sleep(999)",
                         False),
    "prints 100 MB": ("get_params", RIGHT + "for _ in range(100):\n"
                      "    print('x' * 10**6)", True),
    "fills the disk with a file": (
        "get_params", _call("with open('x', 'wb') as file:",
                            "    while True: file.write(b'x' * 10**6)"), False),
    "patches Tensor.tolist": (
        "get_params", LAZY + "torch.Tensor.tolist = lambda self: [1.0, 2.0, 3.0]", False),
    "looks for the truth in the callers' frames": (
        "get_params", _call("import sys", "frame = sys._getframe()",
                            "while frame:",
                            "    for value in list(frame.f_locals.values()):",
                            "        if isinstance(value, dict) and 'wanted' in value:",
                            "            return value['wanted']",
                            "    frame = frame.f_back"), False),
    "opens the course's own file": (
        "get_params", "exec(open('COURSE/params.py').read())", False),
    "imports the course's own function": (
        "get_params", "from manual_dp import get_params", False),
    "imports it from its file": (
        "get_params", "import sys\nsys.path.insert(0, 'COURSE/..')\n"
        "from manual_dp.params import get_params", False),
    "runs another Python that has it": (
        "get_params", "import subprocess, sys" + RIGHT.replace(
            "    return", "    subprocess.run([sys.executable, '-c', "
            "'import manual_dp.params'], check=True)\n    return"), False),
    "kills its parent": ("get_params", "import os\nos.kill(os.getppid(), 9)\n" + LAZY,
                         False),
    "kills whatever it can": ("get_params", "import os\nos.kill(-1, 9)\n" + LAZY, False),
    "stops itself": ("get_params", "import os, signal\n"
                     "os.kill(os.getpid(), signal.SIGSTOP)\n" + RIGHT, False),
    "a fork bomb": ("get_params", "import os\nwhile True: os.fork()", False),
    "a daemon in a session of its own": (
        "get_params", "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0:\n        time.sleep(999)\n    os._exit(0)\n" + RIGHT,
        True),
    "fills the disk with many files": (
        "get_params", _call("i = 0", "while True:", "    i += 1",
                            "    open(f'x{i}', 'wb').write(b'x' * 10**7)"), False),
    "a thousand folders, one in the other": (
        "get_params", "import os\nhome = os.getcwd()\nfor _ in range(1500):\n"
        "    os.mkdir('d')\n    os.chdir('d')\n" + LAZY, False),
    "folders that nobody may enter": (
        "get_params", "import os\nos.makedirs('a/b')\nos.chmod('a/b', 0)\n"
        "os.chmod('a', 0)\n" + LAZY, False),
    "sleeps": ("get_params", _call("import time", "time.sleep(999)"), False),
    "a syntax error": ("get_params", "def get_params(params device):", False),
    "recursion without end": ("get_params", "def get_params(params, device):\n"
                              "    return get_params(params, device)", False),
    "a result without end": (
        "get_params", "def get_params(params, device):\n"
        "    return [torch.zeros(10**7, dtype=torch.float64) for _ in params]", False),
    "NaN everywhere": (
        "get_params", "def get_params(params, device):\n"
        "    return [(p.detach() * float('nan')).requires_grad_() for p in params]",
        False),
    "a report of its own, with the nonce": (
        "get_params", _call(
            "import sys, os, json", "frame = sys._getframe()",
            "while 'job' not in frame.f_locals: frame = frame.f_back",
            "job, pipe = frame.f_locals['job'], frame.f_back.f_locals.get('pipe')",
            "out = [{'made': [c['params']] * c['world_size'], 'ready': True}"
            " for c in job['cases']]",
            "for fd in range(3, 64):", "    try:",
            "        os.write(fd, json.dumps({'nonce': job['nonce'], 'out': out})"
            ".encode())", "    except OSError: pass", "os._exit(0)"), False),
    "replaces the function that runs answers": (
        "get_params", LAZY + "import manual_dp.school.tools.run as r\n"
        "r.run = lambda name, case, answers: {'right': True, 'made': case['params']}",
        False),
    "objects that equal everything": (
        "get_params", "class Yes(list):\n    def __eq__(self, other): return True\n"
        "torch.Tensor.tolist = lambda self: Yes()\n" + LAZY, False),
    "JSON that says true": (
        "get_params", LAZY + "import json\njson.dumps = lambda *a, **k: 'true'", False),
    "closes every file": ("get_params", _call("import os", "os.closerange(0, 1024)"),
                          False),
    "an error whose text never ends": (
        "get_params", "class Long(Exception):\n    def __str__(self):\n"
        "        while True: pass\n" + _call("raise Long"), False),
}
