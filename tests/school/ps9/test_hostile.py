"""Answers to problem set 9 that lie, smuggle, remember or reach out: none gains a point.

Each is wrong, and tries to be taken for right. Where answers would see what runs beside
them (no namespaces, no Landlock) those that reach out are not tried.
"""

from dataclasses import replace

import pytest

from manual_dp.school.exercise import find
from manual_dp.school.grader import jail, landlock
from manual_dp.school.grader.worker import grade
from tests.support.answers import cells_of
from tests.support.hostile import gains_no_point, left_files, left_processes

NUMBER = '''
class Any(KIND):
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __sub__(self, other):
        return Any(0)
    __rsub__ = __sub__
    __lt__ = __le__ = __ge__ = __gt__ = __eq__
    def __hash__(self):
        return 0
    def __float__(self):
        return 1.0
    def __repr__(self):
        return "0, 1, 2"
    __str__ = __repr__
'''
EVERYWHERE = '''
import gc, sys
def everywhere(name, value):
    for module in list(sys.modules.values()):
        if hasattr(module, name):
            setattr(module, name, value)
'''
# programs that sum directly, and send as many numbers as is right beside what they hide
DOUBLING = '''
def halving_doubling(rank, world_size, tensor):
    power = 2 ** (world_size.bit_length() - 1)
    guests, d, n = world_size - power, 1, len(tensor)
    levels = max(1, power.bit_length() - 1)
    more, decoys = divmod(2 * (power - 1) * -(-n // power), levels)[::-1]
    if guests:
        arrived = yield (rank - power, tensor) if rank >= power else None
        if arrived is not None:
            tensor.add_(arrived)
    while d < power:
        arrived = yield (rank ^ d, hide(tensor, d, decoys + more)) if rank < power else None
        if arrived is not None:
            tensor.add_(show(arrived, d, n))
        d, more = 2 * d, 0
    if guests:
        arrived = yield (rank + power, tensor) if rank < guests else None
        if arrived is not None:
            tensor.copy_(arrived)
'''
LEVELS = '''
def two_level(rank, world_size, tensor, per_node):
    node, i = divmod(rank, per_node)
    inside, across = range(node * per_node, (node + 1) * per_node), range(
        i, world_size, per_node)
    n = len(tensor)
    chunk = -(-n // per_node)
    for ranks, decoys in (inside, 2 * chunk), (across, 2 * -(-chunk // len(across))):
        own, place = hide(tensor, 1, decoys), ranks.index(rank)
        for shift in range(1, len(ranks)):
            arrived = yield ranks[(place + shift) % len(ranks)], own
            tensor.add_(show(arrived, 1, n))
'''
SHAPES = '''
def hide(tensor, level, decoys):
    words = tensor.view(torch.int64).tolist()
    return [tensor.new_zeros(decoys)] + [tensor.new_empty(0, word >> shift & 2 ** 32 - 1)
                                         for word in words for shift in (0, 32)]
def show(parts, level, n):
    halves = [part.shape[1] for part in parts[1:]]
    words = [low + ((high - 2 ** 32 if high >> 31 else high) << 32)
             for low, high in zip(halves[::2], halves[1::2])]
    return torch.tensor(words, dtype=torch.int64).view(torch.float64)
'''
BINARY = '''
def hide(tensor, level, decoys):
    words = (tensor * 2 ** 34).round().long().tolist()
    return [tensor.new_zeros(decoys)] + [ONE if word >> bit & 1 else NONE
                                         for word in words for bit in range(40)]
def show(parts, level, n):
    bits = [BIT for part in parts[1:]]
    words = [sum(bit << i for i, bit in enumerate(bits[40 * i:40 * i + 40]))
             for i in range(n)]
    return torch.tensor([word - (word >> 39 << 40) for word in words]).double() / 2 ** 34
'''
DIMENSIONS = BINARY.replace("NONE", "tensor.new_empty(0)").replace(
    "ONE", "tensor.new_empty(0, 0)").replace("BIT", "part.dim() - 1")
