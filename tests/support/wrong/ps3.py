"""Wrong answers to problem set 3: {exercise: {mistake: (hint, cell)}}."""

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
    "floor that loses rows": (
        "batch_size // world_size loses rows",
        "if keep == 'batch': rows = [b // k] * k"),
    "scales at a fixed minibatch": (
        "the minibatch is the one of a single device",
        "if keep == 'batch': lr = lr * k"),
    "divides lr by k at a fixed minibatch": (
        "the minibatch is the one of a single device",
        "if keep == 'batch': lr = lr / k"),
    "never scales": (
        "one step takes the place of world_size steps",
        "if keep == 'shard': lr = lr / k"),
    "sqrt rule": (
        "the square root is a rule for Adam",
        "if keep == 'shard': lr = lr / k ** 0.5"),
    "divides lr by k at a larger minibatch": (
        "the rate is not shared out",
        "if keep == 'shard': lr = lr / k ** 2"),
    "the last minibatch dropped": (
        "the last minibatch may be short",
        "steps = examples // b"),
    "a step without rows": (
        "there is no step without rows",
        "steps = examples // b + 1"),
    "steps as before": (
        "the minibatch is larger now",
        "steps = math.ceil(examples / batch_size)"),
    "steps divided among the devices": (
        "rows go by minibatches, whoever works on them: do not divide",
        "steps = math.ceil(examples / b / k)"),
    "steps counted by shards": (
        "rows go by minibatches, not by shards",
        "steps = math.ceil(examples / max(rows))"),
    "the minibatch always grows": (
        "the devices share one device's minibatch",
        "b = batch_size * k"),
    "every device the whole minibatch": ("this is keep='shard'", "rows = [b] * k"),
    "the minibatch is one device's": ("each device's rows count", "b = batch_size"),
    "cut as evenly as can be": (
        "all rows are there",
        "if keep == 'batch': rows = [len(range(r, b, k)) for r in range(k)]"),
    "the rest to the last": (
        "all rows are there",
        "if keep == 'batch': rows = [b // k] * (k - 1) + [b - b // k * (k - 1)]"),
    "fewer shards than devices": (
        "all rows are there",
        "rows = [r for r in rows if r]"),
    "one number for the rows": ("one number a device", "rows = rows[0]"),
    "returns a tuple": ("numbers without names", "return rows, b, lr, steps"),
    "nothing": ("nothing is returned", "return None"),
}
WHOLE_PLANS = {
    "regimes swapped": ("this is keep='shard'", PLAN.replace("CHANGE", "pass").replace(
        '== "batch"', '!= "batch"')),
    "keep ignored, always the batch": (
        "this is keep='batch'",
        PLAN.replace("CHANGE", "pass").replace(
            'keep == "batch"', "True")),
    "keep ignored": (
        "this is keep='shard'",
        PLAN.replace("CHANGE", "pass").replace('keep == "batch"', "False")),
}

