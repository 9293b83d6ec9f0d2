"""Wrong answers to problem set 5: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "ps5/rebinding": (
        """
def clue_1(k):
    return <<CLUE: "replicas", k>>

def repaired_1(data):
    total = <<SUM: sum(data)>>
    for i, t in enumerate(data):
        <<WRITE: t.copy_(total)>>
""",
        {
            "a clue is two things": {"CLUE": '"replicas"'},
            "no such row": {"CLUE": '"replica", k'},
            "that row tells nothing here": {"CLUE": '"accuracy", 0.922'},
            "the row is right; the number": {"CLUE": '"replicas", k - 1'},
            "the list holds the sums": {"WRITE": "data[i] = total.clone()"},
            "the tensors hold what they held": {"WRITE": "t = total.clone()"},
        },
    ),
    "ps5/aliasing": (
        """
def clue_2(k):
    return <<CLUE: "step", 2 ** (k - 1)>>

def repaired_2(params, device):
    copies = [<<COPY: p.detach().to(device, copy=True)>> for p in params]
    for p in copies:
        p.requires_grad_()
    return copies
""",
        {
            "a replica lies in the parameter's memory": {
                "COPY": "p.detach().to(device)"
            },
            "a copy hangs on the graph": {"COPY": "p.clone().to(device)"},
            "a replica keeps the shape": {
                "COPY": "p.detach().to(device, torch.float64, copy=True)"
            },
            "the row is right; the number": {"CLUE": '"step", k'},
        },
    ),
    "ps5/hook": (
        """
def clue_3(k):
    return <<CLUE: "replicas", k>>

def repaired_3(model):
    def average(p):
        <<TEST: pass>>
        <<DIVIDE: p.grad /= dist.get_world_size()>>
        <<SUM: dist.all_reduce(p.grad)>>
    done = set()
    *_, last = model.parameters()
    for p in model.parameters():
        if p.requires_grad:
            <<HOOK: pass>>
            p.register_post_accumulate_grad_hook(average)
""",
        {
            "every rank has its own gradient": {
                "TEST": "dist.all_reduce(p.grad.clone()); return p"
            },
            "this is the sum": {"DIVIDE": "pass"},
            "the first gradient counts twice": {
                "HOOK": "p.register_hook(lambda g, p=p: g if p.grad is None else g + p.grad)"
            },
            "rank 0 alone has the mean": {"SUM": "dist.reduce(p.grad, 0)"},
            "each p.grad has to be summed": {
                "SUM": "dist.all_reduce(last.grad) if last.grad is not None else None"
            },
            "a collective stands where": {"TEST": "if dist.get_rank(): return"},
            "average after every backward": {
                "TEST": "if p in done: return\n        done.add(p)"
            },
        },
    ),
    "ps5/set_epoch": (
        """
def clue_4(k):
    return <<CLUE: "orders", 1>>

def repaired_4(dataset, rank, world_size, epochs, step):
    sampler = DistributedSampler(dataset, world_size, rank, seed=<<SEED: 0>>)
    own = list(DistributedSampler(dataset, world_size, rank, shuffle=False))
    for epoch in range(epochs):
        <<BEFORE: sampler.set_epoch(epoch)>>
        for batch in DataLoader(dataset, batch_size=4, sampler=<<ORDER: sampler>>):
            step(<<TOLD: epoch>>, batch)
        <<AFTER: pass>>
""",
        {
            "every rank goes through": {"ORDER": "torch.randperm(len(dataset))"},
            "in all there are as many rows": {"TOLD": "0"},
            "rows are left out": {"ORDER": "own[1:]"},
            "ranks shuffle with seeds": {"SEED": "rank"},
            "two epochs have the same order": {
                "BEFORE": "pass",
                "AFTER": "sampler.set_epoch(epoch)",
            },
            "shuffle all rows": {"ORDER": "[own[i] for i in torch.randperm(len(own))]"},
        },
    ),
    "ps5/mean_of_means": (
        """
def clue_5(program):
    X = <<SIZE: 1>> * torch.ones(5, 3, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1, 1])
    W = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    grad = <<RUN: program(X.split(<<CUT: 4>>), y.split(CUT), W)>>
    return (grad - <<ALONE: program([X], [y], W)>>)<<OFF: .abs().max()>>.item()

def repaired_5(X_shards, y_shards, W):
    rows = sum(len(y) for y in y_shards)
    grads = [torch.autograd.grad(F.cross_entropy(X @ W, y, reduction="sum"), W)[0]
             <<SHARE: / rows>> for X, y in zip(X_shards, y_shards)]
    return <<RESULT: sum(grads)>>
""",
        {
            "compare with one device": {"ALONE": "0"},
            "the program is not run": {"RUN": "W", "ALONE": "W"},
            "in shards of one size": {"CUT": "1"},
            "it was off by": {"OFF": ".sum()"},
            "it is hardly off": {"SIZE": "1e-6"},
            "this is still the mean": {
                "SHARE": "/ max(1, len(y))",
                "RESULT": "sum(grads) / len(grads)",
            },
            "this is the sum over all rows": {"SHARE": "* 1"},
            "backward adds to W.grad": {
                "RESULT": "(W * sum(grads)).sum().backward() or W.grad"
            },
        },
    ),
    "ps5/stale_gradients": (
        """
def clue_6(k):
    return <<CLUE: "step", (k + 1) / 2>>

def repaired_6(model, optimizer, batches, accumulate):
    <<BEFORE: pass>>
    for i, (X, y) in enumerate(batches):
        loss = F.cross_entropy(model(X), y) / <<DIVIDE: accumulate>>
        loss.backward(retain_graph=<<KEEP: False>>)
        if <<TEST: (i + 1) % accumulate == 0>>:
            <<STEP: optimizer.step()>>
            <<CLEAR: optimizer.zero_grad()>>
