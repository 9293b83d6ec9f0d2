"""Wrong answers to problem set 3: {exercise: (a right cell, its places, {hint: changes})}.

A wrong answer is a right one with other words in some places; its name is how the hint
begins that a learner must be told.
"""

OWN = "torch.randperm(n, generator=torch.Generator().manual_seed({})).tolist()"
SHARDS = ("X_shards, y_shards = [[t[r * m:(r + 1) * m] for r in range(k)] "
          "for t in (X, y)]")
MINE = "lenet(X_shards[r].to(devices[r]), device_params[r])"

WRONG = {
    "ps3/plan": ("""
import math
def plan(examples, batch_size, world_size, lr, keep):
    k, b, whole = world_size, batch_size, batch_size * world_size
    if keep == BATCH:
        size, whole = -(-b // k), b
        rows = CUT
        rate = SAME
    else:
        rows = [b] * k
        rate = SCALED
    return {"rows": rows, "batch_size": whole, "lr": rate, "steps": STEPS}
""", {"BATCH": '"batch"', "CUT": "[max(0, min(size, b - r * size)) for r in range(k)]",
      "SAME": "lr", "SCALED": "k * lr", "STEPS": "math.ceil(examples / whole)"}, {
        "batch_size // world_size loses rows": {"CUT": "[b // k] * k"},
        "keep='batch' shares batch_size out": {"BATCH": "keep"},
        "cut them as split": {"CUT": "[len(range(r, b, k)) for r in range(k)]"},
        "the minibatch is the one of a single device": {"SAME": "lr * k"},
        "one step takes the place": {"SCALED": "lr"},
        "the square root is a rule": {"SCALED": "lr * k ** 0.5"},
        "the minibatch is larger now": {"STEPS": "math.ceil(examples / b)"},
        "the last minibatch may be short": {"STEPS": "examples // whole"},
    }),
    "ps3/learning_rate": ("""
def learning_rate(step, base_lr, world_size, warmup_steps):
    b, k, w = base_lr, world_size, warmup_steps
    if OVER:
        return FULL
    return WARM
""", {"OVER": "step >= w", "FULL": "k * b", "WARM": "b + (k - 1) * b * step / w"}, {
        "step 0 takes base_lr": {"WARM": "k * b * step / w"},
        "this is one step ahead": {"WARM": "b + (k - 1) * b * (step + 1) / w"},
        "there is no warm-up": {"OVER": "True"},
        "it goes on growing": {"OVER": "w == 0"},
    }),
    "ps3/shard_indices": ("""
import os, random
cache = {}
def shard_indices(n, world_size, rank, seed, epoch):
    order = ORDER
    AFTER
    return DEAL
""", {"ORDER": OWN.format("seed + epoch"), "AFTER": "pass",
      "DEAL": "order[rank::world_size]"}, {
        "rows are repeated so that all ranks": {
            "AFTER": "order = (order * world_size)[:-(-n // world_size) * world_size]"},
        "n // world_size": {"AFTER": "order = order[:n // world_size * world_size]"},
        "sizes may differ by one": {
            "AFTER": "m = -(-n // world_size)", "DEAL": "order[rank * m:(rank + 1) * m]"},
        "ranks shuffle differently": {"ORDER": OWN.format("seed + epoch + rank")},
        "the rows are in order": {"DEAL": "sorted(order[rank::world_size])"},
        "the seed is not used": {"ORDER": OWN.format("epoch")},
        "seed * epoch is 0": {"ORDER": OWN.format("seed * epoch")},
        "hash() of a text": {
            "ORDER": "random.Random(hash(f'{seed}-{epoch}')).sample(range(n), n)"},
        "epoch is not used": {"ORDER": OWN.format("seed")},
        "the old order is turned or moved": {
            "ORDER": OWN.format("seed"),
            "AFTER": "order = order[epoch % n:] + order[:epoch % n]"},
        "rows stay together": {
            "ORDER": "list(range(rank, n, world_size))",
            "AFTER": "random.Random(seed + epoch).shuffle(order)", "DEAL": "order"},
        "torch.manual_seed, random.seed": {
            "ORDER": "torch.manual_seed(seed + epoch) and torch.randperm(n).tolist()"},
    }),
    "ps3/evaluate_accuracy": ("""
@torch.no_grad()
def evaluate_accuracy(device_params, data, devices):
    correct = total = 0
    k = len(devices)
    for X, y in data:
        m = -(-len(X) // k)
        CUT
        for r in range(k):
            hits = FORWARD.argmax(dim=1) == y_shards[r].to(devices[r])
            COUNT
        total += ROWS
    return correct / total
""", {"CUT": SHARDS, "FORWARD": MINE, "COUNT": "correct += int(hits.sum())",
      "ROWS": "len(y)"}, {
        "the accuracy of no rows is 0 / 0": {
            "COUNT": "correct += float(hits.double().mean())", "ROWS": "k"},
        "rows are counted more than once": {
            "CUT": "i = torch.arange(m * k) % len(X); " + SHARDS.replace(
                "t[r * m:(r + 1) * m]", "t[i][r * m:(r + 1) * m]"), "ROWS": "m * k"},
        "rows are left out": {"CUT": "m = max(1, len(X) // k); " + SHARDS},
        "this is a mean of accuracies": {
            "COUNT": "correct += int(hits.sum()) / len(y)", "ROWS": "1"},
        "other weights": {
            "FORWARD": "lenet(X_shards[r], [p.clone() for p in device_params[r]])"},
        "every device works on the whole minibatch": {
            "CUT": "X_shards, y_shards = [X] * k, [y] * k", "ROWS": "len(y) * k"},
        "each minibatch is to be cut": {
            "CUT": "s = total // len(y) % k; X_shards, y_shards = [[t if r == s else t[:0] "
                   "for r in range(k)] for t in (X, y)]"},
        "move each shard to its replica's device": {
            "FORWARD": "lenet(X_shards[r], device_params[r])"},
    }),
}