RATE = """
def learning_rate(step, base_lr, world_size, warmup_steps):
    b, k, w = base_lr, world_size, warmup_steps
    RETURN
"""
RATES = {
    "ramp from 0": (
        "step 0 takes base_lr, the rate that one device had; this starts",
        "return k * b * min(1, step / w) if w else k * b"),
    "ramp from 0, a step ahead": (
        "step 0 takes base_lr; this starts at 0 and is one step ahead",
        "return k * b * min(1, (step + 1) / w) if w else k * b"),
    "a step ahead": (
        "this is one step ahead",
        "return b + (k - 1) * b * min(1, (step + 1) / w) if w else k * b"),
    "off by one at the end of warm-up": (
        "this is one step early",
        "return b + (k - 1) * b * min(1, step / (w - 1)) if w > 1 else k * b"),
    "a step late": (
        "this is one step late",
        "return b + (k - 1) * b * min(1, step / (w + 1)) if w else k * b"),
    "sqrt rule": (
        "this ends at the square root",
        "return b + (k ** 0.5 - 1) * b * min(1, step / w) if w else k ** 0.5 * b"),
    "divides by k": (
        "base_lr is what one device had",
        "return b + (1 / k - 1) * b * min(1, step / w) if w else b / k"),
    "from a share to the whole": (
        "step 0 takes base_lr, the rate that one device had, and not a",
        "return b / k + (b - b / k) * min(1, step / w) if w else b"),
    "no warm-up": ("there is no warm-up", "return k * b"),
    "never scaled": ("nothing is scaled", "return b"),
    "grows for ever": (
        "it goes on growing after warmup_steps",
        "return b + (k - 1) * b * step / w if w else k * b"),
    "without warm-up the base rate": (
        "nothing is scaled",
        "return b + (k - 1) * b * min(1, step / w) if w else b"),
    "divides by zero": (
        "warmup_steps=0 is no warm-up",
        "return b + (k - 1) * b * min(1, step / w)"),
    "adds k times to the base": (
        "this ends at base_lr + k * base_lr",
        "return b + k * b * min(1, step / w) if w else b + k * b"),
    "overshoots, then falls back": (
        "from base_lr to k * base_lr it is k - 1 times base_lr",
        "return b + k * b * step / w if step < w else k * b"),
    "ramps to the base, then jumps": (
        "the warm-up ramps to base_lr",
        "return b * step / w if step < w else k * b"),
    "multiplies": (
        "each step multiplies the rate",
        "return b * k ** min(1, step / w) if w else k * b"),
    "the base until the end of warm-up": (
        "this waits until the end of the warm-up",
        "return b if step < w else k * b"),
    "whole steps": (
        "this waits until the end of the warm-up",
        "return b + (k - 1) * b * min(1, step // w) if w else k * b"),
    "nothing": ("nothing is returned", "return None"),
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
    "seed differs by rank": (
        "ranks shuffle differently",
        GENERATOR.format("seed + epoch + rank")),
    "epoch ignored": ("epoch is not used", GENERATOR.format("seed")),
    "seed ignored": ("the seed is not used", GENERATOR.format("epoch")),
    "seed times epoch": (
        "seed * epoch is 0 in epoch 0",
        GENERATOR.format("seed * epoch")),
    "padded with repeats": (
        "rows are repeated so that all ranks have as many",
        "order += order[:-n % world_size]"),
    "padded with repeats, also where rows run out": (
        "rows are repeated so that all ranks have as many",
        "order = (order * world_size)[:-(-n // world_size) * world_size]"),
    "floor that loses rows": (
        "n // world_size rows a rank loses the rest",
        "order = order[:n // world_size * world_size]"),
    "not shuffled": ("the rows are in order", "order = list(range(n))"),
    "sorted afterwards": (
        "the rows are in order",
        "return sorted(order[rank::world_size])"),
    "ceil chunks": (
        "sizes may differ by one",
        "size = -(-n // world_size); "
        "return order[rank * size:(rank + 1) * size]"),
    "every rank takes all": ("every rank takes all rows", "return order"),
    "rows drawn with replacement": (
        "rows are drawn one by one",
        "order = torch.randint(n, (n,), generator=generator).tolist()"),
    "counted from one": (
        "rows are numbered from 0 to n - 1",
        "order = [i + 1 for i in order]"),
    "torch's shared generator": (
        "ranks shuffle differently",
        "order = torch.randperm(n).tolist()"),
    "torch's shared generator, seeded": (
        "torch.manual_seed",
        "torch.manual_seed(seed + epoch); order = torch.randperm(n).tolist()"),
    "Python's shared generator": (
        "ranks shuffle differently",
        "order = list(range(n)); random.shuffle(order)"),
    "Python's shared generator, seeded": (
        "random.seed changes what everybody else draws",
        "random.seed(seed + epoch); order = list(range(n)); random.shuffle(order)"),
    "shuffled within a shard that stays": (
        "rows stay together",
        "rows = list(range(rank, n, world_size)); "
"return [rows[i] for i in torch.randperm(len(rows), generator=generator)]"),
    "shards passed round the ranks": (
        "the old order is turned or moved",
        GENERATOR.format("seed")
+ "; rank = (rank + epoch) % world_size"),
    "the order moved on": (
        "the old order is turned or moved",
        GENERATOR.format("seed")
+ "; order = order[epoch % n:] + order[:epoch % n]"),
    "the order turned round": (
        "the old order is turned or moved",
        GENERATOR.format("seed")
+ "; order = order[::-1] if epoch % 2 else order"),
    "another epoch by adding to the rows": (
        "the rows are in order",
        "order = [(i + epoch) % n for i in range(n)]"),
    "rank 0 alone": ("sizes may differ by one", "return order if rank == 0 else []"),
    "fractions": ("these are fractions", "order = [float(i) for i in order]"),
    "empty": ("no rank has any row", "return []"),
    "nothing": ("nothing is returned", "return None"),
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
    "mean of the shards": (
        "this is the mean of the shards' accuracies: rows of small ones",
        STEP, """\
                if len(hits):
                    correct += float(hits.double().mean())
                    total += 1"""),
    "mean of the shards, also of none": (
        "the accuracy of no rows is 0 / 0",
        STEP, """\
                correct += float(hits.double().mean())
                total += 1"""),
    "mean of the shards, none counts as 0": (
        "this is the mean of the shards' accuracies",
        STEP, """\
                correct += int(hits.sum()) / max(1, len(hits))
                total += 1"""),
    "mean of the minibatches": (
        "this is the mean of the minibatches' accuracies",
        STEP, """\
                correct += int(hits.sum()) / len(y)
            total += 1"""),
    "the last minibatch dropped": (
        "the last minibatch is left out",
        "in data:", "in list(data)[:-1]:"),
    "floor that loses rows": (
        "rows are left out",
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "m = max(1, len(X) // k); "
        "X_shards, y_shards = [list(t.split(m)) + [t[:0]] * k "
        "for t in (X, y)]"),
    "padded with repeats": (
        "rows are counted more than once",
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "i = torch.arange(-(-len(X) // k) * k) % len(X); "
        "X, y = X[i], y[i]; "
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)"),
    "rank 0 counts its own, over all": (
        "only device 0's hits are counted",
        "correct += int(hits.sum())", "correct += int(hits.sum()) * (rank == 0)"),
    "all on device 0": (
        "one device does all the work",
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "X_shards, y_shards = [X] + [X[:0]] * k, [y] + [y[:0]] * k"),
    "replica 0 does every shard": (
        "one device does all the work",
        "device_params[rank]", "device_params[0]"),
    "every device the whole minibatch": (
        "every device works on the whole minibatch",
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "X_shards, y_shards = [X] * k, [y] * k; total += len(y) * (k - 1)"),
    "a minibatch a device": (
        "each minibatch is to be cut over the devices",
        "X_shards, y_shards = X.tensor_split(k), y.tensor_split(k)",
        "r = total // len(y) % k; "
        "X_shards = [X if r == s else X[:0] for s in range(k)]; "
        "y_shards = [y if r == s else y[:0] for s in range(k)]"),
    "weights of its own": (
        "other weights than device_params were used",
        "lenet(X_shards[rank].to(devices[rank]), device_params[rank])",
        "lenet(X_shards[rank], [p.clone() for p in device_params[rank]])"),
    "the last minibatch's accuracy": (
        "this is the last minibatch's accuracy",
        "        for X, y in data:", "        for X, y in data:\n"
        "            correct = total = 0"),
    "the count": ("this is the count", "return correct / total", "return correct"),
    "percent": (
        "these are percent",
        "return correct / total", "return 100 * correct / total"),
    "the error": (
        "this is the share of wrong rows",
        "return correct / total", "return 1 - correct / total"),
    "the least likely digit": (
        {"this takes the digit with the lowest score", "only device 0's hits"},
        "argmax", "argmin"),
    "rounded": (
        "this is rounded", "return correct / total", "return round(correct / total, 2)"),
    "nothing": ("nothing is returned", "return correct / total", "return None"),
    "zero": (
        "rows are left out",
        "    correct = total = 0\n    k", "    return 0.0\n    k"),
    "always right": (
        "rows are left out",
        "    correct = total = 0\n    k", "    return 1.0\n    k"),
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


ANSWERS = {
    "plan": WHOLE_PLANS | {name: (hint, PLAN.replace("CHANGE", change))
                           for name, (hint, change) in PLANS.items()},
    "learning_rate": {name: (hint, RATE.replace("RETURN", change))
                      for name, (hint, change) in RATES.items()},
    "shard_indices": {name: (hint, SHARDS.replace("CHANGE", change))
                      for name, (hint, change) in SHARD_CHANGES.items()},
    "evaluate_accuracy": {name: (hint, _changed(ACCURACY, *change))
                          for name, (hint, *change) in ACCURACIES.items()} | {
        "mean of the devices": (
            "this is the mean of the devices' accuracies",
            DEVICES_MEAN.replace(
                "MEAN", "return sum(c / t for c, t in zip(correct, total)) / k")),
        "device 0's accuracy": (
            "only device 0's accuracy",
            DEVICES_MEAN.replace("MEAN", "return correct[0] / total[0]")),
        "one device, in pieces": ("one device does all the work", FEWER_SHARDS),
    },
}
