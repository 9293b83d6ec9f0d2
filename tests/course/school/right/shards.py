"""Right answers to the exercises of lessons in shards.py."""

from tests.course.school.right import changed

RIGHT = {
    "split_the_work/by_data": {
        "by place, added up by hand, written into the lists": """
def by_data(replicas, X_shards, y_shards):
    for rank in range(len(replicas)):
        X_shards[rank] = lenet(X_shards[rank], replicas[rank])
        F.cross_entropy(X_shards[rank], y_shards[rank], reduction="sum").backward()
    for same in zip(*replicas):
        total = sum(p.grad.cpu() for p in same)
        for p in same:
            p.grad = total.to(p.device, copy=True)
""",
        "packed before, image by image": changed(
            "split_the_work/by_data",
            (
                "zip(X_shards, y_shards, replicas)",
                "[(one[None], l[None], "
                "replica) for Xs, ys, replica in zip(X_shards, y_shards, replicas) for one, l in "
                "zip(Xs, ys)]",
            ),
            BEFORE="flat = [pack_grads(replica) for replica in replicas]",
            SUM="pass",
            AFTER="allreduce(flat)",
        ),
        "packed after, and cut again": """
def by_data(replicas, X_shards, y_shards):
    flats = []
    for i in range(len(replicas)):
        loss(lenet(X_shards[i], replicas[i]), y_shards[i]).sum().backward()
        flats.append(torch.cat([p.grad.flatten() for p in replicas[i]]))
    allreduce(flats)
    for replica, flat in zip(replicas, flats):
        for p, part in zip(replica, flat.split([p.numel() for p in replica])):
            p.grad.copy_(part.view_as(p))
""",
        "one parameter after the other, torch.autograd.grad": changed(
            "split_the_work/by_data",
            BACK="detach()",
            OVER="replicas",
            LOSS="grads = "
            "torch.autograd.grad(loss(lenet(X_shard, replica), y_shard).sum(), replica)\n"
            "        for p, grad in zip(replica, grads): p.grad = grad\n        grad",
        ),
    },
    "dataparallel/forward": {
        "the course's four functions": """
from manual_dp.parallel import gather, parallel_apply, replicate
def forward(module, devices, X):
    X_shards = [shard for shard in scatter(X, devices) if len(shard)]
    replicas = replicate(module, devices[:len(X_shards)])
    return gather(parallel_apply(replicas, X_shards), devices[0])
""",
        "a module of its own for each shard, clone": """
from torch.func import functional_call
def forward(module, devices, X):
    import copy
    outputs = []
    for device, shard in zip(devices, scatter(X, devices)):
        if len(shard):
            params = {name: p.to(device).clone() for name, p in module.named_parameters()}
            outputs.append(functional_call(copy.deepcopy(module), params, (shard,)))
    return torch.cat([output.to(devices[0]) for output in outputs])
""",
        "torch.split, all copies first": """
from torch.func import functional_call
def forward(module, devices, X):
    shards = X.split(-(-len(X) // len(devices)))
    copies = [{name: p.to(device, copy=True) for name, p in module.named_parameters()}
              for _, device in zip(shards, devices)]
    return torch.cat([functional_call(module, copy, (shard.to(device),)).to(X.device)
                      for copy, shard, device in zip(copies, shards, devices)])
""",
        "a chain of copies": """
from torch.func import functional_call
def forward(module, devices, X):
    outputs, weights = [], dict(module.named_parameters())
    for shard, device in zip(scatter(X, devices), devices):
        if len(shard):
            weights = {name: p.to(device, copy=True) for name, p in weights.items()}
            outputs.append(functional_call(module, weights, (shard,)))
    return torch.cat([output.to(devices[0]) for output in outputs])
""",
    },
    "split_the_batch/my_rows": {
        "a loop": """
def my_rows(n, world_size, rank, seed, epoch):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    while len(order) % world_size:
        order += order[:-len(order) % world_size]
    return order[rank::world_size]
""",
        "row by row, in two steps": """
def my_rows(n, world_size, rank, seed, epoch):
    g = torch.Generator()
    g.manual_seed(seed + epoch)
    order = list(torch.randperm(n, generator=g).numpy())
    i = 0
    while len(order) % world_size != 0:
        order.append(order[i])
        i += 1
    return [int(order[place]) for place in range(rank, len(order), world_size)]
""",
        "a cycle, a tuple": """
from itertools import cycle, islice
def my_rows(n, world_size, rank, seed, epoch):
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    order = cycle(torch.randperm(n, generator=generator).tolist())
    total = (n + world_size - 1) // world_size * world_size
    return tuple(islice(order, rank, total, world_size))
""",
        "the global generator, put back; a tensor": """
def my_rows(n, world_size, rank, seed, epoch):
    with torch.random.fork_rng():
        torch.manual_seed(seed + epoch)
        order = torch.randperm(n)
    total = -(-n // world_size) * world_size
    return order[torch.arange(total) % n].view(-1, world_size)[:, rank]
""",
    },
    "many_machines/rows_to_go": {
        "a tensor's": changed(
            "many_machines/rows_to_go",
            ROWS="torch.tensor(left, dtype=torch.int64)[rank::world_size]",
        ),
        "one slice, a tuple": changed(
            "many_machines/rows_to_go", ROWS="tuple(order[seen + rank::world_size])"
        ),
    },
    "ddp_program/evaluate": {
        "one after the other, divided as tensors": changed(
            "ddp_program/evaluate",
            REDUCE="[dist.all_reduce(count) for count in counts]",
            RESULT="counts[0] / counts[1]",
        ),
        "objects, and only where there are rows": """
def evaluate(model, X, y):
    right, training = 0, model.training
    if len(X):
        model.eval()
        with torch.no_grad():
            right = int(torch.eq(model(X).argmax(-1), y).sum())
    if training:
        model.train()
    all_counts = [None] * dist.get_world_size()
    dist.all_gather_object(all_counts, (right, len(X)))
    return sum(c for c, _ in all_counts) / sum(n for _, n in all_counts)
""",
    },
}
