"""Right answers to problem set 1, by style: {exercise: {style: cell}}.

Written from the text alone. Many try what they have written in their own cell, as
learners do, with what the notebook's first cell imports.
"""

from tests.support.right import lessons

GET_PARAMS = """
def get_params(params, device):
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
"""
SPLIT_BATCH = """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths differ")
    rows = -(-len(X) // len(devices))
    cuts = [slice(r * rows, (r + 1) * rows) for r in range(len(devices))]
    return ([X[c].to(d) for c, d in zip(cuts, devices)],
            [y[c].to(d) for c, d in zip(cuts, devices)])
"""
ALLREDUCE = """
def allreduce(data):
    total = sum(t.to(data[0].device) for t in data)
    for t in data:
        t.copy_(total)
"""
SGD = """
def sgd(params, lr, batch_size):
    with torch.no_grad():
        for p in params:
            p -= lr * p.grad / batch_size
            p.grad.zero_()
"""
TRAIN = """
def train_batch(X, y, device_params, devices, lr):
    Xs, ys = split_batch(X, y, devices)
    FORWARD
    for grads in zip(*([p.grad for p in params] for params in device_params)):
        allreduce(list(grads))
    for params in device_params:
        sgd(params, lr, len(X))
    return RESULT
"""


def _train(forward, result, before="", after=""):
    forward = "\n    ".join(forward.strip("\n").splitlines())
    return before + TRAIN.replace("FORWARD", forward).replace("RESULT", result) + after


EACH = """
total = 0.0
for X_shard, y_shard, params in zip(Xs, ys, device_params):
    l = loss(lenet(X_shard, params), y_shard).sum()
    l.backward()
    total += l.item()
"""

