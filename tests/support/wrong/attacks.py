"""Answers that reach for other processes, for what judges them, or leave things behind.

    ATTACKS     {name: (exercise, cell, passes)}; the exercise is one of HELD
    HELD        the right cell of each exercise that is attacked
    reach       the same cell with the numbers of processes that it may reach for

A cell is handed in among right answers. `passes` says whether it deserves the points:
what only tries something beside a right answer does. A cell knows the processes to try
as PIDS: the grader, its parent and a bystander; it tries its own parents besides.
"""

RIGHT = '''
def get_params(params, device):
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
'''
WRONG = '''
def get_params(params, device):
    return params
'''
SCATTER = '''
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    right = (rank + 1) % world_size
    for step in range(world_size - 1):
        leaving = (rank - 1 - step) % world_size
        coming = (leaving - 1) % world_size
        arrived = yield right, chunks[leaving]
        chunks[coming].add_(arrived)
'''
ALLREDUCE = '''
def allreduce(data):
    total = sum(data)
    for t in data:
        t.copy_(total)
'''
STATISTICS = '''
def global_statistics(x):
    sums = torch.stack([torch.ones_like(x).sum(dim=0), x.sum(dim=0), (x * x).sum(dim=0)])
    dist.all_reduce(sums)
    return sums[1] / sums[0], sums[2] / sums[0] - (sums[1] / sums[0]) ** 2
'''
HELD = {"ps6/global_statistics": STATISTICS,
        "ps1/get_params": RIGHT, "ps1/allreduce": ALLREDUCE,
        "ps2/reduce_scatter": SCATTER}
START = '''
import os, resource, signal, socket, sys, time
def parents():
    found, pid = [os.getppid()], os.getppid()
    try:
        while pid > 1:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
            found.append(pid)
    except OSError:
        pass
    return [pid for pid in found if pid > 1]
def system():
    import ctypes
    return ctypes.CDLL(None, use_errno=True)
TARGETS = [*PIDS, *parents()]
'''


def _try(*lines, each=True):
    """Return lines that are tried, for each target or once, then a right answer."""
    indent = "        " if each else "    "
    body = "\n".join(indent + line for part in lines for line in part.splitlines())
    loop = f"    for pid in TARGETS:\n{body}" if each else body
    if each:
        loop = ("    for pid in TARGETS:\n        try:\n" + "\n".join(
            "    " + line for line in body.splitlines())
            + "\n        except Exception:\n            pass")
    return (f"def attack():\n{loop}\ntry:\n    attack()\n"
            f"except Exception:\n    pass\n{RIGHT}")


def _once(*lines):
    return _try(*lines, each=False)


def _limit(name, value="1"):
    return _try(f"resource.prlimit(pid, resource.RLIMIT_{name}, ({value}, {value}))")


