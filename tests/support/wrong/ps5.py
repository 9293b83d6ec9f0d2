"""Wrong answers to problem set 5: {exercise: {name of the mistake: answer cell}}.

A cell holds a clue and a repair. Here one of the two is right, the other is not.
"""

CLUES = {"rebinding": '"replicas", k',
         "aliasing": '"step", 2 ** (k - 1)',
         "hook": '"replicas", k',
         "set_epoch": '"orders", 1',
         "mean_of_means": '"weight", {1: 1, 2: 1, 3: 2, 4: 3, 5: 1}[k]',
         "stale_gradients": '"step", (k + 1) / 2',
         "double_averaging": '"messages", 2',
         "no_sync": '"messages", k',
         "rank_zero_only": '"absent", k - 1',
         "adam_hides": '"gradient", k'}

WRONG_CLUES = {
    "rebinding": {
        "what all look at": '"accuracy", 0.922',
        "a healthy row": '"step", 1 / k',
        "the chart's last column": '"replicas", 4',
        "all but rank 0": '"replicas", k - 1'},
    "aliasing": {
        "replicas that are equal because they are one": '"replicas", 1',
        "linear, not exponential": '"step", k',
        "one doubling too many": '"step", 2 ** k',
        "the chart's first column": '"gradient", 2'},
    "hook": {
        "the messages, which are sent": '"messages", 0',
        "the chart's first column": '"replicas", 2',
        "a row's name misspelt": '"replica", k'},
    "set_epoch": {
        "rows lost": '"lost", 0',
        "an order for each rank": '"orders", k',
        "a row for each epoch": '"orders", 3'},
    "mean_of_means": {
        "the step": '"step", 1',
        "as many as ranks": '"weight", k',
        "upside down": '"weight", {1: 1, 2: 1, 3: 1 / 2, 4: 1 / 3, 5: 1}[k]',
        "always the chart's last column": '"weight", 3'},
    "stale_gradients": {
        "the last gradient, which is right": '"gradient", k',
        "every gradient k times": '"step", k',
        "a mean that starts from 0": '"step", k / 2'},
    "double_averaging": {
        "the step is thought to be too small": '"step", 1 / k',
        "a message for each rank": '"messages", k',
        "a healthy number": '"messages", 1'},
    "no_sync": {
        "the step": '"step", 1',
        "twice, as for patient 7": '"messages", 2',
        "all but the last": '"messages", k - 1'},
    "rank_zero_only": {
        "one rank is missing": '"absent", 1',
        "all are missing": '"absent", k',
        "a message too few": '"messages", 0'},
    "adam_hides": {
        "the step, as if it were SGD": '"step", k',
        "too small": '"gradient", 1 / k',
        "the chart's last column": '"gradient", 4'},
}

REPAIRS = {
    "rebinding": """
def repaired(data):
    total = sum(data)
    for tensor in data:
        tensor.copy_(total)
""",
    "aliasing": """
def repaired(params, device):
    return [p.detach().clone().to(device).requires_grad_() for p in params]
""",
    "hook": """
def repaired(model):
    def average(grad):
        grad = grad / dist.get_world_size()
        dist.all_reduce(grad)
        return grad
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(average)
""",
    "set_epoch": """
def repaired(dataset, rank, world_size, epochs, step):
    for epoch in range(epochs):
        sampler = DistributedSampler(dataset, world_size, rank, seed=epoch)
        for batch in DataLoader(dataset, batch_size=4, sampler=sampler):
            step(epoch, batch)
""",
    "mean_of_means": """
def repaired(X_shards, y_shards, W):
    loss = F.cross_entropy(torch.cat(X_shards) @ W, torch.cat(y_shards))
    return torch.autograd.grad(loss, W)[0]
""",
    "stale_gradients": """
def repaired(model, optimizer, batches, accumulate):
    for i in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        for X, y in batches[i:i + accumulate]:
            (F.cross_entropy(model(X), y) / accumulate).backward()
        optimizer.step()
""",
    "double_averaging": """
def repaired(model, batches, lr):
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    for X, y in batches:
        model.zero_grad()
        F.cross_entropy(model(X), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data -= lr * p.grad / dist.get_world_size()
""",
    "no_sync": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        last = i == len(microbatches) - 1
        with nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(X), y) / len(microbatches)
        loss.backward()
    optimizer.step()
