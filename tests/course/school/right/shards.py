"""Right answers to the exercises of lessons in shards.py."""

from tests.course.school.right import changed

RIGHT = {
    "split_the_work/by_data": {
        "cut and added up by hand": """
def by_data(X, y, params, devices):
    k, replicas = len(devices), []
    for images, labels, device in zip(X.tensor_split(k), y.tensor_split(k), devices):
        replica = [p.clone().to(device).requires_grad_() for p in params]
        scores = lenet(images.to(device), replica)
        F.cross_entropy(scores, labels.to(device), reduction="sum").backward()
        replicas.append(replica)
    for same in zip(*replicas):
        total = sum(p.grad.cpu() for p in same)
        for p in same:
            p.grad = total.to(p.device, copy=True)
    return replicas
""",
        "packed, one all-reduce, image by image": changed(
            "split_the_work/by_data",
            (
                "zip(X_shards, y_shards, replicas)",
                "[(one[None], l[None], "
                "replica) for Xs, ys, replica in zip(X_shards, y_shards, replicas) for one, l in "
                "zip(Xs, ys)]",
            ),
            COPIES="[get_params(params, device) for device in devices]; "
            "flat = [pack_grads(replica) for replica in replicas]",
            SUM="pass",
            AFTER="allreduce(flat)",
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
    },
    "ddp_program/sampler": {
        "torch's own": """
from torch.utils.data import DistributedSampler
def indices(length, world_size, rank, epoch, seed):
    sampler = DistributedSampler(range(length), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)
""",
        "by modulo, as a tensor": changed(
            "ddp_program/sampler",
            BEFORE="places = torch.arange(rank, length + world_size - 1, world_size)\n"
            "    return torch.tensor(order)[places[:-(-length // world_size)] % length]",
        ),
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