""",
        {
            "steps are 2 times too large": {"DIVIDE": "1"},
            "gradients go into more than one step": {"CLEAR": "pass"},
            "the step is the optimizer's": {
                "STEP": "[p.data.sub_(optimizer.param_groups[0]['lr'] * p.grad) "
                "for p in model.parameters()]"
            },
            "more rows at once": {
                "BEFORE": "batches = [tuple(map(torch.cat, zip(*batches[i:i + accumulate]))) "
                "for i in range(0, len(batches), accumulate)]; accumulate = 1"
            },
            "call backward after each forward": {"KEEP": "True"},
        },
    ),
    "ps5/double_averaging": (
        """
def clue_7(k):
    return <<CLUE: "messages", 2>>

def repaired_7(model, batches, lr):
    <<BEFORE: pass>>
    ddp = <<MODEL: DDP(model)>>
    optimizer = torch.optim.SGD(ddp.parameters(), lr)
    for X, y in batches:
        <<CLEAR: optimizer.zero_grad()>>
        F.cross_entropy(<<CALL: ddp>>(X), y).backward()
        for p in ddp.parameters():
            <<AFTER: pass>>
        optimizer.step()
    <<END: pass>>
""",
        {
            "steps are 2 times too small": {"AFTER": "p.grad /= dist.get_world_size()"},
            "steps are 2 times too large": {"AFTER": "p.grad *= dist.get_world_size()"},
            "the gradient of the first step": {"CLEAR": "pass"},
            "rank 0 has learned from its own rows": {
                "CALL": "ddp.module",
                "END": "[dist.broadcast(p.data, 0) for p in model.parameters()]",
            },
            "this begins with the mean": {
                "BEFORE": "for p in model.parameters():\n"
                "        dist.all_reduce(p.data)\n"
                "        p.data /= dist.get_world_size()"
            },
            "these are each rank's first weights": {
                "BEFORE": "import copy",
                "MODEL": "DDP(copy.deepcopy(model))",
            },
            "replicas differ": {"MODEL": "model"},
            "numbers are sent": {
                "AFTER": "dist.all_reduce(p.grad); p.grad /= dist.get_world_size()"
            },
        },
    ),
    "ps5/no_sync": (
        """
def clue_8(k):
    return <<CLUE: "messages", k>>

def repaired_8(model, optimizer, microbatches):
    n = len(microbatches)
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        with <<QUIET: nullcontext() if i == n - 1 else model.no_sync()>>:
            loss = F.cross_entropy(model(X), y) / <<DIVIDE: n>>
        loss.backward()
    optimizer.step()
""",
        {
            "steps are 3 times too large": {"DIVIDE": "1"},
            "replicas differ": {"QUIET": "model.no_sync()"},
            "no such row": {"CLUE": '"message", k'},
        },
    ),
    "ps5/rank_zero_only": (
        """
def clue_9(k):
    return <<CLUE: "absent", k - 1>>

def repaired_9(model, X, y):
    right = (model(X).argmax(dim=1) == y).double().sum()
    counts = torch.stack([right, torch.tensor(len(y)).double()])
    <<SEND: dist.all_reduce(counts)>>
    return <<RESULT: (counts[0] / counts[1]).item()>>
""",
        {
            "a collective stands where": {"SEND": "len(y) and dist.all_reduce(counts)"},
            "gloo ends a rank": {
                "SEND": "own = model(X); dist.all_gather([torch.empty_like(own) "
                "for _ in range(dist.get_world_size())], own)"
            },
            "this counts rank 0's rows only": {"SEND": "pass"},
            "the right ones are those of all ranks": {
                "SEND": "dist.all_reduce(counts[:1])"
            },
            "this is the mean of the ranks' accuracies": {
                "SEND": "mean = right / max(1, len(y)); dist.all_reduce(mean)",
                "RESULT": "(mean / dist.get_world_size()).item()",
            },
        },
    ),
    "ps5/adam_hides": (
        """
def clue_10(program):
    def step(parts):
        X, y = torch.ones(4, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 1])
        model = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.<<KIND: SGD>>(model.parameters(), lr=<<RATE: 0.1>>)
        <<RUN: program(model, optimizer, X.chunk(parts), y.chunk(parts))>>
        return model.weight.detach()
    return (step(<<PARTS: 2>>) - step(1))<<OFF: .abs().max()>>.item() <<MORE: >>

def repaired_10(model, optimizer, X_shards, y_shards):
    <<CLEAR: optimizer.zero_grad()>>
    for X, y in zip(X_shards, y_shards):
        (F.cross_entropy(model(X), y) / <<DIVIDE: len(X_shards)>>).backward()
        <<EACH: pass>>
    <<BEFORE: pass>>
    optimizer.step()
""",
        {
            "compare with one device": {"MORE": "+ 1"},
            "the program is not run": {"RUN": "pass"},
            "on one shard the sum is the mean": {"PARTS": "1"},
            "Adam hides it": {"KIND": "Adam"},
            "a step was too long by": {"OFF": ".sum()"},
            "the step is too short": {"RATE": "1e-6"},
            "the rate is not the patient": {
                "DIVIDE": "1",
                "BEFORE": "optimizer.param_groups[0]['lr'] /= len(X_shards)",
            },
            "the steps are 2 times as long": {"DIVIDE": "1"},
            "these are 6 steps": {"EACH": "optimizer.step(); optimizer.zero_grad()"},
            "the first step is right": {"CLEAR": "pass"},
            "each shard's gradient counts": {
                "DIVIDE": "1",
                "EACH": "[p.grad.div_(len(X_shards)) for p in model.parameters()]",
            },
        },
    ),
}