""",
    "rank_zero_only": """
def repaired(model, X, y):
    counts = torch.tensor([float((model(X).argmax(1) == y).sum()), len(y)]).double()
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])
""",
    "adam_hides": """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.cat(X_shards)), torch.cat(y_shards)).backward()
    optimizer.step()
""",
}

WRONG_REPAIRS = {
    "rebinding": {
        "not repaired": """
def repaired(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i] = data[0].to(data[i].device)
""",
        "the list gets copies": """
def repaired(data):
    total = sum(data)
    for i in range(len(data)):
        data[i] = total.clone()
""",
        "the list gets new tensors, rank 0's included": """
def repaired(data):
    data[:] = [sum(data) for _ in data]
""",
        "only rank 0 has it": """
def repaired(data):
    for i in range(1, len(data)):
        data[0][:] += data[i]
""",
        "memory shared from now on": """
def repaired(data):
    for i in range(1, len(data)):
        data[0][:] += data[i]
    for i in range(1, len(data)):
        data[i].data = data[0].data
""",
        "the mean": """
def repaired(data):
    mean = sum(data) / len(data)
    for tensor in data:
        tensor.copy_(mean)
""",
    },
    "aliasing": {
        "not repaired": """
def repaired(params, device):
    new_params = [p.to(device) for p in params]
    for p in new_params:
        p.requires_grad_()
    return new_params
""",
        "cloned without being cut off": """
def repaired(params, device):
    return [p.clone().to(device).requires_grad_() for p in params]
""",
        "cut off without a copy": """
def repaired(params, device):
    return [p.detach().to(device).requires_grad_() for p in params]
""",
        "wants no gradient": """
def repaired(params, device):
    return [p.detach().to(device, copy=True) for p in params]
""",
        "one copy for all": """
copies = {}
def repaired(params, device):
    if id(params) not in copies:
        copies[id(params)] = [p.detach().clone().requires_grad_() for p in params]
    return copies[id(params)]
""",
    },
    "hook": {
        "not repaired": """
def repaired(model):
    def average(grad):
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
        return grad
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""",
        "the sum": """
def repaired(model):
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
""",
        "divided, never added": """
def repaired(model):
    def average(p):
        p.grad /= dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""",
        "a new tensor that nobody keeps": """
def repaired(model):
    def average(p):
        mean = p.grad / dist.get_world_size()
        dist.all_reduce(mean)
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""",
        "rank 0 only": """
def repaired(model):
    def average(p):
        if dist.get_rank() == 0:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""",
        "the biases forgotten": """
def repaired(model):
    def average(p):
        if p.dim() > 1:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""",
        "what was there already is averaged once, what comes is not": """
def repaired(model):
    def average(p):
        if p not in done:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        done.add(p)
    done = set()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
""",
    },
    "set_epoch": {
        "not repaired": "EPOCH; SET = None",
        "a seed for each rank": "EPOCH; SET = sampler.set_epoch(epoch * 10 + rank)",
        "always the same epoch": "EPOCH; SET = sampler.set_epoch(1)",
        "a generator that the sampler does not use": "EPOCH; SET = torch.manual_seed(epoch)",
        "told when the epoch is over": """
