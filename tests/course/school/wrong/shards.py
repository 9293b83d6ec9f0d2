"""Wrong answers to the exercises of lessons in shards.py."""

WRONG = {
    "split_the_work/by_data": (
        """
def by_data(X, y, params, devices):
    replicas = <<COPIES: [get_params(params, device) for device in devices]>>
    X_shards, y_shards = <<SHARDS: split_batch(X, y, devices)>>
    for X_shard, y_shard, replica in zip(X_shards, y_shards, replicas):
        loss(lenet(X_shard, replica), y_shard).<<LOSS: sum>>().backward()
    for grads in zip(*[[p.grad for p in replica] for replica in replicas]):
        <<SUM: allreduce(grads)>>
    <<AFTER: pass>>
    return <<RESULT: replicas>>
""",
        {
            "nothing went through": {
                "RESULT": "[[p.grad for p in replica] for replica in replicas]"
            },
            "these share memory": {
                "COPIES": "[get_params(params, devices[0])] * len(devices)",
                "SUM": "pass",
            },
            "each image belongs to one device": {
                "SHARDS": "[X] * len(devices), [y] * len(devices)"
            },
            "each device has its own gradient": {"SUM": "pass"},
            "only device 0 has the sum": {"SUM": "grads[0].add_(sum(grads[1:]))"},
            "this is the mean over the devices": {
                "SUM": "allreduce(grads); [g.div_(len(grads)) for g in grads]"
            },
            "each device took the mean": {"LOSS": "mean"},
        },
    ),
    "dataparallel/forward": (
        """
from torch.func import functional_call
def forward(module, devices, X):
    outputs = []
    for shard, device in zip(scatter(X, devices), devices):
        if <<SOME: len(shard)>>:
            weights = {name: <<COPY: p.to(device, copy=True)>>
                       for name, p in module.named_parameters()}
            output = <<CALL: functional_call(module, weights, (shard,))>>
            outputs.append(output.to(devices[0]))
    return <<RESULT: torch.cat(outputs)>>
""",
        {
            "these are parts": {"RESULT": "outputs"},
            "the whole minibatch went through": {
                "RESULT": "module(X)",
                "SOME": "False",
            },
            "the module itself was called": {"COPY": "p.to(device)"},
            "a device without rows": {"SOME": "True"},
            "each copy of the weights works on its own shard": {
                "CALL": "functional_call(module, weights, (X,))[:len(shard)]",
                "RESULT": "functional_call(module, weights, (X,))",
            },
            "no gradient comes back": {"COPY": "p.detach().to(device, copy=True)"},
        },
    ),
    "ddp_program/sampler": (
        """
def indices(length, world_size, rank, epoch, seed):
    generator = torch.Generator().manual_seed(<<NUMBER: seed + epoch>>)
    order = torch.randperm(length, generator=generator).tolist()
    <<BEFORE: pass>>
    while len(order) % world_size:
        order += order[:-len(order) % world_size]
    return <<ROWS: order[rank::world_size]>>
""",
        {
            "torch's seed for an epoch": {"NUMBER": "seed"},
            "every rank has all rows": {"ROWS": "order"},
            "this is a block of neighbouring": {
                "ROWS": "order[rank * (n := len(order) // world_size):][:n]"
            },
            "each rank draws an order": {"NUMBER": "seed + epoch + rank"},
        },
    ),
    "many_machines/rows_to_go": (
        """
def rows_to_go(order, seen, rank, world_size):
    left = order[seen:]
    return <<ROWS: left[rank::world_size]>>
""",
        {
            "these begin at the front": {"ROWS": "order[rank::world_size]"},
            "`seen` counts the rows": {
                "ROWS": "order[seen * world_size:][rank::world_size]"
            },
            "every rank gets all": {"ROWS": "left"},
            "no row is lost or read twice": {
                "ROWS": "left[rank * (n := -(-len(left) // world_size)):][:n]"
            },
            "the last rows are lost": {
                "ROWS": "left[:len(left) // world_size * world_size][rank::world_size]"
            },
            "some rows are read twice": {
                "ROWS": "(left + (left * world_size)[:-len(left) % world_size])[rank::world_size]"
            },
        },
    ),
    "ddp_program/evaluate": (
        """
@torch.no_grad()
def evaluate(model, X, y):
    was = model.training
    <<BEFORE: model.eval()>>
    counts = torch.tensor([(model(X).argmax(dim=1) == y).sum().item(), len(y)])
    <<AFTER: model.train(was)>>
    part = counts[0] / counts[1].clamp(min=1)
    <<REDUCE: dist.all_reduce(counts)>>
    right, rows = counts.tolist()
    return <<RESULT: right / rows>>
""",
        {
            "the test runs in training mode": {"BEFORE": "pass"},
            "dropout would stay off": {"AFTER": "pass"},
            "it was in eval mode before": {"AFTER": "model.train()"},
            "a rank can have no rows": {"AFTER": "model.train(was); 1 / len(y)"},
            "all ranks must call": {
                "BEFORE": "if len(X) == 0: return 0.0\n    model.eval()"
            },
            "every rank has the accuracy of its own": {
                "REDUCE": "counts[1].clamp_(min=1)"
            },
            "this is the mean of the ranks'": {
                "REDUCE": "dist.all_reduce(part); return part / dist.get_world_size()"
            },
            "the sum is that of all ranks": {"RESULT": "right / max(1, len(y))"},
            "only rank 0 has the answer": {
                "REDUCE": "dist.reduce(counts, 0); counts[1].clamp_(min=1)"
            },
        },
    ),
}
