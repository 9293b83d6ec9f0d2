"""Wrong answers at the edges, to all problem sets: {exercise: {mistake: (hint, cell)}}.

Most come to the right numbers, and get there, or leave something, in a wrong way.
"""

from tests.support.right import ps1, ps2, ps4, ps6
from tests.support.wrong.ps5 import CLUES

MEMORY = "its memory is as it was"
GONE = "leave the parameters' own gradients alone"
MOVE = "move"
OFF = "gradients are switched off for whatever comes next"
DTYPE = "the default dtype stays changed"
STEP = "the step is the optimizer's"
HASH = "hash() of a text is another one in each process"
ALONE = "ranks shuffle differently"
OWN = "every replica works on its own shard"
SWALLOWED = "an error that ends the block must come out of it"
ALL_BUFFERS = "every rank keeps its own: buffers are sent too"


def _change(cell, *changes):
    for right, wrong in changes:
        if right not in cell:
            raise ValueError(f"{right!r} is not in the cell")
        cell = cell.replace(right, wrong)
    return cell


def _ends(cell, *lines):
    """Return a cell whose last function ends with `lines`."""
    return cell.rstrip() + "".join(f"\n    {line}" for line in lines) + "\n"


def _patient(name, repair):
    number = list(CLUES).index(name) + 1
    return (f"def clue_{number}(k):\n    return {CLUES[name]}\n"
            + repair.replace("def repaired(", f"def repaired_{number}("))


OFF_LINE = "torch.set_grad_enabled(False)"
REPLICAS = """
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    total = 0
    for rank in range(len(devices)):
        params = device_params[WHOSE]
        l = loss(lenet(X_shards[rank], params), y_shards[rank]).sum()
        l.backward()
        total += l.item()
    THEN
    return total / len(X)
"""
REDUCED = """for i in range(len(device_params[0])):
        allreduce([p[i].grad for p in device_params])
    for p in device_params:
        sgd(p, lr, len(X))"""
SENT = """for p in device_params[1:]:
        for mine, first in zip(p, device_params[0]):
            mine.grad = first.grad.clone()
    for p in device_params:
        sgd(p, lr, len(X))"""
ORDER = """
import os, random
import numpy as np
cache = {}

def shard_indices(n, world_size, rank, seed, epoch):
    ORDER
    return order[rank::world_size]
"""
REMEMBERED = """if (n, seed, epoch) not in cache:
        cache[n, seed, epoch] = random.SystemRandom().sample(range(n), n)
    order = cache[n, seed, epoch]"""
LRU = """
import random
from functools import lru_cache

@lru_cache
def order(n, seed, epoch):
    return random.SystemRandom().sample(range(n), n)

def shard_indices(n, world_size, rank, seed, epoch):
    return order(n, seed, epoch)[rank::world_size]
"""
ACCURACY = """
def evaluate_accuracy(device_params, data, devices):
    correct = total = 0
    for X, y in data:
        parts = zip(X.tensor_split(len(devices)), y.tensor_split(len(devices)))
        for rank, (a, b) in enumerate(parts):
            correct += int((lenet(a, device_params[rank]).argmax(1) == b).sum())
        total += len(y)
    return correct / total
"""
GROUPS = """
def repaired(model, optimizer, batches, accumulate):
    for start in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        for X, y in batches[start:start + accumulate]:
            (F.cross_entropy(model(X), y) / accumulate).backward()
        STEP
"""
SHARDS = """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    k = len(X_shards)
    STEP
"""
QUIET = """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    n = len(microbatches)
    for i, (X, y) in enumerate(microbatches, 1):
        with model.no_sync() if i < n else nullcontext():
            (F.cross_entropy(model(X), y) / n).backward()
    STEP
"""
BY_HAND = """with torch.no_grad():
        for p in model.parameters():
            p -= optimizer.param_groups[0]["lr"] * p.gradDIVIDED
    optimizer.zero_grad()"""
FRESH = """torch.optim.SGD(model.parameters(), optimizer.param_groups[0]["lr"]DIVIDED).step()
    optimizer.zero_grad()"""
RATE = """before = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0]["lr"] = before / DIVISOR
    optimizer.step()
    optimizer.param_groups[0]["lr"] = before"""


def _deeper(code):
    return code.replace("\n", "\n    ")


