"""Wrong answers to problem set 5: {exercise: {mistake: (hint, cell)}}.

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
        "what all look at": (
            "accuracy goes up and down for many reasons",
            '"accuracy", 0.922'),
        "a healthy row": ("that row is as it should be", '"step", 1 / k'),
        "the chart's last column": (
            "the row is right, but the number changes with k",
            '"replicas", 4'),
        "all but rank 0": (
            "the row is right; the number in the chart is another",
            '"replicas", k - 1')},
    "aliasing": {
        "replicas that are equal because they are one": (
            "that row is as it should be",
            '"replicas", 1'),
        "linear, not exponential": (
            "the row is right; the number in the chart is another",
            '"step", k'),
        "one doubling too many": (
            "the row is right; the number in the chart is another",
            '"step", 2 ** k'),
        "the chart's first column": (
            "the row is right, but the number changes with k",
            '"gradient", 2')},
    "hook": {
        "the messages, which are sent": (
            "that row is as it should be",
            '"messages", 0'),
        "the chart's first column": ("the row is right", '"replicas", 2'),
        "a row's name misspelt": ("there is no such row", '"replica", k')},
    "set_epoch": {
        "rows lost": ("that row is as it should be", '"lost", 0'),
        "an order for each rank": ("the row is right", '"orders", k'),
        "a row for each epoch": ("the row is right", '"orders", 3')},
    "mean_of_means": {
        "the step": ("that row is as it should be", '"step", 1'),
        "as many as ranks": (
            "the row is right; the number in the chart is another",
            '"weight", k'),
        "upside down": (
            "the row is right; the number in the chart is another",
            '"weight", {1: 1, 2: 1, 3: 1 / 2, 4: 1 / 3, 5: 1}[k]'),
        "always the chart's last column": (
            "the row is right, but the number changes with k",
            '"weight", 3')},
    "stale_gradients": {
        "the last gradient, which is right": (
            "that row is as it should be",
            '"gradient", k'),
        "every gradient k times": ("the row is right", '"step", k'),
        "a mean that starts from 0": ("the row is right", '"step", k / 2')},
    "double_averaging": {
        "the step is thought to be too small": (
            "that row is as it should be",
            '"step", 1 / k'),
        "a message for each rank": ("the row is right", '"messages", k'),
        "a healthy number": ("the row is right", '"messages", 1')},
    "no_sync": {
        "the step": ("that row is as it should be", '"step", 1'),
        "twice, as for patient 7": (
            "the row is right, but the number changes with k",
            '"messages", 2'),
        "all but the last": (
            "the row is right; the number in the chart is another",
            '"messages", k - 1')},
    "rank_zero_only": {
        "one rank is missing": (
            "the row is right, but the number changes with k",
            '"absent", 1'),
        "all are missing": (
            "the row is right; the number in the chart is another",
            '"absent", k'),
        "a message too few": ("that row is as it should be", '"messages", 0')},
    "adam_hides": {
        "the step, as if it were SGD": ("that row is as it should be", '"step", k'),
        "too small": (
            "the row is right; the number in the chart is another",
            '"gradient", 1 / k'),
        "the chart's last column": (
            "the row is right, but the number changes with k",
            '"gradient", 4')},
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
        "not repaired": ("the list holds the sums", """
def repaired(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i] = data[0].to(data[i].device)
"""),
        "new tensors under an old name": ("the tensors hold what they held", """
def repaired(data):
    total = sum(data)
    for tensor in data:
        tensor = total.clone()
"""),
        "the list gets copies": ("the list holds the sums", """
def repaired(data):
    total = sum(data)
    for i in range(len(data)):
        data[i] = total.clone()
"""),
        "the list gets new tensors, rank 0's included": ("the list holds the sums", """
def repaired(data):
    data[:] = [sum(data) for _ in data]
"""),
        "only rank 0 has it": ("the sum never leaves rank 0", """
def repaired(data):
    for i in range(1, len(data)):
        data[0][:] += data[i]
"""),
        "memory shared from now on": ("ranks share memory", """
def repaired(data):
    for i in range(1, len(data)):
        data[0][:] += data[i]
    for i in range(1, len(data)):
        data[i].data = data[0].data
"""),
        "the mean": ("this is the mean", """
def repaired(data):
    mean = sum(data) / len(data)
    for tensor in data:
        tensor.copy_(mean)
