"""Wrong answers to problem set 1: {exercise: {mistake: (hint, cell)}}."""

from tests.support.wrong import apart

ANSWERS = {
    "get_params": {
        "to without a copy": ("a replica is the parameter itself", """
def get_params(params, device):
    return [p.to(device).requires_grad_() for p in params]
"""),
        "detached but on the same memory": ("a replica is the parameter itself", """
def get_params(params, device):
    return [p.detach().to(device).requires_grad_() for p in params]
"""),
        "a clone that hangs on the graph": (
            "a copy hangs on the graph of what it was copied from",
            """
def get_params(params, device):
    return [p.clone().to(device).requires_grad_() for p in params]
"""),
        "wants no gradient": ("requires_grad_() is missing", """
def get_params(params, device):
    return [p.detach().clone().to(device) for p in params]
"""),
        "one copy for all devices": ("replicas share memory", """
copies = {}
def get_params(params, device):
    if id(params) not in copies:
        copies[id(params)] = [p.detach().clone().requires_grad_() for p in params]
    return copies[id(params)]
"""),
        "numbers of its own": ("a replica starts from the parameters' own numbers", """
def get_params(params, device):
    return [torch.randn_like(p).requires_grad_() for p in params]
"""),
        "without their shapes": ("the numbers are right, their shapes are not", """
def get_params(params, device):
    return [p.detach().flatten().clone().to(device).requires_grad_() for p in params]
"""),
        "rounded to float32": ("rounded to float32", """
def get_params(params, device):
    return [p.detach().to(device, torch.float32, copy=True).requires_grad_()
            for p in params]
"""),
        "takes the gradient along": ("a replica begins without a gradient", """
def get_params(params, device):
    new = [p.detach().to(device, copy=True).requires_grad_() for p in params]
    for p, q in zip(params, new):
        q.grad = torch.zeros_like(q) if p.grad is None else p.grad
    return new
"""),
        "changes what it was given": (
            "requires_grad_() was called on the parameters",
            """
def get_params(params, device):
    for p in params:
        p.requires_grad_()
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]
"""),
    },
    "split_batch": {
        "fewer shards than devices": (
            "torch's chunk returns fewer shards than devices when rows run out",
            """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    return list(X.chunk(len(devices))), list(y.chunk(len(devices)))
"""),
        "as even as can be": ("shards are of ceil(rows / devices) rows", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    k = len(devices)
    return list(X.tensor_split(k)), list(y.tensor_split(k))
"""),
        "the tail dropped": ("rows are lost or repeated", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    rows = len(X) // len(devices)
    cut = [slice(r * rows, (r + 1) * rows) for r in range(len(devices))]
    return [X[c] for c in cut], [y[c] for c in cut]
"""),
        "the rest to the last": ("shards are of ceil(rows / devices) rows", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    k = len(devices)
    cuts = [r * (len(X) // k) for r in range(k)] + [len(X)]
    return ([X[a:b] for a, b in zip(cuts, cuts[1:])],
            [y[a:b] for a, b in zip(cuts, cuts[1:])])
"""),
        "dealt like cards": ("shards are of ceil(rows / devices) rows", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    k = len(devices)
    return [X[r::k] for r in range(k)], [y[r::k] for r in range(k)]
"""),
        "rows repeated to fill up": ("rows are lost or repeated", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    rows = -(-len(X) // len(devices))
    i = torch.arange(rows * len(devices)) % len(X)
    return list(X[i].split(rows)), list(y[i].split(rows))
"""),
        "everything to everybody": ("rows are lost or repeated", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    return [X for _ in devices], [y for _ in devices]
"""),
        "labels in another order": ("cut y where X is cut", """
def split_batch(X, y, devices):
    if len(X) != len(y):
        raise ValueError("lengths")
    rows = -(-len(X) // len(devices))
    cut = [slice(r * rows, (r + 1) * rows) for r in range(len(devices))]
    return [X[c] for c in cut], [y.flip(0)[c] for c in cut]
"""),
        "lengths compared by an assert": ("an assert raises AssertionError", """
def split_batch(X, y, devices):
    assert len(X) == len(y), "lengths"
    rows = -(-len(X) // len(devices))
    cut = [slice(r * rows, (r + 1) * rows) for r in range(len(devices))]
    return [X[c] for c in cut], [y[c] for c in cut]
"""),
        "lengths not compared": ("compare len(X) with len(y) before you cut", """
def split_batch(X, y, devices):
    rows = -(-len(X) // len(devices))
    cut = [slice(r * rows, (r + 1) * rows) for r in range(len(devices))]
    return [X[c] for c in cut], [y[c] for c in cut]
"""),
    },
    "allreduce": {
        "does nothing": ("the tensors hold what they held", """
def allreduce(data):
    pass
"""),
        "puts the sum into the list": ("the list holds the sums", """
def allreduce(data):
    total = sum(data)
    for i in range(len(data)):
        data[i] = total
"""),
        "returns the sums": ("the result is returned", """
def allreduce(data):
    return [sum(data) for _ in data]
"""),
        "only rank 0 has it": ("only rank 0 has the sum: send it back", """
def allreduce(data):
    for i in range(1, len(data)):
        data[0] += data[i]
"""),
        "the mean": ("this is the mean", """
def allreduce(data):
    mean = sum(data) / len(data)
    for tensor in data:
        tensor.copy_(mean)
"""),
        "the last rank left out": ("the tensor on rank 0 holds rank 0's + rank 1's; every", """
def allreduce(data):
    total = sum(data[:-1]) if len(data) > 1 else data[0].clone()
    for tensor in data:
        tensor.copy_(total)
"""),
        "rank 0's own left out": ("the tensor on rank 0 holds rank 1's + rank 2's; every", """
def allreduce(data):
    total = sum(data[1:]) if len(data) > 1 else data[0].clone()
    for tensor in data:
        tensor.copy_(total)
"""),
        "everybody gets rank 0's": ("the tensor on rank 0 holds rank 0's; every rank belongs", """
def allreduce(data):
    for tensor in data[1:]:
        tensor.copy_(data[0])
"""),
        "zeros everywhere": ("the tensor on rank 0 holds zeros; every rank belongs", """
def allreduce(data):
    for tensor in data:
        tensor.zero_()
"""),
        "two ranks only": ("the tensor on rank 0 holds rank 0's + rank 1's; every", """
def allreduce(data):
    if len(data) > 1:
        data[0] += data[1]
    for tensor in data[1:]:
        tensor.copy_(data[0])
"""),
        "adds to itself while it goes": (
            "the tensor on rank 1 holds rank 0's + rank 1's twice + rank 2's twice",
            """
def allreduce(data):
    for tensor in data:
        tensor.copy_(sum(data))
"""),
    },
    "sgd": {
        "not divided": ("the gradient is a sum over the batch", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p -= lr * p.grad
        p.grad.zero_()
"""),
        "uphill": ("this walks uphill", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p += lr * p.grad / batch_size
        p.grad.zero_()
"""),
        "a new tensor": ("the parameters have not moved", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p = p - lr * p.grad / batch_size
"""),
        "gradients kept": ("gradients must be zeroed", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p -= lr * p.grad / batch_size
"""),
        "gradients zeroed first": ("the gradients were zeroed before the step", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p.grad.zero_()
        p -= lr * p.grad / batch_size
"""),
        "divided by the number of parameters": ("divide by batch_size", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p -= lr * p.grad / len(params)
        p.grad.zero_()
"""),
        "the first parameter only": ("some parameters have not moved", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    params[0].sub_(lr * params[0].grad / batch_size)
    for p in params:
        p.grad.zero_()
"""),
        "the sign alone": ("only the sign of the gradient is left", """
@torch.no_grad()
def sgd(params, lr, batch_size):
    for p in params:
        p -= lr * p.grad.sign() / batch_size
        p.grad.zero_()
"""),
    },
    "train_batch": {},
}

# a right train_batch, in which one part at a time is made wrong
TRAIN_BATCH = """
def train_batch(X, y, device_params, devices, lr):
    PREPARE
    X_shards, y_shards = split_batch(X, y, devices)
    losses = [loss(lenet(X_shard, params), y_shard)REDUCE
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    for l in losses:
        l.backward()
    GATHER
    STEP
    return MEAN_LOSS
"""
RIGHT = {
    "PREPARE": "k = len(devices)",
    "REDUCE": ".sum()",
    "GATHER": "[allreduce([q[i].grad for q in device_params]) for i in range(8)]",
    "STEP": "[sgd(q, lr, len(X)) for q in device_params]",
    "MEAN_LOSS": "sum(l.item() for l in losses) / len(X)",
}
CHANGES = {
    "no all-reduce": ("replicas differ", {"GATHER": "pass"}),
    "mean of means": ("every shard counts alike", {
        "REDUCE": ".sum() / max(1, len(y_shard))",
        "STEP": "[sgd(q, lr, k) for q in device_params]",
        "MEAN_LOSS": "sum(l.item() for l in losses) / k"}),
    "divided by the rows of the shard": ("replicas differ", {
        "STEP": "[sgd(q, lr, max(1, len(s))) for q, s in zip(device_params, X_shards)]"}),
    "not divided": (
        "the step is 7 times too large",
        {"STEP": "[sgd(q, lr, 1) for q in device_params]"}),
    "divided twice": (
        "the step is 3 times too small",
        {"STEP": "[sgd(q, lr, len(X) * k) for q in device_params]"}),
    "divided as if all shards were full": ("the sum was divided by 9", {
        "STEP": "[sgd(q, lr, k * len(X_shards[0])) for q in device_params]"}),
    "a rate for each device": ("the step is 3 times too large", {
        "STEP": "[sgd(q, lr * k, len(X)) for q in device_params]"}),
    "never steps": ("nothing has moved", {"STEP": "pass"}),
    "only replica 0 steps": (
        "replicas differ",
        {"STEP": "sgd(device_params[0], lr, len(X))"}),
    "a replica without rows stays behind": ("replicas differ", {
        "STEP": "[sgd(q, lr, len(X)) for q, s in zip(device_params, X_shards) if len(s)]"
    }),
    "biases forgotten": ("replicas differ", {
        "GATHER": "[allreduce([q[i].grad for q in device_params]) "
                  "for i in range(0, 8, 2)]"}),
    "the all-reduce before backward": ("replicas differ", {
        "PREPARE": "k = len(devices); g = [[q[i].grad for q in device_params] "
                   "for i in range(8)]; [allreduce(t) for t in g if t[0] is not None]",
        "GATHER": "pass"}),
    "summed once in every shard's turn": ("gradients were summed over the devices", {
        "GATHER": "[allreduce([q[i].grad for q in device_params]) "
                  "for i in range(8) for _ in losses]"}),
    "the loss after the step": ("this is the loss after the step", {
        "MEAN_LOSS": "loss(lenet(X, device_params[0]), y).mean().item()"}),
    "the loss of the last shard": (
        "this is one shard's part",
        {"MEAN_LOSS": "losses[-1].item() / len(X)"}),
    "the mean of the shards' losses": ("this is a mean of the shards' means", {
        "MEAN_LOSS": "sum(l.item() / max(1, len(s)) "
                     "for l, s in zip(losses, X_shards)) / k"}),
    "the sum of the losses": (
        "this is the sum",
        {"MEAN_LOSS": "sum(l.item() for l in losses)"}),
    "gradients of the last step kept": ("the first step is right", {
        "PREPARE": "k = len(devices); kept = [[p.grad for p in q] for q in device_params]",
        "GATHER": "[allreduce([q[i].grad for q in device_params]) for i in range(8)]; "
                  "now = [[p.grad.clone() for p in q] for q in device_params]",
        "STEP": "[sgd(q, lr, len(X)) for q in device_params]; "
                "[p.grad.copy_(g) for q, n in zip(device_params, now) "
                "for p, g in zip(q, n)]"}),
    "every device does the whole minibatch": ("every replica works on its own shard", {
        "PREPARE": "k = len(devices); whole = X, y",
        "REDUCE": ".sum() * 0 + loss(lenet(whole[0], params), whole[1]).sum() / k"}),
}


def _changed(parts):
    cell = TRAIN_BATCH
    for part, right in RIGHT.items():
        cell = cell.replace(part, parts.get(part, right))
    return cell


TRAIN_RIGHT = _changed({})
ANSWERS["train_batch"] = {name: (hint, _changed(parts))
                          for name, (hint, parts) in CHANGES.items()}
WRONG, HINTS = apart(ANSWERS)
