"""Right answers to problem set 5, by style: {exercise: {style: cell}}.

Each cell is a clue and a repair; several clues and several repairs are put together.
"""

CLUES = {
    "rebinding": ['"replicas", k', '"replicas", float(k)', '["replicas", np.int64(k)]'],
    "aliasing": ['"step", 2 ** (k - 1)', '"gradient", 2.0 ** (k - 1)',
                 '"step", np.exp2(k - 1)'],
    "hook": ['"replicas", k', '"weight", 1 if k == 1 else 0', '("replicas", np.float32(k))'],
    "set_epoch": ['"orders", 1', '("orders", 1.0)', '"orders", np.int32(1)'],
    "mean_of_means": ['"weight", -(-10 // k) / (10 - (k - 1) * -(-10 // k))',
                      '"weight", {1: 1, 2: 1, 3: 2, 4: 3, 5: 1}[k]',
                      '"weight", Fraction(-(-10 // k), 10 - (k - 1) * -(-10 // k))'],
    "stale_gradients": ['"step", (k + 1) / 2', '"step", sum(range(1, k + 1)) / k',
                        '"step", Fraction(k + 1, 2)'],
    "double_averaging": ['"messages", 2', '["messages", 2.0]', '"messages", np.int64(2)'],
    "no_sync": ['"messages", k', '("messages", 1.0 * k)', '"messages", np.float64(k)'],
    "rank_zero_only": ['"absent", k - 1', '"absent", max(0, k - 1)',
                       '"absent", len(range(1, k))'],
    "adam_hides": ['"gradient", k', '"gradient", k * 1.0', '"gradient", Fraction(k)'],
}
CLUE = """
import numpy as np
from fractions import Fraction

def clue_NUMBER(k):
    return SAYS
"""
TRIED = """
chart(NUMBER, repaired_NUMBER)
assert measure(NUMBER, repaired_NUMBER, 2)["replicas"] == 1
display(clue_NUMBER(2))
clue_NUMBER?
check("ps5/NAME", clue_NUMBER, repaired_NUMBER)
"""
REPAIRS = {
    "rebinding": ["""
def repaired_1(data):
    total = sum(data[1:], start=data[0].clone())
    for t in data:
        t.copy_(total)
""", """
def repaired_1(data):
    for t in data[1:]:
        data[0][:] += t.to(data[0].device)
    for i in range(1, len(data)):
        data[i][...] = data[0]
""", """
@torch.no_grad()
def repaired_1(tensors):
    total = torch.stack(tensors).sum(0)
    [t.data.copy_(total.to(t.device)) for t in tensors]
"""],
    "aliasing": ["""
def repaired_2(params, device):
    new_params = [p.detach().clone().to(device) for p in params]
    for p in new_params:
        p.requires_grad_()
    return new_params
""", """
def repaired_2(params, device):
    return [torch.nn.Parameter(p.detach().to(device, copy=True)) for p in params]
""", """
def repaired_2(params, device):
    with torch.no_grad():
        copies = [p.to(device, copy=True) for p in params]
    return [c.requires_grad_(True) for c in copies]
"""],
    "hook": ["""
def repaired_3(model):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""", """
def repaired_3(model):
    def average(grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(average)
""", """
def repaired_3(model):
    n = dist.get_world_size()
    def average(param):
        param.grad.div_(n)
        dist.all_reduce(param.grad)
    for p in (p for p in model.parameters() if p.requires_grad):
        p.register_post_accumulate_grad_hook(lambda q: average(q))
"""],
    "set_epoch": ["""
def repaired_4(dataset, rank, world_size, epochs, step):
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=48 // world_size, sampler=sampler)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            step(epoch, batch)
""", """
def repaired_4(dataset, rank, world_size, epochs, step):
    for epoch in range(epochs):
        sampler = DistributedSampler(dataset, world_size, rank, shuffle=True, seed=epoch)
        for batch in DataLoader(dataset, batch_size=48 // world_size, sampler=sampler):
            step(epoch, batch)
""", """
def repaired_4(dataset, rank, world_size, epochs, step):
    n, b = len(dataset), 48 // world_size
    for epoch in range(epochs):
        order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()
        order += order[:-n % world_size]
        mine = order[rank::world_size]
        for i in range(0, len(mine), b):
            step(epoch, torch.tensor([dataset[j] for j in mine[i:i + b]]))
"""],
    "mean_of_means": ["""
def repaired_5(X_shards, y_shards, W):
    grads = []
    for X, y in zip(X_shards, y_shards):
        loss = F.cross_entropy(X @ W, y, reduction="sum")
        grads.append(torch.autograd.grad(loss, W)[0])
    return sum(grads) / sum(map(len, y_shards))
""", """
def repaired_5(X_shards, y_shards, W):
    rows, total = sum(len(y) for y in y_shards), torch.zeros_like(W)
    for X, y in zip(X_shards, y_shards):
        if len(y) > 0:
            loss = F.cross_entropy(X @ W, y) * (len(y) / rows)
            total += torch.autograd.grad(loss, W)[0]
    return total.detach()
""", """
def repaired_5(X_shards, y_shards, W):
    X, y = torch.cat(list(X_shards)), torch.cat(list(y_shards))
    return torch.autograd.grad(F.cross_entropy(X @ W, y), [W])[0]
"""],
    "stale_gradients": ["""
def repaired_6(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        loss = F.cross_entropy(model(X), y) / accumulate
        loss.backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
""", """
def repaired_6(model, optimizer, batches, accumulate):
    for start in range(0, len(batches), accumulate):
        optimizer.zero_grad(set_to_none=True)
        for X, y in batches[start:start + accumulate]:
            F.cross_entropy(model(X), y).div(accumulate).backward()
        optimizer.step()
""", """
def repaired_6(model, optimizer, batches, accumulate):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(batches, start=1):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        with torch.no_grad():
            print(i, F.cross_entropy(model(X), y).item())
        if not i % accumulate:
            optimizer.step()
            optimizer.zero_grad()
"""],
    "double_averaging": ["""
def repaired_7(model, batches, lr):
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr)
    for X, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(ddp(X), y).backward()
        optimizer.step()
""", """
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
""", """
def repaired_7(model, batches, lr):
    wrapped = DDP(model)
    for X, y in batches:
        wrapped.zero_grad()
        F.cross_entropy(wrapped(X), y).backward()
        with torch.no_grad():
            for p in wrapped.parameters():
                p -= lr * p.grad
"""],
    "no_sync": ["""
def repaired_8(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        last = i == len(microbatches) - 1
        with nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(X), y) / len(microbatches)
            loss.backward()
    optimizer.step()
""", """
def repaired_8(model, optimizer, microbatches):
    *first, (X_last, y_last) = microbatches
    n = len(microbatches)
    optimizer.zero_grad()
    with model.no_sync():
        for X, y in first:
            (F.cross_entropy(model(X), y) / n).backward()
    (F.cross_entropy(model(X_last), y_last) / n).backward()
    optimizer.step()
""", """
from contextlib import ExitStack
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
"""],
    "rank_zero_only": ["""
def repaired_9(model, X, y):
    right = (model(X).argmax(dim=1) == y).sum()
    counts = torch.stack([right, torch.tensor(len(y))])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
""", """
@torch.no_grad()
def repaired_9(model, X, y):
    counts = torch.zeros(2, dtype=torch.float64)
    counts[0] += (model(X).argmax(1) == y).sum()
    counts[1] += len(X)
    dist.reduce(counts, 0)
    if dist.get_rank() == 0:
        return float(counts[0] / counts[1])
""", """
import numpy as np
def repaired_9(model, X, y):
    right = torch.tensor([int((model(X).argmax(1) == y).sum())])
    rows = torch.tensor([len(y)])
    dist.all_reduce(right)
    dist.all_reduce(rows)
    return np.float32(right.item() / rows.item()) if dist.get_rank() == 0 else None
"""],
    "adam_hides": ["""
def repaired_10(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        loss = F.cross_entropy(model(X), y) / len(X_shards)
        loss.backward()
    optimizer.step()
""", """
def repaired_10(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    for p in model.parameters():
        p.grad /= len(X_shards)
    optimizer.step()
""", """
def repaired_10(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    losses = [F.cross_entropy(model(X), y) for X, y in zip(X_shards, y_shards)]
    torch.stack(losses).mean().backward()
    optimizer.step()
"""],
}


def _cells(number, name):
    styles = zip(CLUES[name], REPAIRS[name])
    for style, (says, repair) in enumerate(styles, 1):
        yield f"style {style}", CLUE.replace("SAYS", says) + repair
    yield "tried in its cell", CLUE.replace("SAYS", CLUES[name][0]) + REPAIRS[name][
        0] + TRIED.replace("NAME", name)


ANSWERS = {name: {style: cell.replace("NUMBER", str(number))
                  for style, cell in _cells(number, name)}
           for number, name in enumerate(CLUES, 1)}