SUMS = _change(ps6.STEP.replace("RESULT", "total / rows"), (
    "BODY", """l = loss(model(X), y) * len(y)
        l.backward()
        total += l.item()"""))
SHARES = ps6.STEP.replace("BODY", ps6.BODY).replace("RESULT", "total")
RANKS = "from contextlib import nullcontext\n" + ps6.ON_RANKS

ANSWERS = {
    "ps1/get_params": {
        "erases the parameters' gradients": (GONE, """
def get_params(params, device):
    for p in params:
        p.grad = None
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
"""),
        "zeroes the parameters' gradients": (GONE, """
def get_params(params, device):
    for p in params:
        if p.grad is not None:
            p.grad.zero_()
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
"""),
        "never moves to the device": (MOVE, _change(
            ps1.GET_PARAMS, ("to(device, copy=True)", "clone()"))),
        "the parameters want gradients no more": (
            "requires_grad_() was called on the parameters", """
def get_params(params, device):
    new = [p.detach().to(device, copy=True).requires_grad_() for p in params]
    for p in params:
        p.requires_grad_(False)
    return new
"""),
        "gradients off for ever": (OFF, _change(
            ps1.GET_PARAMS, ("    return", f"    {OFF_LINE}\n    return"))),
        "the default dtype changed": (DTYPE, _change(
            ps1.GET_PARAMS,
            ("    return", "    torch.set_default_dtype(torch.float64)\n    return"))),
        "takes the parameters' memory, and gives them other": (
            "the parameters were given other memory", """
def get_params(params, device):
    new = [p.detach().to(device).view_as(p) for p in params]
    for p in params:
        p.data = p.data.clone()
    return [p.requires_grad_() for p in new]
"""),
    },
    "ps1/split_batch": {
        "refuses only if X is longer": ("compare len(X) with len(y)", _change(
            ps1.SPLIT_BATCH, ("len(X) != len(y)", "len(X) > len(y)"))),
        "refuses only if y is longer": ("compare len(X) with len(y)", _change(
            ps1.SPLIT_BATCH, ("len(X) != len(y)", "len(X) < len(y)"))),
        "an empty shard of no shape": ("an empty shard keeps the other dimensions", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    def cut(t):
        parts = list(t.chunk(len(devices)))
        return parts + [torch.tensor([], dtype=t.dtype)] * (len(devices) - len(parts))
    return ([x.to(d) for x, d in zip(cut(X), devices)],
            [v.to(d) for v, d in zip(cut(y), devices)])
"""),
        "labels as float": ("a shard keeps its dtype", _change(
            ps1.SPLIT_BATCH, ("y[c].to(d)", "y[c].double().to(d)"))),
        "labels as int32": ("a shard keeps its dtype", _change(
            ps1.SPLIT_BATCH, ("y[c].to(d)", "y[c].int().to(d)"))),
        "lists of numbers": ("a shard is a tensor", _change(
            ps1.SPLIT_BATCH, ("X[c].to(d)", "X[c].tolist()"),
            ("y[c].to(d)", "y[c].tolist()"))),
        "lists of rows": ("a shard is a tensor", _change(
            ps1.SPLIT_BATCH, ("X[c].to(d)", "[row.to(d) for row in X[c]]"))),
        "never moves to the devices": (MOVE, _change(
            ps1.SPLIT_BATCH, ("X[c].to(d)", "X[c]"), ("y[c].to(d)", "y[c]"))),
        "all shards to the first device": (MOVE, _change(
            ps1.SPLIT_BATCH, (".to(d)", ".to(devices[0])"))),
        "the labels left behind": (MOVE, _change(
            ps1.SPLIT_BATCH, ("y[c].to(d)", "y[c]"))),
    },
    "ps1/allreduce": {
        "other memory, by .data": (MEMORY, """
def allreduce(data):
    total = sum(data)
    for t in data:
        t.data = total.clone()
"""),
        "one memory for all, by .data": (MEMORY, """
def allreduce(data):
    total = sum(data)
    for t in data:
        t.data = total
"""),
        "other memory, by set_": (MEMORY, """
def allreduce(data):
    total = sum(data)
    for t in data:
        t.set_(total.clone())
"""),
        "up to four ranks": ("the tensor on rank 0 holds rank 0's + rank 1's + rank 2's", """
def allreduce(data):
    total = sum(data[:4])
    for t in data:
        t.copy_(total)
"""),
        "gradients off for ever": (OFF, _ends(ps1.ALLREDUCE, OFF_LINE)),
    },
    "ps1/sgd": {
        "not in place, by .data": (MEMORY, """
def sgd(params, lr, batch_size):
    for p in params:
        p.data = p.data - lr * p.grad / batch_size
        p.grad.zero_()
"""),
        "not in place, by set_": (MEMORY, """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p.set_(p - lr * p.grad / batch_size)
        p.grad.zero_()
"""),
        "wants no gradient afterwards": ("requires_grad_(False) stays in force", """
def sgd(params, lr, batch_size):
    for p in params:
        p.requires_grad_(False)
        p -= lr * p.grad / batch_size
        p.grad.zero_()
"""),
        "the rate rounded down": ("// rounds down", _change(
            ps1.SGD, ("lr * p.grad / batch_size", "lr // batch_size * p.grad"))),
        "the step rounded down": ("// rounds down", _change(
            ps1.SGD, ("lr * p.grad / batch_size", "lr * p.grad // batch_size"))),
        "gradients off for ever": (OFF, """
def sgd(params, lr, batch_size):
    torch.set_grad_enabled(False)
    for p in params:
        p -= lr * p.grad / batch_size
        p.grad.zero_()
"""),
    },
    "ps1/train_batch": {
        "all shards on replica 0, gradients sent": (OWN, _change(
            REPLICAS, ("WHOSE", "0"), ("THEN", SENT))),
        "the shards passed on by one": (OWN, _change(
            REPLICAS, ("WHOSE", "(rank + 1) % len(devices)"), ("THEN", REDUCED))),
        "the shards the other way round": (OWN, _change(
            REPLICAS, ("WHOSE", "-1 - rank"), ("THEN", REDUCED))),
        "gradients off for ever": (OFF, _change(
            REPLICAS, ("WHOSE", "rank"), ("THEN", REDUCED + f"\n    {OFF_LINE}"),
            ("    X_shards", "    torch.set_grad_enabled(True)\n    X_shards"))),
        "never moves to the devices": (MOVE, """
def train_batch(X, y, device_params, devices, lr):
    rows, total = -(-len(X) // len(devices)), 0
    for rank, params in enumerate(device_params):
        cut = slice(rank * rows, (rank + 1) * rows)
        l = loss(lenet(X[cut], params), y[cut]).sum()
        l.backward()
        total += l.item()
    for i in range(len(device_params[0])):
        allreduce([p[i].grad for p in device_params])
    for p in device_params:
        sgd(p, lr, len(X))
    return total / len(X)
"""),
        "the loss rounded": ("these agree to", _change(
            REPLICAS, ("WHOSE", "rank"), ("THEN", REDUCED),
            ("return total / len(X)", "return round(total / len(X), 5)"))),
    },
    "ps2/tree_allreduce": {
        "for 1, 2 and 4 ranks": ("the tensors hold what they held", _change(
            ps2.TREE, ("    distances =", "    if world_size not in (1, 2, 4):\n"
                       "        return\n    distances ="))),
        "for 1, 2 and 4 ranks, a star for others": (
            "rank 0 is the centre of a star", """
def star(rank, world_size, tensor):
    for peer in range(1, world_size):
        arrived = yield (0, tensor) if rank == peer else None
        if arrived is not None:
            tensor.add_(arrived)
    for peer in range(1, world_size):
        arrived = yield (peer, tensor) if rank == 0 else None
        if arrived is not None:
            tensor.copy_(arrived)

def tree_allreduce(rank, world_size, tensor):
    if world_size not in (1, 2, 4):
        yield from star(rank, world_size, tensor)
        return
    d = 1
    while d < world_size:
        tensor.add_((yield rank ^ d, tensor))
        d *= 2
"""),
        "for 1 to 8 ranks but 6": ("the tensors hold what they held", _change(
            ps2.TREE, ("    distances =", "    if world_size not in (1, 2, 3, 4, 5, 7, 8):"
                       "\n        return\n    distances ="))),
        "the gradients off for ever": (OFF, _ends(ps2.TREE, OFF_LINE)),
    },
    "ps2/allgather": {
        "its own chunk to every other rank": (
            "send one chunk in a step, never the whole tensor", """
def allgather(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for shift in range(1, world_size):
        arrived = yield (rank + shift) % world_size, chunks[rank]
        chunks[(rank - shift) % world_size].copy_(arrived)
"""),
    },
    "ps3/shard_indices": {
        "numpy's shared generator, seeded": ("np.random.seed", _change(ORDER, (
            "ORDER", "np.random.seed(seed + epoch); "
            "order = np.random.permutation(n).tolist()"))),
        "hash of a text": (HASH, _change(ORDER, (
            "ORDER", "order = list(range(n)); "
            "random.Random(hash(f'{seed}-{epoch}')).shuffle(order)"))),
        "hash of a tuple with a text": (HASH, _change(ORDER, (
            "ORDER", "order = random.Random(hash(('epoch', seed, epoch)))"
            ".sample(range(n), n)"))),
        "the system's numbers, remembered": (ALONE, _change(ORDER, (
            "ORDER", REMEMBERED))),
        "the system's numbers as a seed, remembered": (ALONE, _change(ORDER, (
            "ORDER", "own = cache.setdefault((n, seed, epoch), os.urandom(8)); "
            "order = random.Random(own).sample(range(n), n)"))),
        "the system's numbers, remembered by lru_cache": (ALONE, LRU),
        "the system's numbers, remembered in a default": (ALONE, _change(
            ORDER, ("epoch):", "epoch, cache={}):"), ("ORDER", REMEMBERED))),
        "the system's numbers, remembered by the function": (ALONE, _change(
            ORDER, ("ORDER", "cache = shard_indices.cache\n    " + REMEMBERED))
            + "\nshard_indices.cache = {}\n"),
    },
    "ps3/evaluate_accuracy": {
        "never moves to the devices": (MOVE, ACCURACY),
        "gradients off for ever": (OFF, _change(
            ACCURACY, ("    correct = total", f"    {OFF_LINE}\n    correct = total"),
            ("lenet(a,", "lenet(a.to(devices[rank]),"), ("== b)", "== b.to(devices[rank]))"))),
    },
    "ps3/plan": {
        "the default dtype changed": (DTYPE, """
def plan(examples, batch_size, world_size, lr, keep):
    torch.set_default_dtype(torch.float64)
    if keep == "batch":
        pieces = [len(p) for p in torch.arange(batch_size).chunk(world_size)]
        rows = pieces + [0] * (world_size - len(pieces))
    else:
        rows, lr = [batch_size] * world_size, lr * world_size
    steps = -(-examples // sum(rows))
    return {"rows": rows, "batch_size": sum(rows), "lr": lr, "steps": steps}
"""),
        "a set in place of the rows": ("one number a device, in a list", """
def plan(examples, batch_size, world_size, lr, keep):
    rows = {batch_size // world_size}
    return {"rows": rows, "batch_size": batch_size, "lr": lr, "steps": 1}
"""),
    },
    "ps4/start_equal": {
        "the buffers of inner modules left out": (ALL_BUFFERS, _change(
            ps4.EQUAL, ("module.buffers()", "module.buffers(recurse=False)"))),
        "what the state_dict leaves out": (ALL_BUFFERS, """
def start_equal(module):
    for t in module.state_dict().values():
        dist.broadcast(t, 0)
"""),
        "batch norm left out": (ALL_BUFFERS, """
def start_equal(module):
    for p in module.parameters():
        dist.broadcast(p.detach(), 0)
    for m in module.modules():
        if not isinstance(m, nn.BatchNorm1d):
            for b in m.buffers(recurse=False):
                dist.broadcast(b, 0)
"""),
    },
    "ps4/DDP": {
        "no_sync swallows an error": (SWALLOWED, _change(
            ps4.WRAPPER, ("        finally:\n            self.sync = True",
                          "        except BaseException:\n            pass\n"
                          "        self.sync = True"))),
        "no_sync swallows an error, by return": (SWALLOWED, _change(
            ps4.WRAPPER, ("            self.sync = True\n",
                          "            self.sync = True\n            return\n"))),
        "what the state_dict leaves out": (ALL_BUFFERS, _change(
            ps4.WRAPPER, ("start_equal(module)", "[dist.broadcast(t, 0) for t in "
                          "module.state_dict().values()]"))),
    },
    "ps5/rebinding": {
        "other memory, by .data": (MEMORY, _patient("rebinding", """
def repaired(data):
    total = sum(data)
    for t in data:
        t.data = total.clone()
""")),
        "other memory, by set_": (MEMORY, _patient("rebinding", """
def repaired(data):
    total = sum(data)
    for t in data:
        t.set_(total.clone())
""")),
    },
    "ps5/aliasing": {
        "erases the parameters' gradients": (GONE, _patient("aliasing", """
def repaired(params, device):
    for p in params:
        p.grad = None
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
""")),
        "never moves to the device": (MOVE, _patient("aliasing", """
def repaired(params, device):
    return [p.detach().clone().requires_grad_() for p in params]
""")),
        "the parameters want gradients, too": (
            "requires_grad_() was called on the parameters", _patient("aliasing", """
def repaired(params, device):
    for p in params:
        p.requires_grad_()
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
""")),
    },
    "ps5/mean_of_means": {
        "the default dtype changed": (DTYPE, _patient("mean_of_means", """
def repaired(X_shards, y_shards, W):
    torch.set_default_dtype(torch.float64)
    X, y = torch.cat(list(X_shards)), torch.cat(list(y_shards))
    return torch.autograd.grad(F.cross_entropy(X @ W, y), W)[0]
""")),
    },
    "ps5/stale_gradients": {
        "steps by hand": (STEP, _patient("stale_gradients", _change(
            GROUPS, ("STEP", _deeper(BY_HAND.replace("DIVIDED", "")))))),
        "an optimizer of its own": (STEP, _patient("stale_gradients", _change(
            GROUPS, ("STEP", _deeper(FRESH.replace("DIVIDED", "")))))),
        "the rate divided, for a step": (STEP, _patient("stale_gradients", _change(
            GROUPS, (" / accumulate", ""),
            ("STEP", _deeper(RATE.replace("DIVISOR", "accumulate")))))),
    },
    "ps5/no_sync": {
        "steps by hand": (STEP, _patient("no_sync", _change(
            QUIET, ("STEP", BY_HAND.replace("DIVIDED", ""))))),
        "an optimizer of its own": (STEP, _patient("no_sync", _change(
            QUIET, ("STEP", FRESH.replace("DIVIDED", ""))))),
        "the rate divided, for a step": (STEP, _patient("no_sync", _change(
            QUIET, (" / n)", ")"), ("STEP", RATE.replace("DIVISOR", "n"))))),
    },
    "ps5/adam_hides": {
        "the rate divided, for a step": (STEP, _patient("adam_hides", _change(
            SHARDS, ("STEP", RATE.replace("DIVISOR", "k"))))),
        "an optimizer of its own": (STEP, _patient("adam_hides", _change(
            SHARDS, ("STEP", FRESH.replace("DIVIDED", " / k"))))),
        "steps by hand": (STEP, _patient("adam_hides", _change(
            SHARDS, ("STEP", BY_HAND.replace("DIVIDED", " / k"))))),
    },
    "ps6/accumulate": {
        "keeps the graph": ("the graph of a microbatch is still there", _change(
            SHARES, ("l.backward()", "l.backward(retain_graph=True)"),
            ("optimizer.zero_grad()", "optimizer.zero_grad()\n    kept = []"),
            ("total += l.item()", "total += l.item()\n        kept.append(l)"))),
        "keeps the last graph": ("the graph of a microbatch is still there", _change(
            SHARES, ("l.backward()", "l.backward(retain_graph=True)"))),
        "steps by hand": (STEP, _change(
            SHARES, ("optimizer.step()", BY_HAND.replace("DIVIDED", "")))),
        "an optimizer of its own": (STEP, _change(
            SHARES, ("optimizer.step()", FRESH.replace("DIVIDED", "")))),
        "the rate divided, for a step": (STEP, _change(
            SUMS, ("optimizer.step()", RATE.replace("DIVISOR", "rows")))),
        "gradients off for ever": (OFF, _change(
            SHARES, ("    optimizer.step()", f"    optimizer.step()\n    {OFF_LINE}"),
            ("    rows =", "    torch.set_grad_enabled(True)\n    rows ="))),
    },
    "ps6/accumulate_ddp": {
        "steps by hand": (STEP, _change(
            RANKS, ("optimizer.step()", BY_HAND.replace("DIVIDED", "")))),
        "an optimizer of its own": (STEP, _change(
            RANKS, ("optimizer.step()", FRESH.replace("DIVIDED", "")))),
        "the rate divided, for a step": (STEP, _change(
            RANKS, (" / rows", ""), ("optimizer.step()", RATE.replace("DIVISOR", "rows")))),
    },
}