def repaired(dataset, rank, world_size, epochs, step):
    sampler = DistributedSampler(dataset, world_size, rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(epochs):
        for batch in loader:
            step(epoch, batch)
        sampler.set_epoch(epoch)
""",
        "every rank takes all": """
def repaired(dataset, rank, world_size, epochs, step):
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    for epoch in range(epochs):
        for batch in loader:
            step(epoch, batch)
""",
        "shuffled within the rank's own rows": """
def repaired(dataset, rank, world_size, epochs, step):
    mine = list(DistributedSampler(dataset, world_size, rank, shuffle=False))
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        for i in torch.randperm(len(mine), generator=generator).tolist():
            step(epoch, torch.tensor([dataset[mine[i]]]))
""",
        "the rest dropped": """
def repaired(dataset, rank, world_size, epochs, step):
    sampler = DistributedSampler(dataset, world_size, rank, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in DataLoader(dataset, batch_size=4, sampler=sampler):
            step(epoch, batch)
""",
    },
    "mean_of_means": {
        "not repaired": "MEANS; RETURN = sum(grads) / len(grads)",
        "empty shards skipped": """
def repaired(X_shards, y_shards, W):
    grads = [torch.autograd.grad(F.cross_entropy(X @ W, y), W)[0]
             for X, y in zip(X_shards, y_shards) if len(X)]
    return sum(grads) / len(grads)
""",
        "the sum": "SUMS; RETURN = sum(grads)",
        "the sum over the shards' number": "SUMS; RETURN = sum(grads) / len(grads)",
        "divided by the rows of the first shard": "SUMS; RETURN = sum(grads) / len(grads) "
                                                  "/ len(y_shards[0])",
        "weighted, but not by the share": "MEANS; RETURN = sum(len(y) * g for y, g in "
                                          "zip(y_shards, grads)) / len(grads)",
        "the sum of means": "MEANS; RETURN = sum(grads)",
        "zeros": "MEANS; RETURN = torch.zeros_like(W)",
    },
    "stale_gradients": {
        "not repaired": """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        optimizer.step()
        if (i + 1) % accumulate == 0:
            optimizer.zero_grad()
""",
        "a step for every microbatch": """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        optimizer.zero_grad()
        (F.cross_entropy(model(X), y) / accumulate).backward()
        optimizer.step()
""",
        "zeroed every time, stepped rarely": """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        optimizer.zero_grad()
        (F.cross_entropy(model(X), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
""",
        "the sum of the microbatches": """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        F.cross_entropy(model(X), y).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        "a step after the first": """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        if i % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        "never zeroed": """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
""",
        "does nothing": """
def repaired(model, optimizer, batches, accumulate):
    pass
""",
        "the microbatches put together again": """
def repaired(model, optimizer, batches, accumulate):
    for i in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        X, y = map(torch.cat, zip(*batches[i:i + accumulate]))
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
""",
    },
    "double_averaging": {
        "not repaired": "DDP(model); AFTER = dist.all_reduce(p.grad); "
                        "p.grad /= dist.get_world_size()",
        "the division left": "DDP(model); AFTER = p.grad /= dist.get_world_size()",
        "the sum of means left": "DDP(model); AFTER = dist.all_reduce(p.grad)",
        "DDP taken out, and its equal start with it":
            "model; AFTER = dist.all_reduce(p.grad); p.grad /= dist.get_world_size()",
        "both taken out": "model; AFTER = pass",
        "asks a barrier instead": "DDP(model); AFTER = dist.all_reduce(torch.ones(4))",
    },
    "no_sync": {
        "not repaired": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        last = i == len(microbatches) - 1
        loss = F.cross_entropy(model(X), y) / len(microbatches)
        with nullcontext() if last else model.no_sync():
            loss.backward()
    optimizer.step()
""",
        "nobody sends": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    with model.no_sync():
        for X, y in microbatches:
            (F.cross_entropy(model(X), y) / len(microbatches)).backward()
    optimizer.step()
""",
        "the first sends, not the last": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        with model.no_sync() if i else nullcontext():
            (F.cross_entropy(model(X), y) / len(microbatches)).backward()
    optimizer.step()
""",
        "all send": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for X, y in microbatches:
        (F.cross_entropy(model(X), y) / len(microbatches)).backward()
    optimizer.step()
""",
        "the sum of the microbatches": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        with nullcontext() if i == len(microbatches) - 1 else model.no_sync():
            F.cross_entropy(model(X), y).backward()
    optimizer.step()
""",
        "the microbatches put together again": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    X, y = map(torch.cat, zip(*microbatches))
    F.cross_entropy(model(X), y).backward()
    optimizer.step()
""",
        "only the last counts": """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    X, y = microbatches[-1]
    F.cross_entropy(model(X), y).backward()
    optimizer.step()
""",
    },
    "rank_zero_only": {
        "not repaired": """
def repaired(model, X, y):
    if dist.get_rank() == 0:
        right = (model(X).argmax(dim=1) == y).sum()
        counts = torch.stack([right, torch.tensor(len(y))])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()
""",
        "no collective, and rank 0's rows only": """
def repaired(model, X, y):
    if dist.get_rank() == 0:
        return (model(X).argmax(dim=1) == y).double().mean().item()
""",
        "the mean of accuracies": """
def repaired(model, X, y):
    mean = (model(X).argmax(dim=1) == y).double().sum() / max(1, len(y))
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()
""",
        "a barrier left in the if": """
def repaired(model, X, y):
    right = (model(X).argmax(dim=1) == y).sum()
    counts = torch.stack([right, torch.tensor(len(y))]).double()
    dist.all_reduce(counts)
    if dist.get_rank() == 0:
        dist.barrier()
        return (counts[0] / counts[1]).item()
""",
        "ranks without rows stay away": """
def repaired(model, X, y):
    if len(y):
        right = (model(X).argmax(dim=1) == y).sum()
        counts = torch.stack([right, torch.tensor(len(y))]).double()
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()
""",
        "the rows not summed": """
def repaired(model, X, y):
    right = (model(X).argmax(dim=1) == y).double().sum()
    dist.all_reduce(right)
    return right.item() / max(1, len(y) * dist.get_world_size())
""",
    },
    "adam_hides": {
        "not repaired": """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    optimizer.step()
""",
        "the learning rate divided, each time": """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    optimizer.param_groups[0]["lr"] /= len(X_shards)
    optimizer.step()
""",
        "the last shard only": """
def repaired(model, optimizer, X_shards, y_shards):
    for X, y in zip(X_shards, y_shards):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
    optimizer.step()
""",
        "the sum over rows": """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        (F.cross_entropy(model(X), y, reduction="sum") / len(X_shards)).backward()
    optimizer.step()
""",
        "clipped instead": """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
        "divided once more by the rows": """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        (F.cross_entropy(model(X), y) / len(X_shards) / len(X)).backward()
    optimizer.step()
""",
    },
}

FRAMES = {  # short forms of a repair: "FRAME; WHAT = code"
    "EPOCH": """
def repaired(dataset, rank, world_size, epochs, step):
    sampler = DistributedSampler(dataset, world_size, rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(epochs):
        {}
        for batch in loader:
            step(epoch, batch)
""",
    "MEANS": """
def repaired(X_shards, y_shards, W):
    grads = [torch.autograd.grad(F.cross_entropy(X @ W, y), W)[0]
             for X, y in zip(X_shards, y_shards)]
    return {}
""",
    "SUMS": """
def repaired(X_shards, y_shards, W):
    grads = [torch.autograd.grad(F.cross_entropy(X @ W, y, reduction="sum"), W)[0]
             for X, y in zip(X_shards, y_shards)]
    return {}
""",
}
TRAIN = """
def repaired(model, batches, lr):
    ddp = {}
    optimizer = torch.optim.SGD(ddp.parameters(), lr)
    for X, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(ddp(X), y).backward()
        for p in ddp.parameters():
            {}
        optimizer.step()
"""


def _written_out(repair):
    frame, _, code = repair.partition("; ")
    if frame in FRAMES:
        return FRAMES[frame].format(code.partition(" = ")[2])
    if code.startswith("AFTER = "):
        return TRAIN.format(frame, code.removeprefix("AFTER = "))
    return repair


def _cell(number, clue, repair):
    return (f"def clue_{number}(k):\n    return {clue}\n\n"
            + _written_out(repair).replace("def repaired(", f"def repaired_{number}("))


WRONG = {name: {
    **{f"clue: {mistake}": _cell(number, clue, REPAIRS[name])
       for mistake, clue in WRONG_CLUES[name].items()},
    **{mistake: _cell(number, CLUES[name], repair)
       for mistake, repair in WRONG_REPAIRS[name].items()}}
    for number, name in enumerate(CLUES, 1)}
