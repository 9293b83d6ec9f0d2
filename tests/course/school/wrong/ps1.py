"""Wrong answers to problem set 1: {exercise: (cell, places, {hint: changes})}."""

WRONG = {
    "ps1/get_params": ("""
copies = {}
def get_params(params, device):
    BEFORE
    return AFTER
""", {"BEFORE": "new = [p.detach().to(device, copy=True) for p in params]",
      "AFTER": "[p.requires_grad_() for p in new]"}, {
        "a replica is the parameter itself": {"BEFORE": "new = [p.detach() for p in params]"},
        "a copy hangs on the graph": {
            "BEFORE": "new = [p.clone().to(device) for p in params]"},
        "requires_grad_() is missing": {"AFTER": "new"},
        "replicas share memory": {
            "AFTER": "copies.setdefault(id(params), [p.requires_grad_() for p in new])"},
        "a replica starts from": {"BEFORE": "new = [torch.randn_like(p) for p in params]"},
        "the numbers are right, their shapes": {
            "BEFORE": "new = [p.detach().flatten().clone() for p in params]"},
        "rounded to float32": {
            "BEFORE": "new = [p.detach().float().to(device, copy=True) for p in params]"},
        "a replica begins without a gradient": {
            "AFTER": "[p.requires_grad_().mul_(1) if p.sum().backward() else p for p in "
                     "[p.requires_grad_() for p in new]]"},
        "requires_grad_() was called on the parameters": {
            "AFTER": "[p.requires_grad_() for p in new] + [p.requires_grad_() for p in "
                     "params][:0]"},
        "leave the parameters' own gradients": {
            "AFTER": "[p.requires_grad_() for p in new if p.grad is None] + "
                     "[p.zero_grad for p in params if setattr(p, 'grad', None)]"},
        "the parameters were given other memory": {
            "AFTER": "[p.requires_grad_() for p in new] + [p for p in params if "
                     "setattr(p, 'data', p.data.clone())]"},
        "move each tensor to the device": {
            "BEFORE": "new = [p.detach().clone() for p in params]"},
        "gradients are switched off": {
            "AFTER": "[p.requires_grad_() for p in new if not torch.set_grad_enabled(False)]"},
    }),
    "ps1/split_batch": ("""
def split_batch(X, y, devices):
    if TEST:
        raise ValueError("lengths")
    n, k = len(X), len(devices)
    rows = -(-n // k)
    i = [torch.arange(n)[r * rows:(r + 1) * rows] for r in range(k)]
    BEFORE
    return [X[at].to(d) for at, d in zip(i, devices)], LABELS
""", {"TEST": "len(X) != len(y)", "BEFORE": "pass",
      "LABELS": "[y[at].to(d) for at, d in zip(i, devices)]"}, {
        "torch's chunk returns fewer": {"BEFORE": "i = torch.arange(n).chunk(k)"},
        "shards are of ceil": {"BEFORE": "i = torch.arange(n).tensor_split(k)"},
        "rows are lost or repeated": {"BEFORE": "i = [at[:n // k] for at in i]"},
        "cut y where X is cut": {"LABELS": "[y.flip(0)[at] for at in i]"},
        "an assert raises": {"TEST": "[0 for _ in 'a' if not exec('assert len(X) == len(y)', "
                             "{'X': X, 'y': y})] == []"},
        "compare len(X) with len(y)": {"TEST": "len(X) > len(y)"},
        "a shard is a tensor": {"LABELS": "[y[at].tolist() for at in i]"},
        "a shard keeps its dtype": {"LABELS": "[y[at].float() for at in i]"},
        "an empty shard keeps": {
            "BEFORE": "return [X[at] if len(at) else torch.zeros(0, dtype=X.dtype) "
                      "for at in i], [y[at] for at in i]"},
        "move each tensor to the device": {"BEFORE": "devices = ['cpu'] * k"},
    }),
    "ps1/allreduce": ("""
def allreduce(data):
    total = SUM
    for i, t in enumerate(data):
        WRITE
    return RESULT
""", {"SUM": "sum(data)", "WRITE": "t.copy_(total)", "RESULT": "None"}, {
        "the tensors hold what they held": {"WRITE": "t = total"},
        "the list holds the sums": {"WRITE": "data[i] = total"},
        "the result is returned": {"WRITE": "pass", "RESULT": "[total] * len(data)"},
        "only rank 0 has the sum": {"WRITE": "t.copy_(total if i == 0 else t)"},
        "this is the mean": {"SUM": "sum(data) / len(data)"},
        "the tensor on rank 0 holds rank 0's + rank 1's; every": {"SUM": "sum(data[:2])"},
        "the tensor on rank 0 holds zeros": {"SUM": "0 * data[0]"},
        "the tensor on rank 1 holds rank 0's + rank 1's twice + rank 2's twice": {
            "WRITE": "t.copy_(sum(data))"},
        "its memory is as it was": {"WRITE": "t.data = total.clone()"},
        "these agree to five digits": {"SUM": "sum(data).float()"},
    }),
    "ps1/sgd": ("""
@torch.no_grad()
def sgd(params, lr, batch_size):
    for i, p in enumerate(params):
        BEFORE
        STEP
        p.grad.zero_()
        AFTER
""", {"BEFORE": "pass", "STEP": "p -= RATE * p.grad", "AFTER": "pass",
      "RATE": "lr / batch_size"}, {
        "the gradient is a sum": {"RATE": "lr"},
        "this walks uphill": {"RATE": "-lr / batch_size"},
        "divide by batch_size, not": {"RATE": "lr / len(params)"},
        "// rounds down": {"RATE": "(lr // batch_size)"},
        "the parameters have not moved": {"STEP": "p = p - RATE * p.grad; p.grad = 0 * p"},
        "the gradients were zeroed before": {"BEFORE": "p.grad.zero_()"},
        "some parameters have not moved": {"RATE": "lr / batch_size * (i > 0)"},
        "only the sign": {"RATE": "lr / batch_size / p.grad.abs()"},
        "gradients must be zeroed": {"AFTER": "p.grad += 1"},
        "its memory is as it was": {"STEP": "p.data = p - RATE * p.grad"},
        "requires_grad_(False) stays": {"AFTER": "p.requires_grad_(False)"},
    }),
    "ps1/train_batch": ("""
def train_batch(X, y, device_params, devices, lr):
    k = len(devices)
    BEFORE
    X_shards, y_shards = split_batch(X, y, devices)
    losses = [loss(lenet(X_shard, params), y_shard)REDUCE
              for X_shard, y_shard, params in zip(X_shards, y_shards, WHOSE)]
    for l in losses:
        l.backward()
    GATHER
    STEP
    return RESULT
""", {"BEFORE": "pass", "REDUCE": ".sum()", "WHOSE": "device_params",
      "GATHER": "[allreduce([q[i].grad for q in device_params]) for i in range(8)]",
      "STEP": "[sgd(q, lr, len(X)) for q in device_params]",
      "RESULT": "sum(l.item() for l in losses) / len(X)"}, {
        "replicas differ": {"GATHER": "pass"},
        "every shard counts alike": {"REDUCE": ".sum() / max(1, len(y_shard))",
                                     "STEP": "[sgd(q, lr, k) for q in device_params]"},
        "the step is 7 times too large": {"STEP": "[sgd(q, lr, 1) for q in device_params]"},
        "the step is 3 times too large": {"BEFORE": "lr *= k"},
        "the step is 3 times too small": {"BEFORE": "lr /= k"},
        "the sum was divided by 9": {
            "STEP": "[sgd(q, lr, k * len(X_shards[0])) for q in device_params]"},
        "nothing has moved": {"BEFORE": "lr = 0"},
        "gradients were summed over the devices once": {
            "GATHER": "[allreduce([q[i].grad for q in device_params]) for i in range(8) "
                      "for _ in losses]"},
        "the first step is right": {
            "GATHER": "[allreduce([q[i].grad for q in device_params]) for i in range(8)]; "
                      "now = [[p.grad.clone() for p in q] for q in device_params]",
            "STEP": "[sgd(q, lr, len(X)) for q in device_params]; [p.grad.copy_(g) for q, n "
                    "in zip(device_params, now) for p, g in zip(q, n)]"},
        "this is the sum": {"RESULT": "sum(losses)"},
        "this is a mean of the shards' means": {
            "RESULT": "sum(l / max(1, len(s)) for l, s in zip(losses, X_shards)) / k"},
        "this is the loss after the step": {
            "RESULT": "loss(lenet(X, device_params[0]), y).mean()"},
        "this is one shard's part": {"RESULT": "losses[-1] / len(X)"},
        "every replica works on its own": {"WHOSE": "device_params[::-1]"},
        "other weights than device_params": {
            "BEFORE": "own = [[p.detach().clone().requires_grad_() for p in q] for q in "
                      "device_params]", "WHOSE": "own",
            "GATHER": "[allreduce([q[i].grad for q in own]) for i in range(8)]",
            "STEP": "[setattr(p, 'grad', g.grad) for q, c in zip(device_params, own) for "
                    "p, g in zip(q, c)]; [sgd(q, lr, len(X)) for q in device_params]"},
        "move each shard to its replica's device": {
            "BEFORE": "devices = ['cpu'] * k"},
        "gradients are switched off": {"STEP": "[sgd(q, lr, len(X)) for q in device_params]; "
                                       "torch.set_grad_enabled(False)"},
    }),
    "one_step/train_batch": ("""
def train_batch(X, y, device_params, devices, lr):
    BEFORE
    X_shards, y_shards = split_batch(X, y, devices)
    losses = [loss(lenet(X_shard, params), y_shard).sum()
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    for l in losses:
        l.backward()
    for i in range(8):
        allreduce([params[i].grad for params in device_params])
    for params in device_params:
        sgd(params, lr, len(X))
    return sum(l.item() for l in losses) / len(X)
""", {"BEFORE": "[setattr(p, 'grad', None) for params in device_params for p in params]"}, {
        "the gradients held numbers before the step": {"BEFORE": "pass"},
    }),
}