"""),
    },
    "aliasing": {
        "not repaired": ("a replica shares memory with the parameters", """
def repaired(params, device):
    new_params = [p.to(device) for p in params]
    for p in new_params:
        p.requires_grad_()
    return new_params
"""),
        "cloned without being cut off": (
            "a copy hangs on the graph of what it was copied from",
            """
def repaired(params, device):
    return [p.clone().to(device).requires_grad_() for p in params]
"""),
        "cut off without a copy": ("a replica shares memory with the parameters", """
def repaired(params, device):
    return [p.detach().to(device).requires_grad_() for p in params]
"""),
        "wants no gradient": ("replicas do not want gradients", """
def repaired(params, device):
    return [p.detach().to(device, copy=True) for p in params]
"""),
        "one copy for all": ("replicas are one tensor", """
copies = {}
def repaired(params, device):
    if id(params) not in copies:
        copies[id(params)] = [p.detach().clone().requires_grad_() for p in params]
    return copies[id(params)]
"""),
    },
    "hook": {
        "not repaired": ("every rank has its own gradient", """
def repaired(model):
    def average(grad):
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
        return grad
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
"""),
        "the sum": ("this is the sum", """
def repaired(model):
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
"""),
        "divided, never added": ("each is divided", """
def repaired(model):
    def average(p):
        p.grad /= dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
"""),
        "a new tensor that nobody keeps": ("every rank has its own gradient", """
def repaired(model):
    def average(p):
        mean = p.grad / dist.get_world_size()
        dist.all_reduce(mean)
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
"""),
        "rank 0 only": ("a collective stands where not every rank comes by", """
def repaired(model):
    def average(p):
        if dist.get_rank() == 0:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
"""),
        "the biases forgotten": ("some parameters have the mean", """
def repaired(model):
    def average(p):
        if p.dim() > 1:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
"""),
        "what was there already is averaged once, what comes is not": (
            "average after every backward",
            """
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
"""),
    },
    "set_epoch": {
        "not repaired": ("the order never changes", "EPOCH; SET = None"),
        "a seed for each rank": (
            "ranks shuffle with seeds of their own",
            "EPOCH; SET = sampler.set_epoch(epoch * 10 + rank)"),
        "always the same epoch": (
            "the order never changes",
            "EPOCH; SET = sampler.set_epoch(1)"),
        "a generator that the sampler does not use": (
            "the order never changes",
            "EPOCH; SET = torch.manual_seed(epoch)"),
        "told when the epoch is over": ("two epochs have the same order", """
