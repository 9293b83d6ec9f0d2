"""Wrong answers to problem set 1, and to lessons: {exercise: (cell, {hint: changes})}."""

TRAIN = """
    k = len(devices)
    [setattr(p, "grad", <<OLD: None>>) for q in device_params for p in q]
    <<BEFORE: pass>>
    X_shards, y_shards = split_batch(X, y, devices)
    w_shards, _ = split_batch(weights, y, devices)
    losses = [(<<WEIGHT: w>> * loss(lenet(A, q), b)).sum() for A, b, w, q in zip(
        X_shards, y_shards, w_shards, <<WHOSE: device_params>>)]
    for l in losses:
        l.backward()
        <<EACH: pass>>
    for i in <<SUMMED: range(8)>>:
        allreduce([q[i].grad for q in WHOSE])
    for q, own in zip(device_params, w_shards):
        <<STEP: sgd(q, lr, <<WHOLE: float(weights.sum())>>)>>
    return <<RESULT: sum(l.item() for l in losses) / weights.sum()>>
"""
WRONG = {
    "replicas/get_params": (
        """
def get_params(params, device):
    <<BEFORE: new = [p.detach().to(device, copy=True) for p in params]>>
    return <<AFTER: [p.requires_grad_() for p in new]>>
""",
        {
            "requires_grad_() is missing": {"AFTER": "new"},
            "a gradient came along": {
                "AFTER": "[setattr(p, 'grad', p * 0) or p.requires_grad_() for p in new]"
            },
            "leave the parameters as they are": {
                "AFTER": "[p.requires_grad_() for p in new + list(params)][:len(new)]"
            },
            "move each tensor to the device": {
                "BEFORE": "new = [p.detach().clone() for p in params]"
            },
            "a replica keeps the shape": {
                "BEFORE": "new = [p.detach().to(device, copy=True).double() for p in params]"
            },
            "a replica keeps the shape and": {
                "BEFORE": "new = [p.detach().clone().flatten() for p in params]"
            },
            "copy to the device first": {
                "BEFORE": "new = [p.detach().clone() for p in params]",
                "AFTER": "[p.requires_grad_().to(device) for p in new]",
            },
        },
    ),
    "split_the_batch/split_batch": (
        """
def split_batch(X, y, devices):
    if <<TEST: len(X) != len(y)>>:
        raise ValueError("lengths")
    n, k = len(X), len(devices)
    rows = <<ROUNDED: -(-n // k)>>
    i = [torch.arange(n)[r * rows:(r + 1) * rows] for r in range(k)]
    <<BEFORE: pass>>
    return [X[at].to(d) for at, d in zip(i, devices)], (
        <<LABELS: [y[at].to(d) for at, d in zip(i, devices)]>>)
""",
        {
            "torch's chunk returns fewer": {"BEFORE": "i = torch.arange(n).chunk(k)"},
            "shards are of ceil": {"BEFORE": "i = torch.arange(n).tensor_split(k)"},
            "rows are left out": {"ROUNDED": "n // k"},
            "cut y where X is cut": {"LABELS": "[y.flip(0)[at] for at in i]"},
            "these are pairs": {
                "BEFORE": "return [(X[at].to(d), y[at].to(d)) for at, d in zip(i, devices)]"
            },
            "compare len(X) with len(y)": {"TEST": "len(X) > len(y)"},
            "a shard keeps its dtype": {"LABELS": "[y[at].float() for at in i]"},
            "move each tensor to the device": {"LABELS": "[y[at] for at in i]"},
        },
    ),
    "ps1/largest_difference": (
        """
from itertools import combinations
def largest_difference(device_params):
    first = device_params[0]
    found = [<<ABS: abs>>(q - p).max().item()
             for one, other in <<PAIRS: combinations(device_params, 2)>>
             for p, q in zip(one[:<<COUNT: None>>], other[:COUNT])]
    <<AFTER: pass>>
    return max(found, default=0.0)
""",
        {
            "a difference may be below 0": {
                "PAIRS": "[(first, other) for other in device_params]",
                "ABS": "",
            },
            "compare every two replicas, not only each with": {
                "PAIRS": "[(first, other) for other in device_params]"
            },
            "compare every two replicas, not only neighbours": {
                "PAIRS": "zip(device_params, device_params[1:])"
            },
            "this has to stay as it is": {
                "AFTER": "[p.data.sub_(q) for own in device_params[1:] "
                "for p, q in zip(own, first)]"
            },
            "requires_grad was switched": {
                "AFTER": "[p.requires_grad_(False) for own in device_params for p in own]"
            },
            "look at every parameter": {"COUNT": "1"},
            "the number is right, and still": {
                "AFTER": "return torch.tensor(max(found, default=0.0), "
                "dtype=torch.float64)"
            },
            "a difference may be below 0: take": {"ABS": ""},
            "no number of a replica is that far": {"ABS": "torch.norm"},
            "take the largest over the parameters, not their sum": {
                "AFTER": "n = len(first); return max([sum(found[i:i + n]) "
                "for i in range(0, len(found), n)], default=0.0)"
            },
        },
    ),
    "ps1/split_by_counts": (
        """
def split_by_counts(batch, counts):
    shards = []
    for rank, count in enumerate(counts):
        begin = <<BEGIN: sum(counts[:rank])>>
        shards.append({name: t[begin:begin + count] * <<ONE: 1>> for name, t in batch.items()})
        <<AFTER: pass>>
    return <<RESULT: shards>>
""",
        {
            "a rank begins where": {"BEGIN": "rank * count"},
            "a rank whose count is 0": {
                "RESULT": "[s for s, n in zip(shards, counts) if n]"
            },
            "each rank has as many rows": {
                "RESULT": "[{name: t.flip(0) for name, t in one.items()} for one in shards]"
            },
            "keep dtypes": {"ONE": "1.0"},
            "this has to stay as it is": {
                "AFTER": "batch['weight'] = 2 * batch['weight']"
            },
            "these agree to five digits": {
                "RESULT": "[{name: t.float() for name, t in shard.items()} for shard in shards]"
            },
        },
    ),
    "allreduce/allreduce": (
        """
def allreduce(data):
    total = <<SUM: sum(data)>>
    for i, t in enumerate(data):
        <<WRITE: t.copy_(total)>>
    return <<RESULT: None>>
""",
        {
            "the list holds the sums": {"WRITE": "data[i] = total"},
            "the result is returned": {
                "WRITE": "pass",
                "RESULT": "[total] * len(data)",
            },
            "the tensors hold what they held": {"WRITE": "t = total"},
            "only rank 0 has the sum": {"WRITE": "data[0].copy_(total)"},
            "this is the mean": {"SUM": "sum(data) / len(data)"},
            "its memory is as it was": {"WRITE": "t.data = total.clone()"},
            "the tensor on rank 0 holds zeros": {"WRITE": "t.zero_()"},
        },
    ),
    "ps1/weighted_allreduce": (
        """
def weighted_allreduce(data, weights):
    mean = sum(<<TERM: w * t>> for w, t in zip(weights, data)
               if <<KEEP: w>>) / <<WHOLE: sum(weights)>>
    <<MEAN: pass>>
    for w, t in zip(weights, data):
        <<WRITE: t.copy_(mean)>>
    <<AFTER: pass>>
""",
        {
            "a rank of weight 0 gets the result": {
                "WRITE": "t.copy_(mean if w else t)"
            },
            "the tensors hold what they held": {"WRITE": "t = mean"},
            "0 times nan is nan": {"KEEP": "True"},
            "the weights are left out": {"TERM": "t", "WHOLE": "len(data)"},
            "divide by the sum of the weights": {"WHOLE": "1"},
            "divide once, when": {
                "MEAN": "mean = 0\n    for w, t in zip(weights, data):\n"
                "        if w: mean = (mean + w * t) / sum(weights)"
            },
            "divide by the sum of the weights, not by the ranks": {
                "WHOLE": "len(data)"
            },
            "this has to stay as it is": {"AFTER": "weights.clear()"},
        },
    ),
    "ps1/clipped_sgd": (
        """
@torch.no_grad()
def clipped_sgd(params, lr, batch_size, max_norm):
    norm = <<NORM: torch.cat([p.grad.flatten() for p in params]).norm()>>
    norm /= <<SIZE: batch_size>>
    for p in params:
        <<BEFORE: pass>>
        <<STEP: p -= lr / batch_size * <<FACTOR: min(1, max_norm / norm)>> * p.grad>>
        <<AFTER: p.grad.zero_()>>
    return <<RESULT: norm>>
""",
        {
            "the parameters have not moved": {
                "STEP": "p.add(p.grad, alpha=-lr / batch_size)"
            },
            "the parameters have not moved: p = p": {"BEFORE": "p.grad.zero_()"},
            "gradients must be zeroed": {"AFTER": "p.grad += 1"},
            "requires_grad_(False) stays": {
                "AFTER": "p.grad.zero_(); p.requires_grad_(False)"
            },
            "divide by batch_size before": {"SIZE": "1"},
            "there is one norm": {
                "FACTOR": "min(1, max_norm / p.grad.norm() * batch_size)"
            },
            "a gradient that is short": {"FACTOR": "max_norm / norm"},
            "nothing was shortened": {"FACTOR": "1"},
            "the step goes in another direction": {"STEP": "p -= lr * p.grad.sign()"},
            "return the norm from before": {"RESULT": "min(norm, max_norm)"},
            "the norm of all is no sum of norms": {
                "NORM": "sum(p.grad.norm() for p in params)"
            },
            "there is one norm, of all gradients together, not the largest of them": {
                "NORM": "max(p.grad.norm() for p in params)"
            },
        },
    ),
    "one_step/train_batch": (
        """
def train_batch(X, y, device_params, devices, lr):
    weights = torch.ones(len(X), dtype=X.dtype)"""
        + TRAIN,
        {
            "replicas differ": {"SUMMED": "[]"},
            "each rank divides by the rows of its own shard": {
                "WHOLE": "max(1, len(own))"
            },
            "the means of the ranks are added up": {
                "WEIGHT": "w / max(len(w), 1)",
                "WHOLE": "1",
            },
            "the all-reduce ran after each rank's backward": {
                "BEFORE": "grads = [pack_grads(q) for q in device_params]",
                "EACH": "allreduce(grads)",
                "SUMMED": "[]",
            },
            "the step is 7 times too large": {"WHOLE": "1"},
            "the sum is divided by the ranks, too": {"WHOLE": "len(X) * k"},
            "divide by the rows of the minibatch, or by the sum of their weights, not "
            "by the mean": {"WHOLE": "len(X) / k"},
            "the weights are as they were": {
                "STEP": "pack_grads(q); sgd(q, lr, len(X))"
            },
            "each rank takes the mean": {"WEIGHT": "w / max(len(w), 1)"},
            "the gradients held numbers before": {"OLD": "p.grad"},
            "this is the sum; divide": {"RESULT": "sum(losses)"},
            "this is the sum, divided by the ranks": {"RESULT": "sum(losses) / k"},
            "this is the loss of one shard": {"RESULT": "l.item() / len(X)"},
            "this is a mean of means": {
                "RESULT": "sum(l.item() / len(b) for l, b in zip(losses, y_shards)) / k"
            },
            "every replica works on its own": {"WHOSE": "device_params[::-1]"},
            "move each shard to its replica's device": {
                "BEFORE": "devices = ['cpu'] * k"
            },
        },
    ),
    "one_step/stepwise": (
        """
def stepwise(X, y, params, devices, lr, steps, step):
    replicas = [get_params(params, device) for device in devices]
    found = []
    <<RUNS: pass>>
    for _ in range(<<STEPS: steps>>):
        single = <<START: get_params(replicas[0], devices[0])>>
        <<EARLY: pass>>
        <<ALONE: train_batch>>(X, y, [single], devices[:1], lr)
        <<STEP: step(X, y, replicas, devices, lr)>>
        <<KEEP: pass>>
        found += [largest_difference(replica, single) for replica in <<WHICH: replicas>>]
    return <<RESULT: float(torch.tensor(found).max())>>
""",
        {
            "return one number": {"RESULT": "found"},
            "`step` was right, so": {
                "EARLY": "step(X, y, replicas, devices, lr); "
                "single = get_params(replicas[0], 'cpu')",
                "STEP": "pass",
            },
            "no difference was seen": {"RESULT": "0.0"},
            "the single device takes": {"ALONE": "step"},
            "the replicas go on from where": {
                "STEP": "replicas = [get_params(params, device) for device in devices]; "
                "single = get_params(params, devices[0]); "
                "train_batch(X, y, [single], devices[:1], lr); "
                "step(X, y, replicas, devices, lr)"
            },
            "this has to stay as it is": {"RUNS": "params[0] += 1"},
            "requires_grad was switched": {
                "RUNS": "[p.requires_grad_() for p in params]"
            },
            "these are two runs": {
                "RUNS": "alone = get_params(params, devices[0])",
                "START": "alone",
            },
            "this is the last step's": {"KEEP": "found = []"},
            "this is None": {"RESULT": "None"},
            "the last step is missing": {"STEPS": "steps - 1"},
            "this is the sum over steps": {
                "RESULT": "sum(max(found[i:i + 3]) for i in range(0, len(found), 3))"
            },
            "`step` was right, so the single": {
                "ALONE": "(lambda *a: train_batch(*a[:4], lr / 2))"
            },
            "call `step` once": {"STEPS": "steps + 1"},
            "call `step` once in each": {"STEPS": "1"},
            "the replicas go on": {
                "KEEP": "[p.data.copy_(s) for q in replicas for p, s in zip(q, single)]"
            },
            "look at every parameter": {
                "RESULT": "first",
                "RUNS": "first = 0",
                "KEEP": "first = max(first, *(float((q[0] - single[0]).abs().max()) "
                "for q in replicas))",
            },
            "take the largest of the differences": {
                "RESULT": "total",
                "RUNS": "total = 0",
                "KEEP": "total += sum(float((p - s).abs().sum()) "
                "for p, s in zip(replicas[0], single))",
            },
            "a difference may be below 0": {
                "RESULT": "most",
                "RUNS": "most = 0",
                "KEEP": "most = max(most, *(float((p - s).max()) "
                "for q in replicas for p, s in zip(q, single)))",
            },
            "a difference that is NaN got lost": {
                "RESULT": "most",
                "RUNS": "most = 0.0",
                "KEEP": "most = max(most, *(largest_difference(q, single) "
                "for q in replicas))",
            },
            "look at every replica": {"WHICH": "replicas[:1]"},
            "look at every replica, after every step": {"WHICH": "replicas[1:]"},
        },
    ),
    "ps1/weighted_train_batch": (
        """
def weighted_train_batch(X, y, weights, device_params, devices, lr):
    pass"""
        + TRAIN,
        {
            "the weights of the rows are left out": {"WEIGHT": "1", "WHOLE": "len(X)"},
            "the weights tell only which rows count": {
                "WEIGHT": "(w > 0)",
                "WHOLE": "int((weights > 0).sum())",
            },
            "these are nan": {"WEIGHT": "w / w.sum()", "WHOLE": "k"},
            "divide by the sum of the weights, not": {"WHOLE": "len(X)"},
            "the gradients of step 1 were still there": {
                "OLD": "p.grad",
                "STEP": "[p.data.sub_(lr * p.grad / weights.sum()) for p in q]",
            },
            "the gradients of step 1 were still there, and": {
                "OLD": "p.grad",
                "WEIGHT": "w / weights.sum()",
                "STEP": "[p.data.sub_(lr * p.grad) for p in q]",
                "RESULT": "sum(l.item() for l in losses)",
            },
            "this is the loss of one shard: add": {
                "RESULT": "l.item() / weights.sum()"
            },
            "this has to stay as it is": {"BEFORE": "weights[-1] = 1"},
            "divide by the rows of the minibatch, or": {
                "WHOLE": "k * len(X_shards[0])"
            },
            "every shard counts alike": {
                "WEIGHT": "w / w.sum().clamp(min=1e-9)",
                "WHOLE": "k",
            },
        },
    ),
}
