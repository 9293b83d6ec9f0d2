"""Wrong answers to the exercises of lessons in shards.py."""

WRONG = {
    "split_the_work/by_data": (
        """
def by_data(replicas, X_shards, y_shards):
    <<BEFORE: pass>>
    for <<EACH: X_shard, y_shard, replica in zip(X_shards, y_shards, replicas)>>:
        <<LOSS: loss(lenet(X_shard, replica), y_shard).sum()>>.<<BACK: backward()>>
    for same in zip(*<<OVER: replicas>>):
        <<SUM: allreduce([p.grad for p in same])>>
    <<AFTER: pass>>
""",
        {
            "no image went through": {"BEFORE": "return"},
            "they went through other weights": {
                "BEFORE": "replicas = [get_params(one, one[0].device) for one in replicas]"
            },
            "these are other images": {
                "LOSS": "loss(lenet(X_shard / 2, replica), y_shard).sum()"
            },
            "device 0 did all the work": {
                "LOSS": "loss(lenet(X_shard, replicas[0]), y_shard).sum()",
                "SUM": "[p.grad for p in same]",
            },
            "each device saw all images": {
                "LOSS": "loss(lenet(torch.cat(X_shards), replica), torch.cat(y_shards)).sum()"
            },
            "device 2 was left out": {
                "EACH": "X_shard, y_shard, replica in zip(X_shards[:2], y_shards, replicas)",
                "OVER": "replicas[:2]",
            },
            "device r works on shard r": {
                "LOSS": "loss(lenet(X_shards[0], replica), y_shards[0]).sum()"
            },
            "a gradient is not there yet": {"BACK": "detach()"},
            "one call sums one parameter": {"OVER": "zip(*replicas)"},
            "allreduce gets one tensor from each": {
                "SUM": "allreduce([[p.grad for p in one] for one in replicas])"
            },
            "loss gives a number for each image": {
                "LOSS": "loss(lenet(X_shard, replica), y_shard)"
            },
            "backward was not called": {"BACK": "detach()", "SUM": "pass"},
            "these are sums over the devices": {
                "SUM": "allreduce([p.data for p in same])"
            },
            "only the gradients are asked for": {
                "AFTER": "[sgd(one, 0.1, 6) for one in replicas]"
            },
            "this was returned": {
                "SUM": "pass",
                "AFTER": "return [sum(p.grad for p in same) for same in zip(*replicas)]",
            },
            "each device has the gradient of its own": {
                "SUM": "allreduce([p.grad.clone() for p in same])"
            },
            "devices 0 and 1 have added up": {
                "SUM": "allreduce([p.grad for p in same[:2]])"
            },
            "only device 0 has the sum": {
                "SUM": "same[0].grad += sum(p.grad for p in same[1:])"
            },
            "device 2's gradient is not in the sum": {
                "SUM": "same[-1].grad.zero_(); allreduce([p.grad for p in same])"
            },
            "of the 8 parameters of a replica, 4 are not": {
                "SUM": "same[0].dim() > 1 and allreduce([p.grad for p in same])"
            },
            "this is the mean over the devices": {
                "AFTER": "[p.grad.div_(len(replicas)) for one in replicas for p in one]"
            },
            "this is the mean over all images": {
                "AFTER": "[p.grad.div_(sum(map(len, X_shards))) for one in replicas for p in one]"
            },
            "each device has the mean": {
                "LOSS": "loss(lenet(X_shard, replica), y_shard).mean()",
                "SUM": "pass",
            },
            "each device took the mean": {
                "LOSS": "loss(lenet(X_shard, replica), y_shard).mean()"
            },
            "these are means of means": {
                "LOSS": "loss(lenet(X_shard, replica), y_shard).mean()",
                "AFTER": "[p.grad.div_(len(replicas)) for one in replicas for p in one]",
            },
            "this is 3 times the sum": {
                "AFTER": "[allreduce([p.grad for p in same]) for same in zip(*replicas)]"
            },
            "the devices share one tensor": {
                "SUM": "total = sum(p.grad for p in same)\n        "
                "for p in same: p.grad = total"
            },
        },
    ),
    "dataparallel/forward": (
        """
from torch.func import functional_call
def forward(module, devices, X):
    outputs = []
    once = {name: p.to(devices[0], copy=True) for name, p in module.named_parameters()}
    for shard, device in zip(<<ROWS: scatter(X, devices)>>, devices):
        if <<SOME: len(shard)>>:
            weights = {name: <<COPY: p.to(device, copy=True)>>
                       for name, p in module.named_parameters()}
            output = <<CALL: functional_call(module, weights, (shard,))>>
            outputs.append(<<HOME: output.to(devices[0])>>)
    return <<RESULT: torch.cat(outputs)>>
""",
        {
            "these are parts": {"RESULT": "outputs"},
            "there were 10 rows, and there are more outputs": {
                "CALL": "functional_call(module, weights, (X,))"
            },
            "there were 10 rows, and there are more outputs: each": {
                "ROWS": "[X] * len(devices)"
            },
            "the shards come in another order": {"RESULT": "torch.cat(outputs[::-1])"},
            "some rows went through no call": {
                "ROWS": "X[:len(X) // len(devices) * len(devices)].chunk(len(devices))"
            },
            "each row of X gives one row": {
                "RESULT": "torch.stack([one.mean(0) for one in outputs]).mean(0)"
            },
            "the whole minibatch went through": {
                "RESULT": "module(X)",
                "SOME": "False",
            },
            "the module itself was called": {"COPY": "p.to(device)"},
            "the module itself was called: each shard": {"CALL": "module(shard)"},
            "a device without rows": {"SOME": "True"},
            "each copy of the weights works on its own shard": {
                "CALL": "functional_call(module, weights, (X,))[:len(shard)]",
                "RESULT": "functional_call(module, weights, (X,))",
            },
            "one copy serves all shards": {
                "CALL": "functional_call(module, once, (shard,))"
            },
            "no gradient comes back": {"COPY": "p.detach().to(device, copy=True)"},
            "rows and weights meet on": {"COPY": "p.clone()"},
            "rows and weights meet on the shard's device": {
                "ROWS": "X.chunk(len(devices))"
            },
            "bring each output home": {"HOME": "output"},
        },
    ),
    "split_the_batch/my_rows": (
        """
def my_rows(n, world_size, rank, seed, epoch):
    <<DRAW: generator = torch.Generator().manual_seed(seed + epoch)>>
    order = torch.randperm(n, generator=generator).tolist()
    <<FILL: order = (order * world_size)[:-(-n // world_size) * world_size]>>
    size = len(order) // world_size
    return <<ROWS: order[rank::world_size]>>
""",
        {
            "draw, fill up and deal yourself": {
                "ROWS": "list(torch.utils.data.DistributedSampler("
                "range(n), world_size, rank, seed=seed + epoch))"
            },
            "torch.manual_seed and a bare": {
                "DRAW": "generator = torch.manual_seed(seed + epoch)"
            },
            "return the rows of this rank": {"ROWS": "None"},
            "these are the rows of all ranks": {
                "ROWS": "[order[r::world_size] for r in range(world_size)]"
            },
            "the last rows are dropped": {
                "FILL": "order = order[:n // world_size * world_size]"
            },
            "every rank has all rows": {"ROWS": "order"},
            "the ranks have unequally many": {
                "FILL": "order += order[:-n % world_size]"
            },
            "each rank has too many": {
                "FILL": "order += order[:world_size - n % world_size]"
            },
            "torch's seed for an epoch": {
                "DRAW": "generator = torch.Generator().manual_seed(seed)"
            },
            "each rank draws an order": {
                "DRAW": "generator = torch.Generator().manual_seed(seed + epoch + rank)"
            },
            "these are blocks": {"ROWS": "order[rank * size:][:size]"},
            "these are the rows of another": {
                "ROWS": "order[(rank + 1) % world_size::world_size]"
            },
            "these are the rows of another rank: rank r begins": {
                "ROWS": "order[rank + 1::world_size]"
            },
            "these are the rows of another rank: rank r begins at place r": {
                "ROWS": "order[rank - 1::world_size]"
            },
            "the rows are right": {"ROWS": "sorted(order[rank::world_size])"},
            "filled up with other rows": {
                "FILL": "order = (order + order[::-1] * world_size)"
                "[:-(-n // world_size) * world_size]"
            },
            "another order than torch's": {
                "DRAW": "generator = torch.Generator().manual_seed(1 + seed + epoch)"
            },
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
            "no row is lost or read twice, but these": {
                "ROWS": "left[rank * (n := -(-len(left) // world_size)):][:n]"
            },
            "the last rows are lost": {
                "ROWS": "left[:len(left) // world_size * world_size][rank::world_size]"
            },
            "a row is missing": {"ROWS": "left[1:][rank::world_size]"},
            "no row is lost or read twice, but they": {
                "ROWS": "left[world_size - 1 - rank::world_size]"
            },
            "the ranks that read before may": {
                "ROWS": "order[rank::world_size][seen // world_size:]"
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
    counts = torch.tensor([(model(X).argmax(dim=1) <<AGREE: ==>> y).sum().item(), len(y)])
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
            "return the accuracy": {"RESULT": "None"},
            "this is rounded down": {"RESULT": "right // rows"},
            "these are the rows that are wrong": {"AGREE": "!="},
            "every rank has the accuracy of its own": {
                "REDUCE": "counts[1].clamp_(min=1)"
            },
            "this is the mean of the ranks'": {
                "REDUCE": "dist.all_reduce(part); return part / dist.get_world_size()"
            },
            "the sum is that of all ranks": {"RESULT": "right / max(1, len(y))"},
            "the sum is that of all ranks, the number": {
                "RESULT": "right / max(1, len(y)) / dist.get_world_size()"
            },
            "only rank 0 has the answer": {
                "REDUCE": "dist.reduce(counts, 0); counts[1].clamp_(min=1)"
            },
        },
    ),
}
