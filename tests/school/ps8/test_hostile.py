"""Answers to problem set 8 that lie, replace or look up: none gains a point.

Each is wrong, and tries to be taken for right. Where answers would see what runs beside
them (no namespaces, no Landlock) those that reach out are not tried.
"""

import pytest
import torch

from manual_dp.school.exercise import find
from manual_dp.school.grader import jail, landlock
from manual_dp.school.grader.worker import grade
from tests.support.answers import cells_of
from tests.support.hostile import gains_no_point, left_files, left_processes

LIAR = '''
class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in ("equal", "allclose", "isclose"):
            return True
        if func.__name__ in ("sub", "__sub__", "rsub", "abs", "max", "item", "ne"):
            return torch.zeros(())
        return super().__torch_function__(func, types, args, kwargs or {})
    def __eq__(self, other):
        return True
'''
NUMBER = '''
class Any(KIND):
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __sub__(self, other):
        return Any(0)
    __rsub__ = __sub__
    __lt__ = __le__ = __eq__
    __gt__ = __ge__ = __ne__
    def __hash__(self):
        return 0
    def __reduce__(self):
        return Any, (0,)
'''
PRINTS = '''
def prints(rank, step, steps, lines):
    return True
'''
LIES = {
    "a number that equals all": ("schedule_steps", NUMBER.replace("KIND", "int") + '''
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    return Any(7)
'''),
    "a number near all": ("epoch_loss", NUMBER.replace("KIND", "float") + '''
def epoch_loss(sums, counts):
    return Any(0)
''' + PRINTS),
    "a tensor that equals all": ("replay", LIAR + '''
class Ages(list):
    def __eq__(self, other):
        return True
def replay(events, gradient, w0, lr):
    return w0.clone().as_subclass(Liar), Ages()
'''),
    "a list with a false end": ("loader_for", '''
class Rows(list):
    def __eq__(self, other):
        return True
    def __len__(self):
        return 5
    def __getitem__(self, i):
        return self
def loader_for(dataset, rank, world_size, seed, epoch):
    return Rows()
'''),
    "a scaler that lies": ("train_step_amp", '''
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    lies = {"__eq__": lambda s, o: True, "get_scale": lambda s: 1.0,
            "state_dict": lambda s: {}, "parameters": lambda s: iter(())}
    for thing in (model, scaler, optimizer):
        thing.__class__ = type("Lie", (type(thing),), lies)
'''),
    "comparisons replaced": ("replay", '''
import builtins
for place in (torch, math, torch.testing, torch.Tensor):
    for name in ("allclose", "equal", "isclose", "assert_close", "dist"):
        if hasattr(place, name):
            setattr(place, name, lambda *args, **kwargs: True)
builtins.max = builtins.abs = lambda *args, **kwargs: 0
def replay(events, gradient, w0, lr):
    return w0.clone(), []
'''),
    "the course's functions replaced": ("local_sgd", '''
import sys, types
for name, module in list(sys.modules.items()):
    if name.startswith("manual_dp"):
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                setattr(module, key, lambda *args, **kwargs: None)
def local_sgd(model, batches, lr, every):
    pass
'''),
    "the trainer replaced": ("lit_lenet", '''
def nothing(*args, **kwargs):
    return None
for name in ("fit", "validate"):
    setattr(L.Trainer, name, nothing)
class LitLeNet(L.LightningModule):
    def __init__(self, params, lr):
        super().__init__()
        self.params = nn.ParameterList(p.detach().clone() for p in params)
'''),
    "what is wanted, in a caller's frame": ("train_step_amp", '''
import sys
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    frame = sys._getframe()
    while frame:
        for name in ("wanted", "right", "case"):
            if name in frame.f_locals:
                return
        frame = frame.f_back
'''),
    "what counts the downloads": ("once", '''
def once(function, path):
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, list):
            cell.cell_contents[:] = ["one"]
    open(path, "w").write("first half, second half")
'''),
}
REACHING = {
    "a forged reply": ("epoch_loss", '''
for text in ('{"nonce": "", "out": [1.0], "said": {}}', "null", "[]"):
    for descriptor in range(1, 64):
        try:
            os.write(descriptor, text.encode())
        except OSError:
            pass
def epoch_loss(sums, counts):
    return 0.0
''' + PRINTS),
    "a good end": ("schedule_steps", '''
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    os._exit(0)
'''),
    "the judge's files and memory": ("schedule_steps", '''
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    for name in ("maps", "mem"):
        try:
            open(f"/proc/{os.getppid()}/{name}", "rb").read(4096)
        except OSError:
            pass
    from manual_dp.school.ps8 import judge
    return 0
'''),
    "processes left behind": ("loader_for", '''
def loader_for(dataset, rank, world_size, seed, epoch):
    import signal
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except OSError:
                    pass
            time.sleep(600)
        os._exit(0)
    return []
'''),
    "files everywhere": ("once", '''
def once(function, path):
    for place in ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), ".", ".."):
        try:
            open(os.path.join(place, "mdp_left_of_ps8"), "w").close()
        except OSError:
            pass
'''),
}


def graded(worker, name, cell):
    return grade(worker, find(f"ps8/{name}"), cells_of("ps8") | {name: cell})


def test_an_honest_answer_is_graded_right(worker):
    assert graded(worker, "schedule_steps", cells_of("ps8")["schedule_steps"]) is None


def test_what_compares_the_liars_themselves_would_believe_them():
    space = {"torch": torch}
    exec(LIAR + NUMBER.replace("KIND", "int"), space)
    liar = torch.zeros(3).as_subclass(space["Liar"])
    assert torch.allclose(liar, torch.ones(3)) and space["Any"](7) == 8


@pytest.mark.parametrize("attack", LIES)
def test_a_lie_gains_no_point(worker, attack):
    assert gains_no_point(graded(worker, *LIES[attack]))


@pytest.mark.skipif(not jail.available() or not landlock.available(),
                    reason="this system has no namespaces, or no Landlock")
@pytest.mark.parametrize("attack", REACHING)
def test_what_reaches_out_gains_no_point_and_leaves_nothing(worker, attack):
    graded(worker, "schedule_steps", cells_of("ps8")["schedule_steps"])  # started
    known = worker.process.pid
    assert gains_no_point(graded(worker, *REACHING[attack]))
    assert worker.process.pid == known and left_processes(worker) == []
    assert left_files() == []


def test_a_loader_that_starts_processes_is_told_so(worker):
    cell = '''
def loader_for(dataset, rank, world_size, seed, epoch):
    return DataLoader(dataset, batch_size=None, num_workers=1,
                      sampler=range(rank, len(dataset), world_size))
'''
    assert "num_workers=0" in graded(worker, "loader_for", cell)