ANSWERS = {
    "get_params": lessons.ANSWERS["02/get_params"] | {
        "the graph cut by no_grad": """
@torch.no_grad()
def get_params(params, device):
    return [torch.clone(p).to(device).requires_grad_(True) for p in params]
""",
        "map and a lambda": """
get_params = lambda params, device: list(map(
    lambda p: p.detach().clone().to(device=device).requires_grad_(), params))
""",
        "a nested function and a for loop": """
def get_params(params, device):
    def copy_one(p):
        q = torch.zeros(p.shape, dtype=p.dtype, device=device)
        q += p.detach()
        q.requires_grad = True
        return q
    result = []
    for i in range(len(params)):
        result.append(copy_one(params[i]))
    return result
""",
        "copy.deepcopy of what is detached": """
import copy
def get_params(params, device):
    return [copy.deepcopy(p.detach()).to(device).requires_grad_() for p in params]
""",
        "through numpy": """
import numpy as np
def get_params(params, device):
    arrays = [np.array(p.detach().cpu().numpy()) for p in params]
    return [torch.from_numpy(a).to(device).requires_grad_() for a in arrays]
""",
        "recursion, type hints and asserts": """
from typing import List
def get_params(params: List[torch.Tensor], device: torch.device) -> List[torch.Tensor]:
    if not params:
        return []
    first = params[0].detach().to(device, copy=True)
    first.requires_grad_(True)
    assert first.is_leaf and first.grad is None
    return [first, *get_params(params[1:], device)]
""",
        "a class that is called": """
class Copier:
    def __call__(self, params, device):
        return [torch.nn.Parameter(p.detach().to(device, copy=True)) for p in params]
get_params = Copier()
""",
        "tried on LeNet's own parameters": GET_PARAMS + """
params = init_params("he", torch.Generator().manual_seed(0), torch.float64)
replicas = [get_params(params, device) for device in try_devices(3)]
assert all(torch.equal(p, q) for r in replicas for p, q in zip(params, r))
print(len(replicas), "replicas of", len(params))
""",
        "checked in the same cell": GET_PARAMS + """
check("ps1/get_params", get_params)
print("done!")
""",
        "looked at with display and a question mark": GET_PARAMS + """
display(get_params(init_params(), "cpu")[1])
get_params?
""",
        "timed": GET_PARAMS + """
params = init_params()
%timeit -n 1 -r 1 get_params(params, "cpu")
!ls
""",
        "a cell magic above": "%%time\n" + GET_PARAMS.lstrip(),
    },
    "split_batch": lessons.ANSWERS["04/split_batch"] | {
        "chunk, then empty ones": """
def split_batch(X, y, devices):
    if X.shape[0] != y.shape[0]:
        raise ValueError(f"{X.shape[0]} images, {y.shape[0]} labels")
    def cut(t):
        parts = list(t.chunk(len(devices)))
        parts += [t[:0]] * (len(devices) - len(parts))
        return [part.to(device) for part, device in zip(parts, devices)]
    return cut(X), cut(y)
""",
        "a running start": """
import math
def split_batch(X, y, devices):
    n, k = X.size(0), len(devices)
    if n != y.size(0):
        raise ValueError("X and y must be equally long")
    step, start, X_shards, y_shards = math.ceil(n / k), 0, [], []
    while len(X_shards) < k:
        X_shards.append(X[start:start + step].to(devices[len(X_shards)]))
        y_shards.append(y[start:start + step].to(devices[len(y_shards)]))
        start += step
    return X_shards, y_shards
""",
        "narrow and min": """
def split_batch(X, y, devices):
    if len(X) != len(y): raise ValueError
    n, k = len(X), len(devices)
    m = (n + k - 1) // k
    sizes = [max(0, min(m, n - r * m)) for r in range(k)]
    starts = [min(n, r * m) for r in range(k)]
    return tuple([t.narrow(0, a, s).to(d) for a, s, d in zip(starts, sizes, devices)]
                 for t in (X, y))
""",
        "torch.split by sizes": """
def split_batch(X, y, devices):
    if not len(X) == len(y):
        raise ValueError("not as many labels as images")
    left, sizes = len(X), []
    rows = -(-left // len(devices))
    for _ in devices:
        sizes.append(min(rows, left))
        left -= sizes[-1]
    X_shards = [x.to(device) for x, device in zip(torch.split(X, sizes), devices)]
    y_shards = [v.to(device) for v, device in zip(torch.split(y, sizes), devices)]
    return X_shards, y_shards
""",
        "index_select, a pair in a list": """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError(f"{len(X)} != {len(y)}")
    rows = -(-len(X) // len(devices))
    def pick(t, rank):
        which = torch.arange(rank * rows, min((rank + 1) * rows, len(t))) \\
            if rank * rows < len(t) else torch.arange(0)
        return t.index_select(0, which).to(devices[rank])
    return [[pick(t, rank) for rank in range(len(devices))] for t in (X, y)]
""",
        "copies of the rows": SPLIT_BATCH.replace("X[c]", "X[c].clone()"),
        "tried on digits": SPLIT_BATCH + """
train_iter, _ = load_data("digits", batch_size=50, dtype=torch.float64)
X, y = next(iter(train_iter))
X_shards, y_shards = split_batch(X, y, try_devices(4))
assert torch.equal(torch.cat(X_shards), X) and len(X_shards) == 4
print([len(shard) for shard in X_shards])
""",
        "the refusal tried": SPLIT_BATCH + """
try:
    split_batch(torch.ones(3), torch.ones(2), try_devices(2))
except ValueError as error:
    print(error)
else:
    assert False
""",
        "its help, and the folder": "%matplotlib inline\n" + SPLIT_BATCH + """
files = !ls
split_batch??
?torch.chunk
""",
    },
    # the book's slices, `data[0][:]`, and here a tensor may have no dimensions
    "allreduce": {name: cell for name, cell in lessons.ANSWERS["03/allreduce"].items()
                  if "as in the book" not in name} | {
        "a halving tree": """
def allreduce(data):
    n, d = len(data), 1
    while d < n:
        for i in range(0, n - d, 2 * d):
            data[i].add_(data[i + d].to(data[i].device))
        d *= 2
    for t in data[1:]:
        t.copy_(data[0])
""",
        "a view of each, flat": """
def allreduce(data):
    with torch.no_grad():
        total = torch.zeros_like(data[0])
        for t in data:
            total = total + t.to(total.device)
        for t in data:
            t.fill_(0).add_(total.to(t.device))
""",
        "itertools.accumulate": """
from itertools import accumulate
def allreduce(data):
    *_, total = accumulate(t.clone().to(data[0].device) for t in data)
    [t.copy_(total) for t in data]
""",
        "torch.add with out": """
def allreduce(data):
    for t in data[1:]:
        torch.add(data[0], t.to(data[0].device), out=data[0])
    for i in range(1, len(data)):
        data[i][...] = data[0].to(data[i].device)
""",
        "through numpy": """
import numpy as np
def allreduce(data):
    total = np.sum([t.detach().cpu().numpy() for t in data], axis=0)
    for t in data:
        t.copy_(torch.as_tensor(total))
""",
        "copies first, then each adds the others": """
def allreduce(data):
    sent = [t.clone() for t in data]
    for i, t in enumerate(data):
        for j in range(len(data)):
            if j != i:
                t += sent[j].to(t.device)
""",
        "tried in its cell": ALLREDUCE + """
data = [torch.ones(1, 2) * (i + 1) for i in range(3)]
allreduce(data)
print(data)
assert (data[2] == 6).all()
check("ps1/allreduce", allreduce, times=2)
""",
        "a name of the first cell looked at": ALLREDUCE + """
load_data
display(loss)
%time allreduce([torch.zeros(2)] )
""",
    },
    "sgd": lessons.ANSWERS["05/sgd"] | {
        "by .data": """
def sgd(params, lr, batch_size):
    for p in params:
        p.data -= lr / batch_size * p.grad
        p.grad.data.zero_()
""",
        "add_ with alpha": """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p.add_(p.grad, alpha=-lr / batch_size)
    for p in params:
        p.grad.fill_(0)
""",
        "copy_ of the new numbers": """
def sgd(params, lr, batch_size):
    with torch.no_grad():
        new = [p - lr * p.grad / batch_size for p in params]
        for p, q in zip(params, new):
            p.copy_(q)
            p.grad *= 0
""",
        "sub_ and zero_ by index": """
@torch.no_grad()
def sgd(params, lr, batch_size):
    rate = lr / batch_size
    for i in range(len(params)):
        params[i].sub_(rate * params[i].grad)
        params[i].grad.zero_()
""",
        "sliced assignment, under inference of no graph": """
def sgd(params, lr, batch_size):
    torch_no_grad = torch.no_grad()
    torch_no_grad.__enter__()
    for p in params:
        p[...] = p - lr * (p.grad / batch_size)
        p.grad[...] = 0
    torch_no_grad.__exit__(None, None, None)
""",
        "grad mode switched off, and on again": """
def sgd(params, lr, batch_size):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        for p in params:
            p -= lr * p.grad / batch_size
            p.grad.zero_()
    finally:
        torch.set_grad_enabled(before)
""",
        "foreach": """
@torch.no_grad()
def sgd(params, lr, batch_size):
    grads = [p.grad for p in params]
    torch._foreach_add_(params, grads, alpha=-lr / batch_size)
    torch._foreach_zero_(grads)
""",
        "torch's own SGD": """
def sgd(params, lr, batch_size):
    optimizer = torch.optim.SGD(params, lr=lr / batch_size)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
""",
        "Fraction for the rate": """
from fractions import Fraction
def sgd(params, lr, batch_size):
    rate = float(Fraction(lr) / batch_size)
    with torch.no_grad():
        for p in params:
            p -= rate * p.grad
            p.grad.zero_()
""",
        "tried on one number": SGD + """
w = torch.tensor([1.0], requires_grad=True)
(3 * w).sum().backward()
sgd([w], 0.1, 3)
assert abs(w.item() - 0.9) < 1e-6, w
print(w, w.grad)
""",
        "tried on LeNet and digits": SGD + """
train_iter, test_iter = load_data("digits", 32)
params = [p.requires_grad_() for p in init_params("he")]
for X, y in train_iter:
    loss(lenet(X, params), y).sum().backward()
    sgd(params, 0.1, len(X))
    break
check("ps1/sgd", sgd)
""",
    },
    "train_batch": lessons.ANSWERS["05/train_batch"] | {
        "as in the book": """
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    ls = [loss(lenet(X_shard, device_W), y_shard).sum()
          for X_shard, y_shard, device_W in zip(X_shards, y_shards, device_params)]
    for l in ls:
        l.backward()
    with torch.no_grad():
        for i in range(len(device_params[0])):
            allreduce([device_params[c][i].grad for c in range(len(devices))])
    for param in device_params:
        sgd(param, lr, X.shape[0])
    return sum(l.item() for l in ls) / len(X)
""",
        "one backward of the sum of all": _train("""
losses = [loss(lenet(a, p), b).sum() for a, b, p in zip(Xs, ys, device_params)]
sum(losses).backward()
""", "float(sum(losses).detach()) / len(X)"),
        "each shard forward and backward": _train(EACH, "total / len(X)"),
        "a tensor as the loss": _train(EACH.replace(".item()", ".detach()"),
                                       "total / len(y)"),
        "a tensor that still hangs on the graph": _train(EACH.replace(".item()", ""),
                                                         "total / len(y)"),
        "numpy's float64": _train(EACH, "np.float64(total) / np.int64(len(X))",
                                  "import numpy as np\n"),
        "numpy's float32": _train(EACH, "np.float32(total / len(X))",
                                  "import numpy as np\n"),
        "a Fraction": _train(EACH, "Fraction(total) / len(X)",
                             "from fractions import Fraction\n"),
        "a Decimal": _train(EACH, "Decimal(total) / len(X)",
                            "from decimal import Decimal\n"),
        "an array of no dimension": _train(EACH, "np.array(total / len(X))",
                                           "import numpy as np\n"),
        "the loss a second time, without gradients": _train("""
for a, b, params in zip(Xs, ys, device_params):
    loss(lenet(a, params), b).sum().backward()
with torch.no_grad():
    total = sum(loss(lenet(a, p), b).sum().item()
                for a, b, p in zip(Xs, ys, device_params))
""", "total / len(X)"),
        "the loss first, without gradients": _train("""
with torch.no_grad():
    total = sum(loss(lenet(a, p), b).sum() for a, b, p in zip(Xs, ys, device_params))
for a, b, params in zip(Xs, ys, device_params):
    loss(lenet(a, params), b).sum().backward()
""", "(total / len(X)).item()"),
        "row by row": _train("""
total = 0
for a, b, params in zip(Xs, ys, device_params):
    loss(lenet(a, params), b).sum().backward() if not len(a) else None
    for i in range(len(a)):
        l = loss(lenet(a[i:i + 1], params), b[i:i + 1]).sum()
        l.backward()
        total += l.item()
""", "total / len(X)"),
        "two halves of a shard": _train("""
total = 0
for a, b, params in zip(Xs, ys, device_params):
    for few, labels in zip(a.tensor_split(2), b.tensor_split(2)):
        l = loss(lenet(few, params), labels).sum()
        l.backward()
        total += float(l)
""", "total / len(X)"),
        "autograd.grad in place of backward": _train("""
total = 0
for a, b, params in zip(Xs, ys, device_params):
    l = loss(lenet(a, params), b).sum()
    for p, g in zip(params, torch.autograd.grad(l, params)):
        p.grad = g
    total += l.item()
""", "total / len(X)"),
        "old gradients cleared first": _train("""
for params in device_params:
    for p in params:
        p.grad = None
""" + EACH, "total / X.shape[0]"),
        "keyword arguments": """
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X=X, y=y, devices=devices)
    ls = []
    for rank in range(len(devices)):
        y_hat = lenet(X=X_shards[rank], params=device_params[rank])
        ls.append(loss(y_hat=y_hat, y=y_shards[rank]).sum())
    for l in ls:
        l.backward()
    for i, _ in enumerate(device_params[0]):
        allreduce(data=[device_params[r][i].grad for r in range(len(devices))])
    for params in device_params:
        sgd(params=params, lr=lr, batch_size=X.shape[0])
    return torch.stack([l.detach().cpu() for l in ls]).sum().item() / X.shape[0]
""",
        "helpers of its own": """
def forward_backward(a, b, params):
    l = loss(lenet(a, params), b).sum()
    l.backward()
    return l.item()

def reduce_all(device_params):
    for i in range(len(device_params[0])):
        allreduce([params[i].grad for params in device_params])

def train_batch(X, y, device_params, devices, lr):
    shards = zip(*split_batch(X, y, devices), device_params)
    total = sum(forward_backward(*shard) for shard in shards)
    reduce_all(device_params)
    for params in device_params:
        sgd(params, lr, len(X))
    return total / len(X)
""",
        "threads": _train("""
with ThreadPoolExecutor(2) as pool:
    def work(a, b, params):
        l = loss(lenet(a, params), b).sum()
        l.backward()
        return l.item()
    total = sum(pool.map(work, Xs, ys, device_params))
""", "total / len(X)", "from concurrent.futures import ThreadPoolExecutor\n"),
        "without the other answers": """
def train_batch(X, y, device_params, devices, lr):
    rows, total = -(-len(X) // len(devices)), 0
    for r, params in enumerate(device_params):
        a, b = X[r * rows:][:rows].to(devices[r]), y[r * rows:][:rows].to(devices[r])
        l = loss(lenet(a, params), b).sum() / len(X)
        l.backward()
        total += l.item()
    with torch.no_grad():
        for ps in zip(*device_params):
            g = sum(p.grad.to(ps[0].device) for p in ps)
            for p in ps:
                p -= lr * g.to(p.device)
                p.grad = None
    return total
""",
        "a dataclass": """
from dataclasses import dataclass

@dataclass
class Shard:
    X: torch.Tensor
    y: torch.Tensor
    params: list

    def backward(self):
        l = loss(lenet(self.X, self.params), self.y).sum()
        l.backward()
        return l.item()

def train_batch(X, y, device_params, devices, lr):
    shards = [Shard(*s) for s in zip(*split_batch(X, y, devices), device_params)]
    total = sum(shard.backward() for shard in shards)
    for i in range(len(device_params[0])):
        allreduce([s.params[i].grad for s in shards])
    [sgd(s.params, lr, len(X)) for s in shards]
    return total / len(X)
""",
        "trained in its cell": _train(EACH, "total / len(X)", after="""
train_iter, _ = load_data("digits", batch_size=50, dtype=torch.float64)
devices = try_devices(2)
params = init_params("he", torch.Generator().manual_seed(0), torch.float64)
replicas = [get_params(params, d) for d in devices]
for X, y in train_iter:
    print(train_batch(X, y, replicas, devices, 0.1))
    break
check("ps1/train_batch", train_batch)
"""),
        "printed and asserted inside": _train(EACH + """
assert len(Xs) == len(devices), "a shard a device"
print("loss", total)
""", "total / len(X)"),
    },
}