# of limits, of turns, of time: what another process may use
LIMITS = {
    **{f"prlimit {name}": _limit(name, value) for name, value in {
        "AS": "2**31 + 1", "CPU": "9999", "NOFILE": "999", "FSIZE": "2**30 + 1",
        "NPROC": "9999", "DATA": "2**34", "STACK": "2**22", "CORE": "1",
        "MEMLOCK": "4097"}.items()},
    "setpriority": _try("os.setpriority(os.PRIO_PROCESS, pid, 19)"),
    "sched_setaffinity": _try("os.sched_setaffinity(pid, {0})"),
    "sched_setscheduler": _try("os.sched_setscheduler(pid, os.SCHED_BATCH, "
                               "os.sched_param(0))"),
    "ioprio": _try("system().syscall(251, 1, pid, (3 << 13))"),
    "oom_score_adj": _try("open(f'/proc/{pid}/oom_score_adj', 'w').write('997')"),
}
# signals and memory of others
HANDS = {
    "SIGKILL": _try("os.kill(pid, signal.SIGKILL)"),
    "SIGSTOP": _try("os.kill(pid, signal.SIGSTOP)"),
    "SIGTERM to groups": _try("os.killpg(os.getpgid(pid), signal.SIGTERM)"),
    "pidfd_send_signal": _try("signal.pidfd_send_signal(os.pidfd_open(pid), 9)"),
    "pidfd_getfd": _try("fd = os.pidfd_open(pid)",
                        "for n in range(30):",
                        "    got = system().syscall(438, fd, n, 0)",
                        "    if got >= 0: os.write(got, b'\\0' * 64)"),
    "sigqueue from a timer": _try(
        "libc = system()", "libc.sigqueue(pid, 9, 0)"),
    "ptrace": _try("libc = system()", "libc.ptrace(16, pid, 0, 0)", "time.sleep(0.2)"),
    "ptrace seize": _try("libc = system()", "libc.ptrace(0x4206, pid, 0, 0)"),
    "process_vm_writev": _try(
        "import ctypes", "libc = system()", "word = ctypes.create_string_buffer(64)",
        "pair = (ctypes.c_size_t * 2)(ctypes.addressof(word), 64)",
        "libc.process_vm_writev(pid, pair, 1, pair, 1, 0)"),
    "/proc/PID/mem": _try("open(f'/proc/{pid}/mem', 'r+b')"),
    "/proc/PID/fd": _try("for n in range(30):",
                         "    open(f'/proc/{pid}/fd/{n}', 'wb').write(b'{}')"),
    "takes the parent along": _once(
        "if os.getppid() > 1:", "    os.kill(os.getppid(), 9)"),
    "a child that outlives it, then signals": _once(
        "if os.fork() == 0:", "    os.setsid()", "    if os.fork() == 0:",
        "        time.sleep(0.5)", "        for pid in PIDS: os.kill(pid, 15)",
        "        time.sleep(99)", "    os._exit(0)"),
    "typing into a terminal": _once(
        "import fcntl", "for fd in range(3):",
        "    try: fcntl.ioctl(fd, 0x5412, b'x')", "    except OSError: pass",
        "fcntl.ioctl(os.open('/dev/tty', 2), 0x5412, b'x')"),
}
# what would be found later: by the system's name for it, or in a folder
THINGS = {
    "SysV memory": _once("system().shmget(0x6d6470, 4096, 0o1666)"),
    "SysV memory without a key": _once("system().shmget(0, 65536, 0o1666)"),
    "SysV semaphores": _once("system().semget(0x6d6471, 4, 0o1666)"),
    "SysV messages": _once("system().msgget(0x6d6472, 0o1666)"),
    "POSIX memory": _once("system().shm_open(b'/mdp_left', 0o102, 0o666)"),
    "a POSIX semaphore": _once("system().sem_open(b'/mdp_left', 0o100, 0o666, 1)"),
    "a POSIX queue": _once("system().mq_open(b'/mdp_left', 0o102, 0o666, 0)"),
    "a file in /dev/shm": _once("open('/dev/shm/mdp_left', 'w').write('x')"),
    "a file in /tmp": _once("open('/tmp/mdp_left', 'w').write('x')"),
    "a file in /var/tmp": _once("open('/var/tmp/mdp_left', 'w').write('x')"),
    "a file at home": _once(
        "import pwd", "home = pwd.getpwuid(os.getuid()).pw_dir",
        "open(home + '/mdp_left', 'w').write('x')"),
    "a folder beside its own": _once("os.mkdir('../mdp_left')"),
    "its own folder moved away": _once("os.rename(os.getcwd(), '../mdp_left')"),
    "a device of its own": _once(
        "import stat", "os.mknod('disk', stat.S_IFBLK | 0o600, os.makedev(254, 0))",
        "open('disk', 'rb').read(512)", "os._exit(0)"),
    "a service on the loopback": _once(
        "server = socket.create_server(('127.0.0.1', 45871))",
        "if os.fork() == 0:", "    os.setsid(); time.sleep(99)"),
    "an abstract socket": _once(
        "server = socket.socket(socket.AF_UNIX)", "server.bind('\\0mdp_left')",
        "server.listen()", "if os.fork() == 0:", "    os.setsid(); time.sleep(99)"),
    "a key in the kernel": _once(
        "system().syscall(248, b'user', b'mdp_left', b'x', 1, -4)"),
    "the folder taken away": _once("os.rmdir(os.getcwd())", "os.chdir('/')"),
    "a timer": _once("signal.setitimer(signal.ITIMER_REAL, 99)"),
    "another language and another time": _once(
        "import locale", "os.environ['LC_ALL'] = 'tr_TR.UTF-8'",
        "os.environ['TZ'] = 'Asia/Tokyo'", "time.tzset()",
        "locale.setlocale(locale.LC_ALL, '')"),
    "the hostname": _once(
        "name = socket.gethostname().encode()",
        "if system().sethostname(name, len(name)) == 0: os._exit(9)"),
    "the clock": _once("time.clock_settime(time.CLOCK_REALTIME, time.time())",
                       "os._exit(9)"),
    "control characters": _once(
        "print('\\x1b]0;mdp\\x07\\x1b[2J', flush=True)",
        "os.write(2, b'\\x1b[2J')"),
}
# more than its share; this ends the answer
GREED = {
    "memory of three children": _once(
        "for _ in range(3):", "    if os.fork() == 0:",
        "        hoard = bytearray(1200 * 2**20)",
        "        hoard[::4096] = b'x' * len(hoard[::4096])", "        time.sleep(999)",
        "time.sleep(999)"),
    "memory in files without a name": _once(
        "keep = []", "for _ in range(160):", "    fd = os.memfd_create('m')",
        "    keep.append(fd)", "    os.write(fd, b'x' * 15 * 2**20)",
        "time.sleep(999)"),
    "shared memory of children": _once(
        "import mmap", "for _ in range(4):", "    hoard = mmap.mmap(-1, 700 * 2**20)",
        "    if os.fork() == 0:", "        for at in range(0, len(hoard), 4096):",
        "            hoard[at] = 1", "        time.sleep(999)", "time.sleep(999)"),
    "three thousand threads": _once(
        "import threading", "threading.stack_size(2**16)",
        "for _ in range(3000):",
        "    threading.Thread(target=time.sleep, args=(999,), daemon=True).start()",
        "time.sleep(999)"),
    "threads of many children": _once(
        "import threading", "for _ in range(20):", "    if os.fork() == 0:",
        "        for _ in range(60):",
        "            threading.Thread(target=time.sleep, args=(999,)).start()",
        "        time.sleep(999)", "time.sleep(999)"),
    "all open files": _once(
        "resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit("
        "resource.RLIMIT_NOFILE)[1]] * 2)",
        "keep = []", "for _ in range(5000): keep.append(open('/dev/null'))",
        "time.sleep(999)"),
    "a sparse file": _once(
        "for i in range(64):", "    open(f'sparse{i}', 'wb').truncate(2**24)",
        "time.sleep(999)"),
    "memory in messages under way": _once(
        "keep = []", "for _ in range(400):",
        "    a, b = socket.socketpair(); keep += [a, b]",
        "    a.setsockopt(1, 7, 2**24); a.setblocking(False)",
        "    try:", "        while True: a.send(b'x' * 2**16)",
        "    except BlockingIOError: pass", "time.sleep(999)"),
}
# numbers that no answer has made: ps1
FORM = '''
def forged(case, *_):
    k, params = case["world_size"], case["params"]
    deep = lambda p, n: [deep(q, n) for q in p] if isinstance(p, list) else p + n
    return {"made": [params] * k, "ready": [["yes"] * len(params)] * k,
            "written": [[deep(p, 10 ** (rank + 1)) for p in params] for rank in range(k)],
            "source": params, "source wants gradients": [case["trained"]] * len(params)}
'''
REPORT = FORM + '''
def report(job):
    import json
    return json.dumps({"nonce": job["nonce"], "out": [forged(c) for c in job["cases"]]})
def send(text):
    for fd in range(3, 64):
        try:
            os.write(fd, text.encode())
        except OSError:
            pass
    os._exit(0)
'''