def repaired(dataset, rank, world_size, epochs, step):
    sampler = DistributedSampler(dataset, world_size, rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(epochs):
        for batch in loader:
            step(epoch, batch)
        sampler.set_epoch(epoch)
"""),
        "every rank takes all": ("every rank goes through the whole dataset", """
def repaired(dataset, rank, world_size, epochs, step):
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    for epoch in range(epochs):
        for batch in loader:
            step(epoch, batch)
"""),
        "shuffled within the rank's own rows": ("shuffle all rows", """
def repaired(dataset, rank, world_size, epochs, step):
    mine = list(DistributedSampler(dataset, world_size, rank, shuffle=False))
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        for i in torch.randperm(len(mine), generator=generator).tolist():
            step(epoch, torch.tensor([dataset[mine[i]]]))
"""),
        "the rest dropped": ("drop_last leaves rows out", """
def repaired(dataset, rank, world_size, epochs, step):
    sampler = DistributedSampler(dataset, world_size, rank, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in DataLoader(dataset, batch_size=4, sampler=sampler):
            step(epoch, batch)
"""),
    },
    "mean_of_means": {
        "not repaired": (
            "this is still the mean of the shards' means",
            "MEANS; RETURN = sum(grads) / len(grads)"),
        "empty shards skipped": ("this is still the mean of the shards' means", """
def repaired(X_shards, y_shards, W):
    grads = [torch.autograd.grad(F.cross_entropy(X @ W, y), W)[0]
             for X, y in zip(X_shards, y_shards) if len(X)]
    return sum(grads) / len(grads)
"""),
        "added up in W.grad": ("backward adds to W.grad", """
def repaired(X_shards, y_shards, W):
    for X, y in zip(X_shards, y_shards):
        (F.cross_entropy(X @ W, y, reduction="sum") / sum(map(len, y_shards))).backward()
    return W.grad
"""),
        "the sum": ("this is the sum over all rows", "SUMS; RETURN = sum(grads)"),
        "the sum over the shards' number": (
            "divide by the rows, not by the shards",
            "SUMS; RETURN = sum(grads) / len(grads)"),
        "divided by the rows of the first shard": (
            "divide by the rows of all shards",
            "SUMS; RETURN = sum(grads) / len(grads) "
            "/ len(y_shards[0])"),
        "weighted, but not by the share": (
            "divide by the rows, not by the shards",
            "MEANS; RETURN = sum(len(y) * g for y, g in "
            "zip(y_shards, grads)) / len(grads)"),
        "the sum of means": (
            "this is the sum of the means",
            "MEANS; RETURN = sum(grads)"),
        "zeros": (None, "MEANS; RETURN = torch.zeros_like(W)"),
    },
    "stale_gradients": {
        "not repaired": ("gradients go into more than one step", """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        optimizer.step()
        if (i + 1) % accumulate == 0:
            optimizer.zero_grad()
"""),
        "a step for every microbatch": ("gradients go into more than one step", """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        optimizer.zero_grad()
        (F.cross_entropy(model(X), y) / accumulate).backward()
        optimizer.step()
"""),
        "zeroed every time, stepped rarely": (
            "gradients go into more than one step",
            """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        optimizer.zero_grad()
        (F.cross_entropy(model(X), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
"""),
        "the sum of the microbatches": ("steps are 2 times too large", """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        F.cross_entropy(model(X), y).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""),
        "a step after the first": (
            "a step is taken after the first microbatch of each group",
            """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        if i % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
"""),
        "never zeroed": ("gradients go into more than one step", """
def repaired(model, optimizer, batches, accumulate):
    for i, (X, y) in enumerate(batches):
        (F.cross_entropy(model(X), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
"""),
        "does nothing": ("nothing has moved", """
def repaired(model, optimizer, batches, accumulate):
    pass
"""),
        "one backward for all the graphs of a step": (
            "more rows at once need more memory", """
def repaired(model, optimizer, batches, accumulate):
    total = 0
    for i, (X, y) in enumerate(batches):
        total = total + F.cross_entropy(model(X), y) / accumulate
        if (i + 1) % accumulate == 0:
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            total = 0
"""),
        "the microbatches put together again": (
            "more rows at once need more memory",
            """
def repaired(model, optimizer, batches, accumulate):
    for i in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        X, y = map(torch.cat, zip(*batches[i:i + accumulate]))
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
"""),
    },
    "double_averaging": {
        "not repaired": (
            "numbers are sent that nobody needs",
            "DDP(model); AFTER = dist.all_reduce(p.grad); "
            "p.grad /= dist.get_world_size()"),
        "the division left": (
            "steps are 2 times too small",
            "DDP(model); AFTER = p.grad /= dist.get_world_size()"),
        "the sum of means left": (
            "steps are 2 times too large",
            "DDP(model); AFTER = dist.all_reduce(p.grad)"),
        "DDP taken out, and its equal start with it": (
            "replicas differ",
            "model; AFTER = dist.all_reduce(p.grad); p.grad /= dist.get_world_size()"),
        "both taken out": ("replicas differ", "model; AFTER = pass"),
        "asks a barrier instead": (
            "numbers are sent that nobody needs",
            "DDP(model); AFTER = dist.all_reduce(torch.ones(4))"),
    },
    "no_sync": {
        "not repaired": ("numbers are sent that nobody needs", """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        last = i == len(microbatches) - 1
        loss = F.cross_entropy(model(X), y) / len(microbatches)
        with nullcontext() if last else model.no_sync():
            loss.backward()
    optimizer.step()
"""),
        "nobody sends": ("replicas differ", """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    with model.no_sync():
        for X, y in microbatches:
            (F.cross_entropy(model(X), y) / len(microbatches)).backward()
    optimizer.step()
"""),
        "the first sends, not the last": ("replicas differ", """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        with model.no_sync() if i else nullcontext():
            (F.cross_entropy(model(X), y) / len(microbatches)).backward()
    optimizer.step()
"""),
        "all send": ("numbers are sent that nobody needs", """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for X, y in microbatches:
        (F.cross_entropy(model(X), y) / len(microbatches)).backward()
    optimizer.step()
"""),
        "the sum of the microbatches": ("steps are 3 times too large", """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        with nullcontext() if i == len(microbatches) - 1 else model.no_sync():
            F.cross_entropy(model(X), y).backward()
    optimizer.step()
"""),
        "all forwards before the first backward": (
            "more rows at once need more memory", """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    losses = []
    for i, (X, y) in enumerate(microbatches):
        with nullcontext() if i == len(microbatches) - 1 else model.no_sync():
            losses.append(F.cross_entropy(model(X), y) / len(microbatches))
    sum(losses).backward()
    optimizer.step()
"""),
        "the microbatches put together again": (
            "more rows at once need more memory",
            """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    X, y = map(torch.cat, zip(*microbatches))
    F.cross_entropy(model(X), y).backward()
    optimizer.step()
"""),
        "only the last counts": ("only the last microbatch counts", """
def repaired(model, optimizer, microbatches):
    optimizer.zero_grad()
    X, y = microbatches[-1]
    F.cross_entropy(model(X), y).backward()
    optimizer.step()
"""),
    },
    "rank_zero_only": {
        "not repaired": ("a collective stands where not every rank comes by", """
def repaired(model, X, y):
    if dist.get_rank() == 0:
        right = (model(X).argmax(dim=1) == y).sum()
        counts = torch.stack([right, torch.tensor(len(y))])
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()
"""),
        "no collective, and rank 0's rows only": ("this counts rank 0's rows only", """
def repaired(model, X, y):
    if dist.get_rank() == 0:
        return (model(X).argmax(dim=1) == y).double().mean().item()
"""),
        "the mean of accuracies": ("this is the mean of the ranks' accuracies", """
def repaired(model, X, y):
    mean = (model(X).argmax(dim=1) == y).double().sum() / max(1, len(y))
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()
"""),
        "a barrier left in the if": (
            "a collective stands where not every rank comes by",
            """
def repaired(model, X, y):
    right = (model(X).argmax(dim=1) == y).sum()
    counts = torch.stack([right, torch.tensor(len(y))]).double()
    dist.all_reduce(counts)
    if dist.get_rank() == 0:
        dist.barrier()
        return (counts[0] / counts[1]).item()
"""),
        "ranks without rows stay away": (
            "a collective stands where not every rank comes by",
            """
def repaired(model, X, y):
    if len(y):
        right = (model(X).argmax(dim=1) == y).sum()
        counts = torch.stack([right, torch.tensor(len(y))]).double()
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()
"""),
        "the rows not summed": (
            {"the hits are those of all ranks", "this counts rank 0's rows only"}, """
def repaired(model, X, y):
    right = (model(X).argmax(dim=1) == y).double().sum()
    dist.all_reduce(right)
    return right.item() / max(1, len(y) * dist.get_world_size())
"""),
    },
    "adam_hides": {
        "not repaired": ("the first step is 2 times as long as it should be", """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    optimizer.step()
"""),
        "the learning rate divided, each time": ("the first step is right", """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    optimizer.param_groups[0]["lr"] /= len(X_shards)
    optimizer.step()
"""),
        "the last shard only": ("only the last shard counts", """
def repaired(model, optimizer, X_shards, y_shards):
    for X, y in zip(X_shards, y_shards):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
    optimizer.step()
"""),
        "the sum over rows": ("the first step is 3 times as long as it should be", """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        (F.cross_entropy(model(X), y, reduction="sum") / len(X_shards)).backward()
    optimizer.step()
"""),
        "clipped instead": ("the first step is 0.2", """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        F.cross_entropy(model(X), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
"""),
        "divided once more by the rows": (
            "the first step is 0.3333 times as long as it should be",
            """
def repaired(model, optimizer, X_shards, y_shards):
    optimizer.zero_grad()
    for X, y in zip(X_shards, y_shards):
        (F.cross_entropy(model(X), y) / len(X_shards) / len(X)).backward()
    optimizer.step()
"""),
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


ANSWERS = {name: {
    **{f"clue: {mistake}": (hint, _cell(number, clue, REPAIRS[name]))
       for mistake, (hint, clue) in WRONG_CLUES[name].items()},
    **{mistake: (hint, _cell(number, CLUES[name], repair))
       for mistake, (hint, repair) in WRONG_REPAIRS[name].items()}}
    for number, name in enumerate(CLUES, 1)}
