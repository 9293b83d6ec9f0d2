"""Wrong answers to problem set 3: {exercise: (cell, {hint: changes})}."""

SHARDS = (
    "X_shards, y_shards = [[t[r * m:(r + 1) * m] for r in range(k)] for t in (X, y)]"
)

WRONG = {
    "ps3/plan": (
        """
import math
def plan(examples, batch_size, world_size, lr, keep):
    k, b, whole = world_size, batch_size, batch_size * world_size
    if keep == <<BATCH: "batch">>:
        size, whole = -(-b // k), b
        rows = <<CUT: [max(0, min(size, b - r * size)) for r in range(k)]>>
        rate = <<SAME: lr>>
    else:
        rows = [b] * k
        rate = <<SCALED: k * lr>>
    return {"rows": rows, "batch_size": whole, "lr": rate,
            "steps": <<STEPS: math.ceil(examples / whole)>>}
""",
        {
            "batch_size // world_size loses rows": {"CUT": "[b // k] * k"},
            "keep='batch' shares batch_size out": {"BATCH": "keep"},
            "cut them as split": {"CUT": "[len(range(r, b, k)) for r in range(k)]"},
            "the minibatch is the one of a single device": {"SAME": "lr * k"},
            "one step takes the place": {"SCALED": "lr"},
            "the square root is a rule": {"SCALED": "lr * k ** 0.5"},
            "the minibatch is larger now": {"STEPS": "math.ceil(examples / b)"},
            "the last minibatch may be short": {"STEPS": "examples // whole"},
        },
    ),
    "ps3/learning_rate": (
        """
def learning_rate(step, base_lr, world_size, warmup_steps):
    b, k, w = base_lr, world_size, warmup_steps
    if <<OVER: step >= w>>:
        return k * b
    return <<WARM: b + (k - 1) * b * step / w>>
""",
        {
            "step 0 takes base_lr": {"WARM": "k * b * step / w"},
            "this is one step ahead": {"WARM": "b + (k - 1) * b * (step + 1) / w"},
            "there is no warm-up": {"OVER": "True"},
            "it goes on growing": {"OVER": "w == 0"},
        },
    ),
    "ps3/shard_indices": (
        """
import random
def shard_indices(n, world_size, rank, seed, epoch):
    generator = torch.Generator().manual_seed(<<SEED: seed + epoch>>)
    order = <<ORDER: torch.randperm(n, generator=generator).tolist()>>
    <<AFTER: pass>>
    return <<DEAL: order[rank::world_size]>>
""",
        {
            "rows are repeated so that all ranks": {
                "AFTER": "order = (order * world_size)[:-(-n // world_size) * world_size]"
            },
            "n // world_size": {
                "AFTER": "order = order[:n // world_size * world_size]"
            },
            "sizes may differ by one": {
                "AFTER": "m = -(-n // world_size)",
                "DEAL": "order[rank * m:(rank + 1) * m]",
            },
            "ranks shuffle differently": {"SEED": "seed + epoch + rank"},
            "the rows are in order": {"DEAL": "sorted(order[rank::world_size])"},
            "the seed is not used": {"SEED": "epoch"},
            "seed * epoch is 0": {"SEED": "seed * epoch"},
            "epoch is not used": {"SEED": "seed"},
            "rows stay together": {
                "ORDER": "list(range(rank, n, world_size))",
                "AFTER": "random.Random(seed + epoch).shuffle(order)",
                "DEAL": "order",
            },
            "torch.manual_seed, random.seed": {
                "ORDER": "torch.manual_seed(seed + epoch) and torch.randperm(n).tolist()"
            },
        },
    ),
    "ps3/evaluate_accuracy": (
        """
@torch.no_grad()
def evaluate_accuracy(device_params, data, devices):
    correct = total = 0
    k = len(devices)
    for X, y in data:
        m = -(-len(X) // k)
        <<CUT: X_shards, y_shards = [[t[r * m:(r + 1) * m] for r in range(k)] for t in (X, y)]>>
        for r in range(k):
            scores = <<FORWARD: lenet(X_shards[r].to(devices[r]), device_params[r])>>
            hits = scores.argmax(dim=1) == y_shards[r].to(devices[r])
            <<COUNT: correct += int(hits.sum())>>
        total += <<ROWS: len(y)>>
    return correct / total
""",
        {
            "the accuracy of no rows": {
                "COUNT": "correct += float(hits.double().mean())",
                "ROWS": "k",
            },
            "rows are counted more than once": {
                "CUT": "i = torch.arange(m * k) % len(X); "
                + SHARDS.replace("t[r * m:(r + 1) * m]", "t[i][r * m:(r + 1) * m]"),
                "ROWS": "m * k",
            },
            "rows are left out": {"CUT": "m = max(1, len(X) // k); " + SHARDS},
            "this is a mean of accuracies": {
                "COUNT": "correct += int(hits.sum()) / len(y)",
                "ROWS": "1",
            },
            "other weights": {
                "FORWARD": "lenet(X_shards[r], [p.clone() for p in device_params[r]])"
            },
            "every device works on the whole minibatch": {
                "CUT": "X_shards, y_shards = [X] * k, [y] * k",
                "ROWS": "len(y) * k",
            },
            "each minibatch is to be cut": {
                "CUT": "s = total // len(y) % k; X_shards, y_shards = [[t if r == s else t[:0] "
                "for r in range(k)] for t in (X, y)]"
            },
            "move each shard to its replica's device": {
                "FORWARD": "lenet(X_shards[r], device_params[r])"
            },
        },
    ),
}