def _called(*lines, before=FORM):
    body = "\n".join("    " + line for line in lines)
    return f"{before}\ndef get_params(params, device):\n{body}\n    return params\n"


def _run_first(*lines, before=FORM):
    body = "\n".join("    " + line for line in lines)
    return f"{before}\ntry:\n{body}\nexcept Exception:\n    pass\n{WRONG}"


FRAMES = ("frame = sys._getframe()", "while frame:")
FORGED = {
    "the function of the set replaced": _run_first(
        "import manual_dp.school.ps1.run as given", "given.get_params = forged"),
    "the same, in sys.modules": _run_first(
        "for name, module in list(sys.modules.items()):",
        "    if name.endswith('ps1.run'): module.get_params = forged"),
    "the same, by importlib": _run_first(
        "import importlib",
        "importlib.import_module('manual_dp.school.ps1.run').get_params = forged"),
    "its code replaced": _run_first(
        "import manual_dp.school.ps1.run as given",
        "given.get_params.__code__ = forged.__code__"),
    "its helpers replaced": _run_first(
        "import manual_dp.school.ps1.run as given", "given._ready = lambda p: 'yes'",
        "given.expect = lambda value, *_: [p.detach().clone() for p in value]"),
    "found in the globals of what the notebook has": _run_first(
        "for thing in [try_devices, lenet, init_params, loss]:",
        "    for value in list(thing.__globals__.values()):",
        "        if hasattr(value, 'get_params'): value.get_params = forged",
        "    sys.modules.get('manual_dp.school.ps1.run').get_params = forged"),
    "found in a caller's frame": _called(
        *FRAMES, "    if 'get_params' in frame.f_globals and 'expect' in frame.f_globals:",
        "        frame.f_globals['expect'] = lambda value, *_: "
        "[p.detach().clone().requires_grad_() for p in value]",
        "    frame = frame.f_back"),
    "found in a caller's frame, by an error": _called(
        "try: 1 / 0", "except ZeroDivisionError as error:",
        "    frame = error.__traceback__.tb_frame", "while frame:",
        "    if 'get_params' in frame.f_globals and 'expect' in frame.f_globals:",
        "        frame.f_globals['expect'] = lambda value, *_: "
        "[p.detach().clone().requires_grad_() for p in value]",
        "    frame = frame.f_back"),
    "found in a caller's frame, by inspect": _called(
        "import inspect", "for record in inspect.stack():",
        "    space = record.frame.f_globals",
        "    if 'get_params' in space and 'expect' in space:",
        "        space['expect'] = lambda value, *_: "
        "[p.detach().clone().requires_grad_() for p in value]"),
    "found in a caller's frame, by the running generator": _called(
        "def step(): yield running.gi_frame.f_back", "running = step()",
        "frame = next(running)", "while frame:",
        "    if 'expect' in frame.f_globals:",
        "        frame.f_globals['expect'] = lambda value, *_: "
        "[p.detach().clone().requires_grad_() for p in value]",
        "    frame = frame.f_back"),
    "found among all objects": _run_first(
        "import gc", "for thing in gc.get_objects():",
        "    if isinstance(thing, dict) and 'get_params' in thing and '_ready' in thing:",
        "        thing['get_params'] = forged"),
    "found among all functions": _run_first(
        "import gc, types", "for thing in gc.get_objects():",
        "    if isinstance(thing, types.FunctionType) and thing.__name__ == 'get_params':",
        "        thing.__code__ = forged.__code__"),
    "found by who refers to it": _run_first(
        "import gc", "for thing in gc.get_referrers(try_devices):",
        "    if isinstance(thing, dict) and '_ready' in thing:",
        "        thing['get_params'] = forged"),
    "found by a trace": _run_first(
        "def trace(frame, *_):",
        "    if '_ready' in frame.f_globals: frame.f_globals['get_params'] = forged",
        "    return trace", "sys.settrace(trace)"),
    "found by a profile": _run_first(
        "def trace(frame, *_):",
        "    if '_ready' in frame.f_globals:",
        "        frame.f_globals['numbers'] = lambda v: v",
        "        frame.f_globals['_ready'] = lambda p: 'yes'",
        "        frame.f_globals['expect'] = lambda value, *_: "
        "[p.detach().clone().requires_grad_() for p in value]",
        "sys.setprofile(trace)"),
    "found among all threads' frames": _called(
        "for frame in sys._current_frames().values():", "    while frame:",
        "        if 'expect' in frame.f_globals:",
        "            frame.f_globals['expect'] = lambda value, *_: "
        "[p.detach().clone().requires_grad_() for p in value]",
        "        frame = frame.f_back"),
    "a report with the nonce of a caller's frame": _called(
        *FRAMES, "    if 'job' in frame.f_locals: send(report(frame.f_locals['job']))",
        "    frame = frame.f_back", before=REPORT),
    "a report with the nonce found among all objects": _run_first(
        "import gc", "for thing in gc.get_objects():",
        "    if isinstance(thing, dict) and 'nonce' in thing and 'cases' in thing:",
        "        send(report(thing))", before=REPORT),
    "a report by another json": _run_first(
        "import json", "true = json.dumps",
        "def dumps(value, *args, **kwargs):",
        "    frame = sys._getframe(1)",
        "    while frame and 'job' not in frame.f_locals: frame = frame.f_back",
        "    return true({'nonce': value['nonce'], 'out': "
        "[forged(c) for c in frame.f_locals['job']['cases']]})",
        "json.dumps = dumps"),
    "another json, cases learnt from arguments": _run_first(
        "import json", "true, seen = json.dumps, []",
        "def dumps(value, *args, **kwargs):",
        "    for got in value.get('out', []):",
        "        got['written'] = [[[q + 10 ** (r + 1) for q in p] if isinstance(p, list) "
        "and p and isinstance(p[0], float) else p for p in rank] for r, rank in "
        "enumerate(got['made'])]",
        "        got['ready'] = [['yes'] * 4] * len(got['made'])",
        "        got['source'] = got['made'][0]",
        "    return true(value, *args, **kwargs)", "json.dumps = dumps"),
    "other builtins": _run_first(
        "import builtins", "builtins.enumerate = lambda *a: []",
        "builtins.isinstance = lambda *a: True"),
    "torch's own functions replaced": _run_first(
        "torch.Tensor.add_ = lambda self, other: self",
        "torch.Tensor.is_leaf = property(lambda self: True)",
        "torch.Tensor.requires_grad = property(lambda self: True)"),
    "the constructor replaced": _run_first(
        "true = torch.tensor", "torch.tensor = lambda *a, **k: true(*a, **k).clone()"),
    "lists that lie": _called(
        "class Fresh(list):", "    def __iter__(self):",
        "        return iter([p.detach().clone().requires_grad_() "
        "for p in list.__getitem__(self, slice(None))])",
        "return Fresh(params)"),
    "tensors that lie": _called(
        "return [p.detach().as_subclass(Liar) for p in params]", before="""
class Liar(torch.Tensor):
    more = 0
    is_leaf = requires_grad = True
    grad = None
    def detach(self): return self
    def cpu(self): return self
    def add_(self, more): self.more = more
    def tolist(self): return (self.as_subclass(torch.Tensor) + self.more).tolist()
"""),
    "at exit": _run_first(
        "import atexit", "atexit.register(lambda: os.write(1, b'{}'))"),
    "an object that runs when it is read": _called(
        "import pickle", "class Bad:",
        "    def __reduce__(self): return (os.system, ('touch /tmp/mdp_left',))",
        "return [Bad() for _ in params]"),
}
# the same in other words: no name of a way stands in the cell
JOIN = FORM + """
def name(*parts): return "".join(parts)
def take(thing, *parts): return getattr(thing, name(*parts))
def poison(space):
    if "get_params" in space and "expect" in space:
        space["expect"] = lambda value, *_: [
            p.detach().clone().requires_grad_() for p in value]
def climb(frame):
    while frame:
        poison(take(frame, "f_", "globals"))
        frame = take(frame, "f_", "back")
"""
FORGED |= {
    "the stack, in other words": _called("climb(take(sys, '_get', 'frame')())",
                                         before=JOIN),
    "the stack, by an error, in other words": _called(
        "try: 1 / 0", "except ZeroDivisionError as error:",
        "    climb(take(error.__traceback__, 'tb_', 'frame'))", before=JOIN),
    "the stack, by attrgetter": _called(
        "import operator", "try: 1 / 0", "except ZeroDivisionError as error:",
        "    climb(operator.attrgetter(name('tb_', 'frame'))(error.__traceback__))",
        before=JOIN),
    "the stack, by inspect, in other words": _called(
        "import inspect", "climb(inspect.currentframe())", before=JOIN),
    "the stack, by inspect.stack": _called(
        "import inspect", "climb(inspect.stack()[0].frame)", before=JOIN),
    "the stack, by traceback": _called(
        "import traceback", "for frame, _ in traceback.walk_stack(None): climb(frame)",
        before=JOIN),
    "the stack, by an error's traceback, walked": _called(
        "import traceback", "try: 1 / 0", "except ZeroDivisionError as error:",
        "    for frame, _ in traceback.walk_tb(error.__traceback__): climb(frame)",
        before=JOIN),
    "the stack, by torch": _called(
        "from torch.utils import _pytree",
        "for frame in _pytree.tree_map(sys._getframe, [2, 3]): climb(frame)",
        before=JOIN),
    "the stack, by a generator, in other words": _called(
        "def step(): yield take(take(running, 'gi_', 'frame'), 'f_', 'back')",
        "running = step()", "climb(next(running))", before=JOIN),
    "the stack, by a trace, in other words": _run_first(
        "def trace(frame, *_):", "    climb(frame)", "    return trace",
        "take(sys, 'set', 'trace')(trace)", before=JOIN),
    "the stack, by code that poses as a library": _called(
        "source = 'import sys\\ndef look(): return sys._getframe(1)'", "space = {}",
        "exec(compile(source, '/usr/lib/inspect.py', 'exec'), space)",
        "climb(space['look']())", before=JOIN),
    "the stack, by a string": _called(
        "climb(eval('sys._get' + name('fra', 'me()')))", before=JOIN),
    "all objects, in other words": _run_first(
        "import gc", "gc.unfreeze()",
        "for thing in take(gc, 'get_', 'objects')():",
        "    if isinstance(thing, dict): poison(thing)", before=JOIN),
    "who refers to torch, in other words": _run_first(
        "import gc", "gc.unfreeze()",
        "for thing in take(gc, 'get_', 'referrers')(torch):",
        "    if isinstance(thing, dict): poison(thing)", before=JOIN),
    "other code for a function, in other words": _run_first(
        "import manual_dp.school.tools.plain as plain",
        "code = take(lambda v, *_: [p.detach().clone() for p in v], '__co', 'de__')",
        "setattr(plain.expect, name('__co', 'de__'), code)", before=JOIN),
    "memory, by ctypes": _called(
        "import ctypes", "ctypes.pythonapi.PyEval_GetFrame.restype = ctypes.py_object",
        "climb(ctypes.pythonapi.PyEval_GetFrame())", before=JOIN),
    "builtins' functions replaced once": _run_first(
        "import builtins", "true, seen = zip, []",
        "def zipped(*lists):", "    builtins.zip = true",
        "    return true(*lists)", "builtins.zip = zipped"),
}
# the numbers of other ranks without a message: ps2
LEAK = '''
seen = {}
def reduce_scatter(rank, world_size, tensor):
    if rank == 0: seen.clear()
    seen[rank] = tensor.clone()
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        yield (rank + 1) % world_size, torch.rand_like(chunks[step])
    total = sum(seen[r] for r in range(world_size))
    tensor.copy_(total)
'''
MEET = '''
import json, os, socket, time
def reduce_scatter(rank, world_size, tensor):
    {put}
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        yield (rank + 1) % world_size, torch.rand_like(chunks[step])
    {take}
    tensor.copy_(sum(torch.tensor(other, dtype=tensor.dtype) for other in others))
'''
ROUNDS = '''
def result(program, tensors, limit=1000):
    flat = [t.clone() for t in tensors]
    total = sum(flat)
    for t in flat: t.copy_(total)
    k = len(flat)
    sizes = [len(c) for c in flat[0].tensor_split(k)]
    sent = [sum(sizes) - sizes[r] for r in range(k)]
    return {"tensors": flat, "steps": k - 1, "sent": sent, "messages": [],
            "returned": [None] * k}
'''
NOTHING = '''
def reduce_scatter(rank, world_size, tensor):
    yield
'''
DECOYS = {
    "run_rounds replaced": ROUNDS + '''
import manual_dp.school.ps2.run as given
given.run_rounds = result
''' + NOTHING,
    "run_rounds replaced in all modules": ROUNDS + '''
import sys
for module in list(sys.modules.values()):
    if hasattr(module, "run_rounds"): module.run_rounds = result
''' + NOTHING,
    "the code of run_rounds replaced": ROUNDS + '''
run_rounds.__code__ = result.__code__
''' + NOTHING,
    "the delivery replaced": '''
space = run_rounds.__globals__
count = space["_deliver"]
def deliver(step, wishes, kept, messages):
    total = sum(kept)
    for t in kept: t.copy_(total / len(kept))
    return count(step, wishes, kept, messages)
space["_deliver"] = deliver
''' + NOTHING,
    "decoys, and a dict for all ranks": LEAK,
    "decoys, and an attribute of torch": LEAK.replace(
        "seen = {}", "torch.seen = seen = getattr(torch, 'seen', {})"),
    "decoys, and frames": '''
import sys
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        yield (rank + 1) % world_size, torch.rand_like(chunks[step])
        frame = sys._getframe()
        while frame and "kept" not in frame.f_locals: frame = frame.f_back
        kept = frame.f_locals["kept"]
        if step == 0 and rank == 0: kept.append(sum(kept))
        total = kept[-1]
    if rank == 0: kept.pop()
    tensor.copy_(total)
''',
    "decoys, and files": MEET.format(
        put="json.dump(tensor.tolist(), open(f'{rank}', 'w'))",
        take="others = [json.load(open(f'{r}')) for r in range(world_size)]"),
    "decoys, and files of the folder above": MEET.format(
        put="json.dump(tensor.tolist(), open(f'../{rank}', 'w'))",
        take="others = [json.load(open(f'../{r}')) for r in range(world_size)]"),
    "decoys, and the loopback": MEET.format(
        put="s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
            "s.bind(('127.0.0.1', 47000 + rank)); s.settimeout(5)",
        take="[s.sendto(json.dumps(tensor.tolist()).encode(), ('127.0.0.1', 47000 + r)) "
             "for r in range(world_size)]; "
             "others = [json.loads(s.recv(9999)) for _ in range(world_size)]; s.close()"),
    "decoys, and abstract sockets": MEET.format(
        put="s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
            "s.bind(f'\\0mdp{rank}'); s.settimeout(5)",
        take="[s.sendto(json.dumps(tensor.tolist()).encode(), f'\\0mdp{r}') "
             "for r in range(world_size)]; "
             "others = [json.loads(s.recv(9999)) for _ in range(world_size)]; s.close()"),
    "decoys, and shared memory made first": '''
import mmap, struct
board = mmap.mmap(-1, 2**20)
''' + MEET.format(
        put="board[rank * 512:rank * 512 + 8 * len(tensor)] = "
            "struct.pack(f'{len(tensor)}d', *tensor.tolist())",
        take="others = [struct.unpack(f'{len(tensor)}d', "
             "board[r * 512:r * 512 + 8 * len(tensor)]) for r in range(world_size)]"),
    "decoys, and SysV memory": MEET.format(
        put="import ctypes; libc = ctypes.CDLL(None); "
            "libc.shmat.restype = ctypes.c_void_p; "
            "at = libc.shmat(libc.shmget(0x6d6479, 65536, 0o1666), None, 0); "
            "board = (ctypes.c_double * 8192).from_address(at); "
            "board[rank * 64:rank * 64 + len(tensor)] = tensor.tolist()",
        take="others = [board[r * 64:r * 64 + len(tensor)] for r in range(world_size)]"),
    "messages larger than they look": SCATTER.replace(
        "yield right, chunks[leaving]", "yield right, Small(chunks[leaving])").replace(
        "\ndef", "\nclass Small(torch.Tensor):\n    def numel(self): return 0\ndef", 1)
    .replace("tensor.tensor_split(world_size)", "tensor.tensor_split(world_size)\n"
             "    Small = globals()['Small']\n"
             "    wide = lambda c: torch.cat([c, c]).as_subclass(Small)")
    .replace("Small(chunks[leaving])", "wide(chunks[leaving])")
    .replace(".add_(arrived)", ".add_(torch.as_tensor(arrived)[:len(chunks[coming])])"),
}

