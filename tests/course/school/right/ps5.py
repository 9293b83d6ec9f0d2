"""Right answers to problem set 5: {exercise: {style: cell}}."""

RIGHT = {
    "ps5/rebinding": {
        "stacked, through .data": """
import numpy as np
def clue_1(k):
    return ["replicas", np.int64(k)]

@torch.no_grad()
def repaired_1(tensors):
    total = torch.stack(tensors).sum(0)
    return [t.data.copy_(total.to(t.device)) for t in tensors]
""",
        "tried in its cell": """
def clue_1(k):
    return "replicas", float(k)

def repaired_1(data):
    for t in data[1:]:
        data[0][:] += t.to(data[0].device)
    for i in range(1, len(data)):
        data[i][...] = data[0]

assert measure(1, repaired_1, 2)["replicas"] == 1
display(clue_1(2))
clue_1?
check("ps5/rebinding", clue_1, repaired_1)
"""},
    "ps5/aliasing": {
        "nn.Parameter": """
def clue_2(k):
    return "step", 2.0 ** (k - 1)

def repaired_2(params, device):
    return [torch.nn.Parameter(p.detach().to(device, copy=True)) for p in params]
""",
        "copied without gradients": """
import numpy as np
def clue_2(k):
    return "step", np.exp2(k - 1)

def repaired_2(params, device):
    with torch.no_grad():
        copies = [p.to(device, copy=True) for p in params]
    return tuple(c.requires_grad_(True) for c in copies)
"""},
    "ps5/hook": {
        "a hook that returns": """
def clue_3(k):
    return "weight", 1 if k == 1 else 0

def repaired_3(model):
    def average(grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(average)
""",
        "the mean, by torch's own": """
import numpy as np
def clue_3(k):
    return ("replicas", np.float32(k))

def repaired_3(model):
    n = dist.get_world_size()
    def average(param):
        dist.all_reduce(param.grad.div_(n))
    for p in (p for p in model.parameters() if p.requires_grad):
        p.register_post_accumulate_grad_hook(lambda q: average(q))
"""},
    "ps5/set_epoch": {
        "a sampler each epoch": """
def clue_4(k):
    return "orders", 1.0

def repaired_4(dataset, rank, world_size, epochs, step):
    for epoch in range(epochs):
        sampler = DistributedSampler(dataset, world_size, rank, seed=epoch)
        for batch in DataLoader(dataset, batch_size=48 // world_size, sampler=sampler):
            step(epoch, batch)
""",
        "dealt by hand": """
def clue_4(k):
    return "orders", 1

def repaired_4(dataset, rank, world_size, epochs, step):
    n, b = len(dataset), 48 // world_size
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(n, generator=generator).tolist()
        order += order[:-n % world_size]
        mine = order[rank::world_size]
        for i in range(0, len(mine), b):
            step(epoch, torch.tensor([dataset[j] for j in mine[i:i + b]]))
"""},
    "ps5/mean_of_means": {
        "against autograd on all rows": """
def clue_5(program):
    torch.manual_seed(1)
    X, y = torch.rand(10, 4).double(), torch.randint(3, (10,))
    W = torch.rand(4, 3).double().requires_grad_()
    shards = program(X.tensor_split([3, 6, 9]), y.tensor_split([3, 6, 9]), W)
    alone, = torch.autograd.grad(F.cross_entropy(X @ W, y), W)
    return (shards - alone).norm()

def repaired_5(X_shards, y_shards, W):
    rows, total = sum(len(y) for y in y_shards), torch.zeros_like(W)
    for X, y in zip(X_shards, y_shards):
        if len(y) > 0:
            loss = F.cross_entropy(X @ W, y) * (len(y) / rows)
            total += torch.autograd.grad(loss, W)[0]
    return total.detach()
""",
        "the same rows, cut in two ways": """
def clue_5(program):
    X, y = torch.eye(4, dtype=torch.float64), torch.arange(4) % 2
    W = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    one, other = (program([X[:i], X[i:]], [y[:i], y[i:]], W).tolist() for i in (1, 3))
    return max(abs(a - b) for rows in zip(one, other) for a, b in zip(*rows))

def repaired_5(X_shards, y_shards, W):
    X, y = torch.cat(list(X_shards)), torch.cat(list(y_shards))
    return torch.autograd.grad(F.cross_entropy(X @ W, y), [W])[0]
"""},
    "ps5/stale_gradients": {
        "group by group": """
from fractions import Fraction
def clue_6(k):
    return "step", Fraction(k + 1, 2)

def repaired_6(model, optimizer, batches, accumulate):
    for start in range(0, len(batches), accumulate):
        optimizer.zero_grad(set_to_none=True)
        for X, y in batches[start:start + accumulate]:
            F.cross_entropy(model(X), y).div(accumulate).backward()
        optimizer.step()
""",
        "prints the loss once more": """
def clue_6(k):
    return "weight", 1 / k

def repaired_6(model, optimizer, batches, accumulate):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(batches, start=1):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        with torch.no_grad():
            print(i, F.cross_entropy(model(X), y).item())
        if not i % accumulate:
            optimizer.step()
            optimizer.zero_grad()
"""},
    "ps5/double_averaging": {
        "without DDP": """
def clue_7(k):
    return ["messages", 2.0]

def repaired_7(model, batches, lr):
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for X, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
""",
        "a step by hand": """
def clue_7(k):
    return "messages", 2

def repaired_7(model, batches, lr):
    wrapped = DDP(model)
    for X, y in batches:
        wrapped.zero_grad()
        F.cross_entropy(wrapped(X), y).backward()
        with torch.no_grad():
            for p in wrapped.parameters():
                p -= lr * p.grad
"""},
    "ps5/no_sync": {
        "the last one apart": """
def clue_8(k):
    return ("messages", 1.0 * k)

def repaired_8(model, optimizer, microbatches):
    *first, (X_last, y_last) = microbatches
    n = len(microbatches)
    optimizer.zero_grad()
    with model.no_sync():
        for X, y in first:
            (F.cross_entropy(model(X), y) / n).backward()
    (F.cross_entropy(model(X_last), y_last) / n).backward()
    optimizer.step()
""",
        "an ExitStack, and the losses": """
from contextlib import ExitStack
def clue_8(k):
    return "messages", len(range(k))

def repaired_8(model, optimizer, microbatches):
    optimizer.zero_grad(set_to_none=True)
    losses = []
    for i, (X, y) in enumerate(microbatches):
        with ExitStack() as stack:
            if i + 1 < len(microbatches):
                stack.enter_context(model.no_sync())
            loss = F.cross_entropy(model(X), y)
            (loss / len(microbatches)).backward()
            losses.append(loss.item())
    optimizer.step()
    return sum(losses)
"""},
    "ps5/rank_zero_only": {
        "reduced to rank 0": """
def clue_9(k):
    return "absent", max(0, k - 1)

@torch.no_grad()
def repaired_9(model, X, y):
    counts = torch.zeros(2, dtype=torch.float64)
    counts[0] += (model(X).argmax(1) == y).sum()
    counts[1] += len(X)
    dist.reduce(counts, 0)
    if dist.get_rank() == 0:
        return float(counts[0] / counts[1])
""",
        "two sums, and numpy's float32": """
import numpy as np
def clue_9(k):
    return "absent", len(range(1, k))

def repaired_9(model, X, y):
    right = torch.tensor([int((model(X).argmax(1) == y).sum())])
    rows = torch.tensor([len(y)])
    dist.all_reduce(right)
    dist.all_reduce(rows)
    return np.float32(right.item() / rows.item()) if dist.get_rank() == 0 else None
"""},
    "ps5/adam_hides": {
        "two models side by side": """
import copy
def clue_10(program):
    first = torch.nn.Linear(2, 3).double()
    X, y, models = torch.rand(6, 2).double(), torch.randint(3, (6,)), []
    for parts in 1, 3:
        models.append(copy.deepcopy(first))
        optimizer = torch.optim.SGD(models[-1].parameters(), 0.5)
        program(models[-1], optimizer, list(X.chunk(parts)), list(y.chunk(parts)))
    one, three = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in models)
    return (one - three).norm().item()

def repaired_10(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    for p in model.parameters():
        p.grad /= len(X_shards)
    optimizer.step()
""",
        "the length of a step": """
import numpy as np
def clue_10(program):
    def length(k):
        model = torch.nn.Linear(1, 2, dtype=torch.float64)
        before = model.bias.detach().clone()
        with torch.no_grad():
            model.weight.zero_()
            before.zero_()
            model.bias.zero_()
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        X, y = torch.ones(2, 1).double(), torch.tensor([0, 0])
        program(model, optimizer, [X] * k, [y] * k)
        return (model.bias - before).norm().item()
    return np.float64(length(4) / length(1) - 1)

def repaired_10(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    losses = [F.cross_entropy(model(X), y) for X, y in zip(X_shards, y_shards)]
    torch.stack(losses).mean().backward()
    optimizer.step()
"""},
}
