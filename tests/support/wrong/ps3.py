"""Wrong answers to problem set 3: {exercise: {name of the mistake: answer cell}}."""

# right answers, in which one part at a time is made wrong
PLAN = """
import math
def plan(examples, batch_size, world_size, lr, keep):
    k, b = world_size, batch_size
    if keep == "batch":
        size = math.ceil(b / k)
        rows = [max(0, min(size, b - r * size)) for r in range(k)]
    else:
        rows, b, lr = [b] * k, b * k, lr * k
    steps = math.ceil(examples / b)
    CHANGE
    return {"rows": rows, "batch_size": b, "lr": lr, "steps": steps}
"""
PLANS = {
    "floor that loses rows": "if keep == 'batch': rows = [b // k] * k",
    "scales at a fixed minibatch": "if keep == 'batch': lr = lr * k",
    "divides lr by k at a fixed minibatch": "if keep == 'batch': lr = lr / k",
    "never scales": "if keep == 'shard': lr = lr / k",
    "sqrt rule": "if keep == 'shard': lr = lr / k ** 0.5",
    "divides lr by k at a larger minibatch": "if keep == 'shard': lr = lr / k ** 2",
    "the last minibatch dropped": "steps = examples // b",
    "a step without rows": "steps = examples // b + 1",
    "steps as before": "steps = math.ceil(examples / batch_size)",
    "steps divided among the devices": "steps = math.ceil(examples / b / k)",
    "every device the whole minibatch": "rows = [b] * k",
    "the minibatch is one device's": "b = batch_size",
    "cut as evenly as can be":
        "if keep == 'batch': rows = [len(range(r, b, k)) for r in range(k)]",
    "the rest to the last":
        "if keep == 'batch': rows = [b // k] * (k - 1) + [b - b // k * (k - 1)]",
    "fewer shards than devices": "rows = [r for r in rows if r]",
    "one number for the rows": "rows = rows[0]",
    "returns a tuple": "return rows, b, lr, steps",
    "nothing": "return None",
}
WHOLE_PLANS = {
    "regimes swapped": PLAN.replace("CHANGE", "pass").replace(
        '== "batch"', '!= "batch"'),
    "keep ignored": PLAN.replace("CHANGE", "pass").replace('keep == "batch"', "False"),
}

RATE = """
def learning_rate(step, base_lr, world_size, warmup_steps):
    b, k, w = base_lr, world_size, warmup_steps
    RETURN
"""
RATES = {
    "ramp from 0": "return k * b * min(1, step / w) if w else k * b",
    "ramp from 0, a step ahead": "return k * b * min(1, (step + 1) / w) if w else k * b",
    "a step ahead": "return b + (k - 1) * b * min(1, (step + 1) / w) if w else k * b",
    "off by one at the end of warm-up":
        "return b + (k - 1) * b * min(1, step / (w - 1)) if w > 1 else k * b",
    "a step late":
        "return b + (k - 1) * b * min(1, step / (w + 1)) if w else k * b",
    "sqrt rule": "return b + (k ** 0.5 - 1) * b * min(1, step / w) if w else k ** 0.5 * b",
    "divides by k": "return b + (1 / k - 1) * b * min(1, step / w) if w else b / k",
    "from a share to the whole": "return b / k + (b - b / k) * min(1, step / w) if w else b",
    "no warm-up": "return k * b",
    "never scaled": "return b",
    "grows for ever": "return b + (k - 1) * b * step / w if w else k * b",
    "without warm-up the base rate": "return b + (k - 1) * b * min(1, step / w) if w else b",
    "divides by zero": "return b + (k - 1) * b * min(1, step / w)",
    "adds k times to the base": "return b + k * b * min(1, step / w) if w else b + k * b",
    "ramps to the base, then jumps": "return b * step / w if step < w else k * b",
    "multiplies": "return b * k ** min(1, step / w) if w else k * b",
    "the base until the end of warm-up": "return b if step < w else k * b",
    "whole steps": "return b + (k - 1) * b * min(1, step // w) if w else k * b",
    "nothing": "return None",
}

# dealt like cards, from an order that is drawn by ORDER
SHARDS = """
import random
def shard_indices(n, world_size, rank, seed, epoch):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    CHANGE
    return order[rank::world_size]
"""
GENERATOR = ("generator = torch.Generator().manual_seed({}); "
             "order = torch.randperm(n, generator=generator).tolist()")
SHARD_CHANGES = {
    "seed differs by rank": GENERATOR.format("seed + epoch + rank"),
    "epoch ignored": GENERATOR.format("seed"),
    "seed ignored": GENERATOR.format("epoch"),
    "seed times epoch": GENERATOR.format("seed * epoch"),
    "padded with repeats": "order += order[:-n % world_size]",
    "padded with repeats, also where rows run out":
        "order = (order * world_size)[:-(-n // world_size) * world_size]",
    "floor that loses rows": "order = order[:n // world_size * world_size]",
    "not shuffled": "order = list(range(n))",
    "sorted afterwards": "return sorted(order[rank::world_size])",
    "ceil chunks": "size = -(-n // world_size); "
                   "return order[rank * size:(rank + 1) * size]",
    "every rank takes all": "return order",
    "rows drawn with replacement":
        "order = torch.randint(n, (n,), generator=generator).tolist()",
    "counted from one": "order = [i + 1 for i in order]",
    "torch's shared generator": "order = torch.randperm(n).tolist()",
    "torch's shared generator, seeded":
        "torch.manual_seed(seed + epoch); order = torch.randperm(n).tolist()",
    "Python's shared generator":
        "order = list(range(n)); random.shuffle(order)",
    "Python's shared generator, seeded":
        "random.seed(seed + epoch); order = list(range(n)); random.shuffle(order)",
    "shuffled within a shard that stays": "rows = list(range(rank, n, world_size)); "
        "return [rows[i] for i in torch.randperm(len(rows), generator=generator)]",
    "shards passed round the ranks": GENERATOR.format("seed")
        + "; rank = (rank + epoch) % world_size",
    "the order moved on": GENERATOR.format("seed")
        + "; order = order[epoch % n:] + order[:epoch % n]",
    "the order turned round": GENERATOR.format("seed")
        + "; order = order[::-1] if epoch % 2 else order",
    "another epoch by adding to the rows": "order = [(i + epoch) % n for i in range(n)]",
    "rank 0 alone": "return order if rank == 0 else []",
    "fractions": "order = [float(i) for i in order]",
    "empty": "return []",
    "nothing": "return None",
}