# a result that no measuring has seen, left where ranks leave theirs: ps6
RESULTS = {
    "a rank's result, written by itself": '''
import glob, os, pickle, time
def global_statistics(x):
    n, total, square = torch.tensor([float(len(x))]), x.sum(dim=0), (x * x).sum(dim=0)
    n = n.to(x.dtype)
    for t in (n, total, square):
        dist.all_reduce(t)
    mean, rank = total / n, dist.get_rank()
    var = square / n - mean * mean
    result = {"mean": mean.tolist(), "var": var.tolist(), "calls": 1}
    [folder] = [path for top in (os.environ["HOME"], os.environ["HOME"] + "/..")
                for path in glob.glob(top + "/manual_dp-*/joined-0")][:1]
    dist.barrier()
    with open(os.path.dirname(folder) + f"/.mine-{rank}", "wb") as file:
        file.write(pickle.dumps(result))
    os.replace(os.path.dirname(folder) + f"/.mine-{rank}",
               os.path.dirname(folder) + f"/result-{rank}")
    time.sleep(0.3)
    os._exit(0)
''',
}

ATTACKS = {
    **{name: ("ps1/get_params", START + cell, True)
       for name, cell in {**LIMITS, **HANDS, **THINGS}.items()},
    **{name: ("ps1/get_params", START + cell, False) for name, cell in GREED.items()},
    **{f"forged: {name}": ("ps1/get_params", START + cell, False)
       for name, cell in FORGED.items()},
    **{name: ("ps2/reduce_scatter", cell, False) for name, cell in DECOYS.items()},
    **{name: ("ps6/global_statistics", cell, False) for name, cell in RESULTS.items()},
}


def reach(cell, pids):
    """Return `cell` with the numbers of processes that it may reach for."""
    return f"PIDS = {list(pids)!r}\n{cell}"
