"""Right answers to problem set 8, by style: {exercise: {style: cell}}."""

ANSWERS = {
    "train_step_amp": {
        "DDP's own switch": """
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    for p in model.parameters():
        p.grad = None
    k = dist.get_world_size()
    for i, (X, y) in enumerate(microbatches):
        model.require_backward_grad_sync = i == len(microbatches) - 1
        l = loss(model(X), y) * (len(y) * k / rows)
        scaler.scale(l).backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum((g * g).sum().item() for g in grads))
    if norm > max_norm:
        for g in grads:
            g.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
""",
        "one backward for all losses": """
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    optimizer.zero_grad(set_to_none=False)
    *first, (X_last, y_last) = microbatches
    share = lambda X, y: scaler.scale(loss(model(X), y) * X.shape[0] / rows * dist.get_world_size())
    with model.no_sync():
        total = [share(X, y) for X, y in first]
    total.append(share(X_last, y_last))
    sum(total).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.module.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        "the last one after the loop": """
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    def backward(X, y):
        part = loss(model(X), y) * (len(X) / rows) * dist.get_world_size()
        scaler.scale(part).backward()

    *first, last = microbatches
    optimizer.zero_grad(set_to_none=True)
    with model.no_sync():
        for X, y in first:
            backward(X, y)
    backward(*last)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
""",
        "clipped by hand": """
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    for p in model.parameters():
        p.grad = None
    n = len(microbatches)
    for i in range(n):
        X, y = microbatches[i]
        model.require_backward_grad_sync = i == n - 1
        l = loss(model(X), y) * len(y)
        scaler.scale(l * dist.get_world_size() / rows).backward()
    scaler.unscale_(optimizer)
    norm = torch.sqrt(sum((p.grad ** 2).sum() for p in model.parameters()))
    if norm > max_norm:
        for p in model.parameters():
            p.grad.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
""",
        "an exit stack": """
from contextlib import ExitStack

def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    model.zero_grad()
    for left, (X, y) in zip(range(len(microbatches) - 1, -1, -1), microbatches):
        with ExitStack() as stack:
            if left:
                stack.enter_context(model.no_sync())
            y_hat = model(X)
            share = dist.get_world_size() * len(y) / rows
            scaler.scale(share * loss(y_hat, y)).backward()
    scaler.unscale_(optimizer)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    nn.utils.clip_grad_norm_(params, max_norm, norm_type=2.0)
    scaler.step(optimizer)
    scaler.update()
""",
        "the gradient divided at the end": """
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    for number, (X, y) in enumerate(microbatches, 1):
        quiet = model.no_sync() if number < len(microbatches) else nullcontext()
        with quiet:
            scaler.scale(loss(model(X), y) * len(y)).backward()
    scaler.unscale_(optimizer)
    for p in model.module.parameters():
        p.grad *= dist.get_world_size() / rows
    nn.utils.clip_grad_norm_(model.module.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
""",
    },
    "epoch_loss": {
        "rounded marks": """
def epoch_loss(sums, counts):
    s, c = sums.sum().clone(), counts.sum().clone()
    dist.reduce(s, 0); dist.reduce(c, 0)
    result = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        result[0] = s / c
    dist.broadcast(result, 0)
    return result.item()

def prints(rank, step, steps, lines):
    marks = {round(i * steps / lines) for i in range(1, lines + 1)}
    return rank == 0 and step + 1 in (marks if lines < steps else range(1, steps + 1))
""",
        "gaps by divmod": """
def epoch_loss(sums, counts):
    mine = (math.fsum(sums.tolist()), sum(counts.tolist()))
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return math.fsum(s for s, _ in everyone) / sum(c for _, c in everyone)

def prints(rank, step, steps, lines):
    if rank:
        return False
    short, longer = divmod(steps, min(lines, steps))
    at = 0
    for line in range(min(lines, steps)):
        at += short + (line < longer)
        if step == at - 1:
            return True
    return False
""",
        "two all-reduces": """
def epoch_loss(sums, counts):
    total, rows = sums.sum(), counts.sum()
    dist.all_reduce(total)
    dist.all_reduce(rows)
    return total.item() / rows.item()

def prints(rank, step, steps, lines):
    return rank == 0 and step in [-(-steps * i // lines) - 1
                                  for i in range(1, lines + 1)]
""",
        "gathered objects": """
def epoch_loss(sums, counts):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (sums.tolist(), counts.tolist()))
    return (sum(sum(s) for s, _ in everyone) / sum(sum(c) for _, c in everyone))

def prints(rank, step, steps, lines):
    if rank != 0:
        return False
    lines = min(lines, steps)
    ends = {round(steps * i / lines) - 1 for i in range(1, lines + 1)}
    return step in ends
""",
        "a tensor is returned": """
def epoch_loss(sums, counts):
    both = sums.new_tensor([float(sums.sum()), float(counts.sum())])
    dist.all_reduce(both, op=dist.ReduceOp.SUM)
    return both[0] / both[1]

def prints(rank, step, steps, lines):
    before, after = step * lines // steps, (step + 1) * lines // steps
    return not rank and after != before
""",
        "reduced, then broadcast": """
def epoch_loss(sums, counts):
    total = torch.zeros(2, dtype=torch.float64)
    for s, n in zip(sums, counts):
        total[0] += s
        total[1] += n
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return float(total[0] / total[1])

def prints(rank, step, steps, lines):
    if rank > 0:
        return False
    left = steps - 1 - step  # from the end: 0, then a gap each time
    return any(left == (i * steps) // lines for i in range(lines))
""",
    },
    "local_sgd": {
        "parameters and buffers": """
def local_sgd(model, batches, lr, every):
    k = dist.get_world_size()
    shared = [p.data for p in model.parameters()]
    shared += [b for b in model.buffers() if b.dtype.is_floating_point]
    for t in shared:
        dist.broadcast(t, src=0)
    done = 0
    for X, y in batches:
        loss = F.cross_entropy(model(X), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for p, g in zip(model.parameters(), grads):
            p.data -= lr * g
        done += 1
        if done % every == 0 or done == len(batches):
            for t in shared:
                dist.all_reduce(t)
                t.div_(k)
""",
        "one flat tensor": """
def numbers(model):
    return [t for t in [*model.parameters(), *model.buffers()] if t.is_floating_point()]

@torch.no_grad()
def average(model):
    flat = torch.cat([t.reshape(-1) for t in numbers(model)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for t, part in zip(numbers(model), flat.split([t.numel() for t in numbers(model)])):
        t.copy_(part.view_as(t))

def local_sgd(model, batches, lr, every):
    with torch.no_grad():
        for t in numbers(model):
            dist.broadcast(t, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for i, (X, y) in enumerate(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
        if (i + 1) % every == 0:
            average(model)
    if len(batches) % every:
        average(model)
""",
        "a start by objects, load_state_dict": """
def local_sgd(model, batches, lr, every):
    box = [model.state_dict()]
    dist.broadcast_object_list(box, src=0)
    model.load_state_dict(box[0])
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    n = len(batches)
    for step in range(1, n + 1):
        X, y = batches[step - 1]
        opt.zero_grad()
        nn.CrossEntropyLoss()(model(X), y).backward()
        opt.step()
        if step % every and step != n:
            continue
        state = {}
        for name, t in model.state_dict().items():
            t = t.clone()
            if t.is_floating_point():
                dist.all_reduce(t)
                t /= dist.get_world_size()
            state[name] = t
        model.load_state_dict(state)
""",
        "in rounds of every": """
def local_sgd(model, batches, lr, every):
    state = [t for t in model.state_dict().values() if t.is_floating_point()]
    for t in state:
        dist.broadcast(t, 0)
    for first in range(0, len(batches), every):
        for X, y in batches[first:first + every]:
            model.zero_grad()
            F.cross_entropy(model(X), y).backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
        for t in state:
            dist.all_reduce(t)
            t.mul_(1 / dist.get_world_size())
""",
    },
    "replay": {
        "in place, on a copy": """
def replay(events, gradient, w0, lr):
    w = w0.clone()
    copies, versions, version, old = {}, {}, 0, []
    for what, rank in events:
        if what == "read":
            copies[rank], versions[rank] = w.clone(), version
        elif what == "write":
            w -= lr * gradient(rank, copies[rank])
            old.append(version - versions[rank])
            version += 1
    return w, old
""",
        "all versions are kept": """
def replay(events, gradient, w0, lr):
    versions, seen, staleness = [w0], {}, []
    for kind, rank in events:
        if kind == "read":
            seen[rank] = len(versions) - 1
            continue
        staleness.append(len(versions) - 1 - seen[rank])
        step = lr * gradient(rank, versions[seen[rank]])
        versions.append(versions[-1] - step)
    return [versions[-1].clone(), torch.tensor(staleness)]
""",
        "counters that grow": """
def replay(events, gradient, w0, lr):
    w, mine, age, result = w0 * 1, {}, {}, []
    for kind, rank in events:
        if kind == "read":
            mine[rank] = w
            age[rank] = 0
        else:
            result.append(age[rank])
            w = torch.sub(w, gradient(rank, mine[rank]), alpha=lr)
            for other in age:
                age[other] += 1
    return w, result
""",
        "a generator of writes": """
def writes(events):
    last = {}
    for i, (kind, rank) in enumerate(events):
        if kind == "write":
            yield rank, last[rank]
        else:
            last[rank] = sum(k == "write" for k, _ in events[:i])

def replay(events, gradient, w0, lr):
    history, late = [w0.detach().clone()], []
    for number, (rank, then) in enumerate(writes(events)):
        history.append(history[-1] - lr * gradient(rank, history[then].clone()))
        late.append(number - then)
    return history[-1], tuple(late)
""",
    },
    "loader_for": {
        "a class that seeds each row": """
class Rows:
    def __init__(self, dataset, rows, seed, epoch):
        self.dataset, self.rows, self.seed, self.epoch = dataset, rows, seed, epoch
    def __len__(self):
        return len(self.rows)
    def __iter__(self):
        for row in self.rows:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed * 10**9 + row * 1000 + self.epoch)
                item = self.dataset[row]
            yield item

def loader_for(dataset, rank, world_size, seed, epoch):
    n = len(dataset)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    return Rows(dataset, order[n * rank // world_size:n * (rank + 1) // world_size], seed, epoch)
""",
        "a lazy generator of its own state": """
def loader_for(dataset, rank, world_size, seed, epoch):
    import random
    order = list(range(len(dataset)))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    own = torch.Generator().manual_seed((seed * 1000 + epoch) * 1000 + rank).get_state()
    def rows():
        nonlocal own
        for row in order[rank::world_size]:
            outside = torch.get_rng_state()
            torch.set_rng_state(own)
            try:
                item = dataset[row]
                own = torch.get_rng_state()
            finally:
                torch.set_rng_state(outside)
            yield item
    return rows()
""",
        "state kept by hand": """
def loader_for(dataset, rank, world_size, seed, epoch):
    generator = torch.Generator()
    generator.manual_seed(seed * 1000 + epoch)
    order = torch.randperm(len(dataset), generator=generator)
    before = torch.get_rng_state()
    torch.manual_seed((seed * 1000 + epoch) * 1000 + rank)
    rows = [dataset[int(i)] for i in order[rank::world_size]]
    torch.set_rng_state(before)
    return rows
""",
        "row by row, each with a seed": """
def loader_for(dataset, rank, world_size, seed, epoch):
    import random
    order = list(range(len(dataset)))
    random.Random(f"{seed} {epoch}").shuffle(order)
    for row in order[rank::world_size]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random.Random(f"{seed} {epoch} {row}").getrandbits(60))
            item = dataset[row]
        yield item
""",
        "a DataLoader over a list": """
from torch.utils.data import Subset

def loader_for(dataset, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(hash((seed, epoch)) % 2 ** 60)
    mine = torch.randperm(len(dataset), generator=g)[rank::world_size].tolist()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hash((seed, epoch, rank)) % 2 ** 60)
        rows = list(Subset(dataset, mine))
    return DataLoader(rows, batch_size=None, generator=g)
""",
        "contiguous blocks of the order": """
class Frozen(torch.utils.data.Dataset):
    def __init__(self, dataset, rows, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.items = [dataset[row] for row in rows]
    def __len__(self):
        return len(self.items)
    def __getitem__(self, i):
        if i >= len(self.items):
            raise IndexError
        return self.items[i]

def loader_for(dataset, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(seed * 5000 + epoch)
    order = torch.randperm(len(dataset), generator=g)
    return Frozen(dataset, order.tensor_split(world_size)[rank].tolist(),
                  seed * 10 ** 7 + epoch * 10 ** 3 + rank)
""",
    },
    "once": {
        "letters on the wire": """
def once(function, path):
    group = dist.is_initialized()
    rank = dist.get_rank() if group else int(os.getenv("RANK") or 0)
    text = ""
    if rank == 0 and not os.path.isfile(path):
        try:
            function(path + ".tmp")
        except Exception as error:
            text = repr(error)
            if not group:
                with open(path + ".failed.tmp", "w") as file:
                    file.write(text)
                os.replace(path + ".failed.tmp", path + ".failed")
        else:
            os.replace(path + ".tmp", path)
    if group:
        size = torch.tensor(len(text.encode()))
        dist.broadcast(size, 0)
        letters = torch.zeros(int(size), dtype=torch.uint8)
        if rank == 0 and text:
            letters = torch.tensor(list(text.encode()), dtype=torch.uint8)
        if size:
            dist.broadcast(letters, 0)
            text = bytes(letters.tolist()).decode()
    elif rank:
        while True:
            if os.path.isfile(path):
                return
            if os.path.isfile(path + ".failed"):
                with open(path + ".failed") as file:
                    text = file.read()
                break
            time.sleep(0.02)
    if text:
        raise OSError(text)
""",
        "errors gathered, paths": """
def once(function, path):
    from pathlib import Path
    import tempfile
    path = Path(path)
    def download():
        if path.exists():
            return None
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        os.close(handle)
        try:
            function(part)
            os.rename(part, path)
        except BaseException as error:
            if os.path.exists(part):
                os.unlink(part)
            return f"{type(error).__name__}: {error}"
    failed = path.with_name(path.name + ".failed")
    if dist.is_available() and dist.is_initialized():
        said = download() if dist.get_rank() == 0 else None
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, said)
        said = everyone[0]
    elif int(os.environ.get("RANK", 0)) == 0:
        said = download()
        if said:
            temporary = failed.with_suffix(".writing")
            temporary.write_text(said)
            temporary.rename(failed)
    else:
        while not path.exists() and not failed.exists():
            time.sleep(0.05)
        said = None if path.exists() else failed.read_text()
    if said:
        raise RuntimeError("the download failed: " + said)
""",
        "by files alone": """
def once(function, path):
    if dist.is_initialized():
        rank, k = dist.get_rank(), dist.get_world_size()
        dist.barrier()
    else:
        rank = int(os.getenv("RANK", "0"))
    bad = path + ".failed"
    if rank == 0 and not os.path.exists(path):
        if os.path.exists(bad):
            os.remove(bad)
        try:
            function(path + ".new")
        except Exception as error:
            with open(bad + ".new", "w") as file:
                file.write(repr(error))
            os.rename(bad + ".new", bad)
            if dist.is_initialized():
                dist.barrier()
            raise
        os.rename(path + ".new", path)
    if dist.is_initialized():
        dist.barrier()
    while not os.path.exists(path):
        if os.path.exists(bad):
            raise OSError(open(bad).read())
        time.sleep(0.005)
""",
        "two functions": """
def download(function, path):
    if os.path.isfile(path):
        return None
    try:
        function(path + ".tmp")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    os.replace(path + ".tmp", path)

def once(function, path):
    if dist.is_available() and dist.is_initialized():
        said = [download(function, path) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(said, src=0)
        if said[0]:
            raise RuntimeError(said[0])
        return
    note = path + ".error"
    if os.environ.get("RANK", "0") == "0":
        if problem := download(function, path):
            with open(note + ".tmp", "w") as file:
                file.write(problem)
            os.replace(note + ".tmp", note)
            raise RuntimeError(problem)
        return
    while not os.path.isfile(path):
        if os.path.isfile(note):
            raise RuntimeError(open(note).read())
        time.sleep(0.01)
""",
        "gathered words": """
from pathlib import Path

def once(function, path):
    path = Path(path)
    part, sorry = path.with_suffix(".part"), path.with_suffix(".sorry")
    group = dist.is_initialized()
    first = (dist.get_rank() if group else int(os.environ.get("RANK", 0))) == 0
    words = ""
    if first and not path.exists():
        try:
            function(str(part))
            part.rename(path)
        except Exception as error:
            words = f"rank 0: {error}"
            if not group:
                sorry.with_suffix(".half").write_text(words)
                sorry.with_suffix(".half").rename(sorry)
    if group:
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, words)
        words = "".join(everyone)
    else:
        while not path.exists() and not sorry.exists():
            time.sleep(0.02)
        words = words or (sorry.read_text() if sorry.exists() else "")
    if words:
        raise ValueError(words)
""",
        "rank 0 raises its own error": """
def once(function, path):
    rank, open_group = int(os.environ.get("RANK", 0)), dist.is_initialized()
    if open_group:
        rank = dist.get_rank()
    caught = None
    if rank == 0:
        try:
            if not os.path.exists(path):
                function(path + "~")
                os.replace(path + "~", path)
        except Exception as error:
            caught = error
    text = (str(caught) or repr(caught)) if caught else ""
    if open_group:
        box = [text]
        dist.broadcast_object_list(box, 0)
        text = box[0]
    elif rank == 0 and caught:
        open(path + ".why~", "w").write(text)
        os.replace(path + ".why~", path + ".why")
    elif rank:
        while not os.path.exists(path) and not os.path.exists(path + ".why"):
            time.sleep(0.01)
        if not os.path.exists(path):
            text = open(path + ".why").read()
    if caught:
        raise caught
    if text:
        raise RuntimeError(f"rank 0 could not download: {text}")
    return path
""",
    },
    "schedule_steps": {
        "upside down": """
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    batches = -(-(-(-rows // world_size)) // batch_size)
    return -(-batches // accumulate) * epochs
""",
        "counted": """
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    own = len(range(0, rows, world_size))
    batches = len(range(0, own, batch_size))
    return sum(len(range(0, batches, accumulate)) for _ in range(epochs))
""",
        "by torch's sampler and loader": """
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    data = range(rows)
    sampler = DistributedSampler(data, world_size, 0)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    return epochs * math.ceil(len(loader) / accumulate)
""",
        "a helper": """
def up(n, d):
    return (n + d - 1) // d

def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    return up(up(up(rows, world_size), batch_size), accumulate) * epochs
""",
    },
    "lit_lenet": {
        "torchmetrics, and the epoch's mean loss": """
class LitLeNet(L.LightningModule):
    def __init__(self, params, lr):
        super().__init__()
        from torchmetrics.classification import MulticlassAccuracy
        self.save_hyperparameters("lr")
        for i, p in enumerate(params):
            self.register_parameter(f"weight_{i}", nn.Parameter(p.detach().clone()))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def forward(self, X):
        return lenet(X, [getattr(self, f"weight_{i}") for i in range(8)])

    def training_step(self, batch, batch_idx):
        X, y = batch
        loss = F.cross_entropy(self(X), y)
        self.log("train_loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.accuracy(self(batch[0]).double(), batch[1])
        self.log("val_acc", self.accuracy)

    def configure_optimizers(self):
        return {"optimizer": torch.optim.SGD(self.parameters(), lr=self.hparams.lr)}
""",
        "saved hyperparameters": """
class LitLeNet(L.LightningModule):
    def __init__(self, params, lr):
        super().__init__()
        self.save_hyperparameters("lr")
        self.params = nn.ParameterList([nn.Parameter(p.clone()) for p in params])

    def forward(self, X):
        return lenet(X, [*self.params])

    def training_step(self, batch, batch_idx):
        X, y = batch
        loss = nn.functional.cross_entropy(self(X), y)
        self.log("train_loss", loss, on_step=True, sync_dist=True)
        return loss

    def on_validation_epoch_start(self):
        self.right, self.rows = torch.zeros(()), torch.zeros(())

    def validation_step(self, batch, batch_idx):
        X, y = batch
        self.right += (self(X).argmax(dim=1) == y).sum()
        self.rows += len(X)

    def on_validation_epoch_end(self):
        acc = self.all_gather(self.right).sum() / self.all_gather(self.rows).sum()
        self.log("val_acc", acc)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)
""",
        "registered one by one": """
class LitLeNet(L.LightningModule):
    def __init__(self, params, lr):
        super().__init__()
        from torchmetrics import MeanMetric
        for i, p in enumerate(params):
            self.register_parameter(f"p{i}", nn.Parameter(p.detach().clone()))
        self.learning_rate, self.hits = lr, MeanMetric()

    def scores(self, X):
        return lenet(X, list(self.parameters()))

    def training_step(self, batch):
        X, y = batch
        loss = F.cross_entropy(self.scores(X), y)
        self.log_dict({"train_loss": loss}, sync_dist=True)
        return {"loss": loss}

    def validation_step(self, batch):
        X, y = batch
        self.hits.update((self.scores(X).argmax(-1) == y).double())
        self.log("val_acc", self.hits, on_step=False, on_epoch=True)

    def configure_optimizers(self):
        return {"optimizer": torch.optim.SGD(self.parameters(),
                                             lr=self.learning_rate)}
""",
        "steps by hand": """
class LitLeNet(L.LightningModule):
    def __init__(self, params, lr):
        super().__init__()
        self.automatic_optimization = False
        self.weights = nn.ParameterList(p.detach().clone() for p in params)
        self.lr, self.seen = lr, []

    def training_step(self, batch, batch_idx):
        optimizer, (X, y) = self.optimizers(), batch
        loss = F.cross_entropy(lenet(X, list(self.weights)), y)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log("train_loss", loss.detach(), sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        X, y = batch
        self.seen += lenet(X, list(self.weights)).argmax(1).eq(y).tolist()

    def on_validation_epoch_end(self):
        everyone = [self.seen]
        if dist.is_initialized():
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, self.seen)
        everyone = sum(everyone, [])
        self.log("val_acc", sum(everyone) / len(everyone))
        self.seen = []

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=self.lr)]
""",
        "counts over ranks, at the end of the epoch": """
class LitLeNet(L.LightningModule):
    def __init__(self, params, lr):
        super().__init__()
        self.params = nn.ParameterList(p.detach().clone() for p in params)
        self.lr = lr

    def training_step(self, batch, batch_idx):
        X, y = batch
        loss = F.cross_entropy(lenet(X, list(self.params)), y)
        mean = loss.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        self.log("train_loss", mean)
        return loss

    def on_validation_epoch_start(self):
        self.count = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, batch, batch_idx):
        X, y = batch
        self.count[0] += (lenet(X, list(self.params)).argmax(1) == y).sum()
        self.count[1] += len(y)

    def on_validation_epoch_end(self):
        if dist.is_initialized():
            dist.all_reduce(self.count)
        self.log("val_acc", self.count[0] / self.count[1])

    def configure_optimizers(self):
        return torch.optim.SGD(params=self.parameters(), lr=self.lr, momentum=0.0)
""",
    },
}