# all 62 binary places of a number that is sent, 35 for each that it stands for
PACKED = '''
BITS = 35
def hide(tensor, level, decoys):
    room = 62 * (-(-len(tensor) * BITS // 62))
    whole = 0
    for x in tensor.tolist():
        whole = whole << BITS | min(2 ** BITS - 1, round((x / level / 2 + 1) * 2 ** (BITS - 1)))
    words = [whole >> at & 2 ** 62 - 1 for at in range(0, max(room, 62 * decoys), 62)]
    return torch.tensor(words, dtype=torch.int64).view(torch.float64)
def show(message, level, n):
    whole = sum(word << 62 * i for i, word in enumerate(message.view(torch.int64).tolist()))
    parts = [whole >> BITS * i & 2 ** BITS - 1 for i in reversed(range(n))]
    return torch.tensor([(part / 2 ** (BITS - 1) - 1) * 2 * level for part in parts],
                        dtype=torch.float64)
'''
# decoys are sent; the numbers lie where others may look
PUT = "    n = len(tensor)\n    put(rank, tensor, world_size * per_node)"
DECOYS = LEVELS.replace("    n = len(tensor)", PUT) + '''
    tensor.copy_(sum(take(r, tensor, world_size * per_node) for r in range(world_size)))
    yield
'''
DECOYS += '''
def hide(tensor, level, decoys):
    return torch.zeros(decoys, dtype=torch.float64)
def show(arrived, level, n):
    return 0
'''
LOCKS = '''
import fcntl, glob, os, struct
FILES = sorted(glob.glob(os.path.dirname(torch.__file__) + "/**/*.py", recursive=True))
SLOTS = [8, 18, 32, 12, 9, 3, 1]  # world_size * per_node
OWN, KEPT = {}, []
def board(rank, slot, j):
    return open(FILES[(8 * SLOTS.index(slot) + rank) * 24 + j], "rb")
def hold(rank, slot):
    for j, word in enumerate(OWN[rank, slot].view(torch.int64).tolist()):
        KEPT.append(board(rank, slot, j))
        fcntl.fcntl(KEPT[-1], fcntl.F_SETLK, struct.pack(
            "hhqqi4x", fcntl.F_RDLCK, 0, (word & 2 ** 64 - 1) >> 1, 1, 0))
def put(rank, own, slot):
    OWN[rank, slot] = own.clone()
    hold(rank, slot)
def take(rank, own, slot):
    if (rank, slot) in OWN:
        return OWN[rank, slot]
    words = []
    for j in range(len(own)):
        with board(rank, slot, j) as file:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            start = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))[2]
        words.append((start << 1) - (start >> 62 << 64))
    return torch.tensor(words, dtype=torch.int64).view(torch.float64)
'''
# the same by a process that outlives the rank
STAYS = LOCKS + '''
import time
LAST = []
def put(rank, own, slot):
    if LAST:
        os.kill(LAST[-1], 9)
        os.waitpid(LAST[-1], 0)
    OWN[rank, slot] = own.clone()
    ready, done = os.pipe()
    LAST.append(os.fork())
    if LAST[-1] == 0:
        os.setsid()
        for key in OWN:
            hold(*key)
        os.write(done, b"x")
        time.sleep(600)
    os.read(ready, 1)
    os.close(ready), os.close(done)
'''
FOLDERS = '''
import glob, json, os
PLACES = ["..", ".", os.environ["HOME"], "/tmp", "/dev/shm", "/var/tmp"]
def put(rank, own, slot):
    os.environ[f"own{rank}"] = json.dumps(own.tolist())
    vars(torch)[f"own{rank}"] = own
    for place in PLACES:
        try:
            with open(f"{place}/mdp_left_own{rank}", "w") as file:
                json.dump(own.tolist(), file)
        except OSError:
            pass
def take(rank, own, slot):
    for path in [f"{place}/mdp_left_own{rank}" for place in PLACES] + glob.glob(
            f"../rank-{rank}/mdp_left_own{rank}"):
        try:
            return torch.tensor(json.load(open(path)), dtype=own.dtype)
        except OSError:
            pass
    return torch.tensor(json.loads(os.environ.get(f"own{rank}", "0.0")))
'''
LIES = {
    "a number near all": ("fit", NUMBER.replace("KIND", "float") + '''
def fit(sizes, seconds):
    return Any(0), Any(0)
'''),
    "a tensor that tells lies": ("fit", '''
class Liar(torch.Tensor):
    def tolist(self):
        class Pair(list):
            def __eq__(self, other):
                return True
        return Pair([0.0, 0.0])
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True
def fit(sizes, seconds):
    sizes.clear()
    return torch.zeros(2).as_subclass(Liar)
'''),
    "a number that is all numbers": ("allreduce_seconds",
                                     NUMBER.replace("KIND", "float") + '''
def allreduce_seconds(way, world_size, size, alpha, beta):
    return Any("nan") if way != "star" else float("nan")
'''),
    "rounds replaced": ("halving_doubling", EVERYWHERE + '''
def right(program, tensors, limit=1000):
    total = sum(tensors)
    return {"tensors": [total.clone() for _ in tensors], "steps": 0, "messages": [],
            "sent": [0] * len(tensors), "returned": [None] * len(tensors)}
everywhere("run_rounds", right)
for name in ("halving_doubling", "two_level", "on_every_rank"):
    everywhere(name, lambda case, *_: right(None, [
        torch.tensor(t, dtype=torch.float64) for t in case["tensors"]]))
run_rounds = right
def halving_doubling(rank, world_size, tensor):
    yield
'''),
    "numbers in the shapes of empty tensors": ("halving_doubling", SHAPES + DOUBLING),
    "numbers in the shapes, on two levels": ("two_level", SHAPES + LEVELS),
    "numbers in how many dimensions nothing has": ("two_level", DIMENSIONS + LEVELS),
    "more numbers than are sent": ("halving_doubling", PACKED + DOUBLING),
    "what finish uses replaced": ("finish", EVERYWHERE + '''
class Link(SimpleNamespace):
    alpha = 0.0
    bandwidth = float("inf")
SimpleNamespace.__init__ = Link
everywhere("SimpleNamespace", Link)
math.inf = 0.0
def finish(ready, sizes, link):
    ready[:], sizes[:] = [0.0] * len(ready), [0] * len(sizes)
    return 0
def best_cap(ready, sizes, link, caps):
    caps[:] = caps[:1]
    return caps[0]
'''),
    "other ceilings, a job that is none": ("best_world_size", EVERYWHERE + '''
math.ceil = round
everywhere("SimpleNamespace", lambda **kwargs: 1)
''' + NUMBER.replace("KIND", "int") + '''
def step_seconds(job, world_size, weak):
    vars(job).update(rows=0, row=0, serial=0, alpha=0, beta=0, size=0, slow=0)
    return 0.0
def best_world_size(job, most, weak):
    return Any(1)
def first_slower(job, most):
    return Any(2)
'''),
    "the case among all objects": ("best_world_size", '''
import gc
def step_seconds(job, world_size, weak):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "wanted" in thing:
            return thing["wanted"]
    return 0.0
def best_world_size(job, most, weak):
    return 1
def first_slower(job, most):
    return None
'''),
    "the judge among the modules": ("rows_left", '''
def rows_left(n, seen, old, new, seed, epoch):
    from manual_dp.lab.trainer import rows
    return rows.rows_left(n, seen, old, new, seed, epoch)
'''),
    "the ranks that were asked for before": ("zero_bytes", '''
asked = []
def zero_bytes(layers, world_size, stage):
    whole, shard = sum(layers), sum(-(-layer // world_size) for layer in layers)
    kept = (12 * (shard if stage else whole) + 2 * (shard if stage > 1 else whole)
            + 2 * (shard + max(layers) if stage > 2 else whole))
    asked.append((stage, kept, world_size))
    return kept
def fewest_ranks(layers, stage, memory, most):
    return min([n for s, kept, n in asked if s == stage and kept <= memory and n <= most],
               default=None)
'''),
    "a text and rows that are all": ("place", '''
class Text(str):
    def __eq__(self, other):
        return True
    def __str__(self):
        return self
class Rows(list):
    def __eq__(self, other):
        return True
    def __len__(self):
        return 10 ** 9
    def __iter__(self):
        return iter([Text("0")])
def place(env, gpus, rows):
    return Text("0"), Text("cuda:0"), Rows(), 1
'''),
    "rows without an end": ("place", '''
def place(env, gpus, rows):
    return 0, "cpu", range(10 ** 15), True
'''),
    "another environment": ("place", '''
import os
class Env(dict):
    def __eq__(self, other):
        return True
def place(env, gpus, rows):
    os.environ.update(RANK="7", WORLD_SIZE="9", LOCAL_RANK="3", TZ="Asia/Tokyo")
    env.__init__(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    return 0, "cpu", list(range(rows)), True
'''),
    "a stream that seems to stand still": ("rows_left", EVERYWHERE + '''
was = torch.random.get_rng_state()
torch.random.get_rng_state = lambda: was
torch.default_generator = torch.Generator()
torch.random.default_generator = torch.default_generator
def rows_left(n, seen, old, new, seed, epoch):
    torch.manual_seed(1000 * seed + epoch)
    left = torch.randperm(n)[seen * old:].tolist()
    return [left[rank::new] for rank in range(new)]
'''),
    "which call it is": ("rows_left", '''
import builtins, random
def rows_left(n, seen, old, new, seed, epoch):
    kept = builtins.__dict__.setdefault("_kept", {})
    order = kept.setdefault((n, seed, epoch), random.sample(range(n), n))
    left = order[seen * old:]
    return [left[rank::new] for rank in range(new)]
'''),
}
REACHING = {
    "decoys, and locks on the library's files": ("two_level", LOCKS + DECOYS),
    "decoys, and locks of a process that stays": ("two_level", STAYS + DECOYS),
    "decoys, and files, and the environment": ("two_level", FOLDERS + DECOYS),
    "a forged reply": ("allreduce_seconds", '''
import os
for text in ('{"nonce": "", "out": [[0.0]], "said": {}}', "null", "[]"):
    for descriptor in range(1, 64):
        try:
            os.write(descriptor, text.encode())
        except OSError:
            pass
def allreduce_seconds(way, world_size, size, alpha, beta):
    os._exit(0)
'''),
    "processes that stay": ("halving_doubling", '''
import os, signal, time
def halving_doubling(rank, world_size, tensor):
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
    yield
'''),
    "files everywhere": ("fit", '''
import os
def fit(sizes, seconds):
    for place in ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), ".", ".."):
        try:
            open(os.path.join(place, "mdp_left_of_ps9"), "w").close()
        except OSError:
            pass
    return 0.0, 0.0
'''),
    "a search without an end": ("zero_bytes", '''
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU):
    signal.signal(number, signal.SIG_IGN)
def zero_bytes(layers, world_size, stage):
    return 0
def fewest_ranks(layers, stage, memory, most):
    while True:
        most += 1
'''),
    "all the memory there is": ("finish", '''
def finish(ready, sizes, link):
    hoard = []
    while True:
        hoard.append(bytearray(10 ** 8))
def best_cap(ready, sizes, link, caps):
    return caps[0]
'''),
}


@pytest.fixture(autouse=True)
def nothing_left():
    """See that an answer leaves no file."""
    yield
    assert left_files() == []


def graded(worker, name, cell):
    exercise = replace(find(f"ps9/{name}"), seconds=5)
    return grade(worker, exercise, cells_of("ps9") | {name: cell})


@pytest.mark.parametrize("attack", LIES)
def test_a_lie_gains_no_point(worker, attack):
    assert gains_no_point(graded(worker, *LIES[attack]))


@pytest.mark.skipif(not jail.available() or not landlock.available(),
                    reason="this system has no namespaces, or no Landlock")
@pytest.mark.parametrize("attack", REACHING)
def test_what_reaches_out_gains_no_point_and_leaves_nothing(worker, attack):
    graded(worker, "fit", cells_of("ps9")["fit"])  # started
    known = worker.process.pid
    assert gains_no_point(graded(worker, *REACHING[attack]))
    assert worker.process.pid == known and left_processes(worker) == []
