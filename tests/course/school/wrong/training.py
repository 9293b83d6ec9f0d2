"""Wrong answers to the exercises of lessons in training.py."""

SHARDS = (
    "X_shards, y_shards = [[t[r * m:(r + 1) * m] for r in range(k)] for t in (X, y)]"
)

WRONG = {
    "train/learning_rate": (
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
            "this is one step ahead: the full rate": {"WARM": "k * b * (step + 1) / w"},
            "this is one step late": {"WARM": "b + (k - 1) * b * max(0, step - 1) / w"},
            "the full rate comes a step too early": {
                "OVER": "step >= max(1, w - 1) or not w",
                "WARM": "b + (k - 1) * b * step / max(1, w - 1)",
            },
            "this multiplies by the same factor": {"WARM": "b * k ** (step / w)"},
            "there is no warm-up": {"OVER": "True"},
            "it goes on growing": {"OVER": "w == 0"},
            "with warmup_steps=0": {
                "OVER": "step > 0 and step >= w",
                "WARM": "b + (k - 1) * b * step / max(w, 1)",
            },
            "step 0 is right": {"WARM": "b"},
        },
    ),
    "train/evaluate_accuracy": (
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
            "this is a mean of accuracies: rows": {
                "COUNT": "correct += float(hits.double().mean()) if len(hits) else 0",
                "ROWS": "sum(len(shard) > 0 for shard in X_shards)",
            },
            "this is a mean of accuracies: rows of small parts": {
                "COUNT": "correct += (float(hits.double().mean()) if len(hits) else 0) "
                "/ sum(len(shard) > 0 for shard in X_shards)",
                "ROWS": "1",
            },
            "the right rows are divided by": {"ROWS": "len(y) - total"},
            "requires_grad was switched": {
                "CUT": "[p.requires_grad_(False) for params in device_params for p in "
                "params]; " + SHARDS
            },
            "this has to stay": {
                "COUNT": "correct += int((y_shards[r].sub_(scores.argmax(1)) == 0).sum())"
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