ACCURACY = """
def evaluate_accuracy(device_params, data, devices):
    correct = total = 0
    k = len(devices)
    with torch.no_grad():
        for X, y in data:
            X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)
            for rank in range(k):
                y_hat = lenet(X_shards[rank].to(devices[rank]), device_params[rank])
                hits = y_hat.argmax(dim=1) == y_shards[rank].to(devices[rank])
                correct += int(hits.sum())
            total += len(y)
    return correct / total
"""
STEP = "                correct += int(hits.sum())\n            total += len(y)"
ACCURACIES = {
    "mean of the shards": (STEP, """\
                if len(hits):
                    correct += float(hits.double().mean())
                    total += 1"""),
    "mean of the shards, also of none": (STEP, """\
                correct += float(hits.double().mean())
                total += 1"""),
    "mean of the shards, none counts as 0": (STEP, """\
                correct += int(hits.sum()) / max(1, len(hits))
                total += 1"""),
    "mean of the minibatches": (STEP, """\
                correct += int(hits.sum()) / len(y)
            total += 1"""),
    "the last minibatch dropped": ("in data:", "in list(data)[:-1]:"),
    "floor that loses rows": ("X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
                              "m = max(1, len(X) // k); "
                              "X_shards, y_shards = [list(t.split(m)) + [t[:0]] * k "
                              "for t in (X, y)]"),
    "padded with repeats": ("X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
                            "i = torch.arange(-(-len(X) // k) * k) % len(X); "
                            "X, y = X[i], y[i]; "
                            "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)"),
    "rank 0 counts its own, over all": (
        "correct += int(hits.sum())", "correct += int(hits.sum()) * (rank == 0)"),
    "all on device 0": (
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "X_shards, y_shards = [X] + [X[:0]] * k, [y] + [y[:0]] * k"),
    "replica 0 does every shard": ("device_params[rank]", "device_params[0]"),
    "every device the whole minibatch": (
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "X_shards, y_shards = [X] * k, [y] * k; total += len(y) * (k - 1)"),
    "a minibatch a device": (
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "r = total // len(y) % k; "
        "X_shards = [X if r == s else X[:0] for s in range(k)]; "
        "y_shards = [y if r == s else y[:0] for s in range(k)]"),
    "weights of its own": (
        "lenet(X_shards[rank].to(devices[rank]), device_params[rank])",
        "lenet(X_shards[rank], [p.clone() for p in device_params[rank]])"),
    "the last minibatch's accuracy": (
        "        for X, y in data:", "        for X, y in data:\n"
        "            correct = total = 0"),
    "the count": ("return correct / total", "return correct"),
    "percent": ("return correct / total", "return 100 * correct / total"),
    "the error": ("return correct / total", "return 1 - correct / total"),
    "the least likely digit": ("argmax", "argmin"),
    "rounded": ("return correct / total", "return round(correct / total, 2)"),
    "nothing": ("return correct / total", "return None"),
    "zero": ("    correct = total = 0\n    k", "    return 0.0\n    k"),
    "always right": ("    correct = total = 0\n    k", "    return 1.0\n    k"),
}
DEVICES_MEAN = """
@torch.no_grad()
def evaluate_accuracy(device_params, data, devices):
    k = len(devices)
    correct, total = [0] * k, [0] * k
    for X, y in data:
        shards = zip(X.tensor_split(k), y.tensor_split(k))
        for rank, (X_shard, y_shard) in enumerate(shards):
            hits = lenet(X_shard, device_params[rank]).argmax(dim=1) == y_shard
            correct[rank] += int(hits.sum())
            total[rank] += len(y_shard)
    MEAN
"""
FEWER_SHARDS = """
@torch.no_grad()
def evaluate_accuracy(device_params, data, devices):
    correct = total = 0
    for X, y in data:
        rows = len(X) // len(devices) + 1
        for X_shard, y_shard in zip(X.split(rows), y.split(rows)):
            correct += int((lenet(X_shard, device_params[0]).argmax(1) == y_shard).sum())
        total += len(y)
    return correct / total
"""


def _changed(cell, old, new):
    if old not in cell:
        raise ValueError(f"no {old!r} to change")
    return cell.replace(old, new)


WRONG = {
    "plan": WHOLE_PLANS | {name: PLAN.replace("CHANGE", change)
                           for name, change in PLANS.items()},
    "learning_rate": {name: RATE.replace("RETURN", change)
                      for name, change in RATES.items()},
    "shard_indices": {name: SHARDS.replace("CHANGE", change)
                      for name, change in SHARD_CHANGES.items()},
    "evaluate_accuracy": {name: _changed(ACCURACY, *change)
                          for name, change in ACCURACIES.items()} | {
        "mean of the devices": DEVICES_MEAN.replace(
            "MEAN", "return sum(c / t for c, t in zip(correct, total)) / k"),
        "device 0's accuracy": DEVICES_MEAN.replace("MEAN", "return correct[0] / total[0]"),
        "one device, in pieces": FEWER_SHARDS,
    },
}
