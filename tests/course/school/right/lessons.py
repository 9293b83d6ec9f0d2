"""Right answers to exercises of lessons: {exercise: {style: cell}}."""

from tests.course.school.right import changed

RIGHT = {
    "allreduce/reduce_scatter": {
        "a message that grows": """
def reduce_scatter(chunks):
    n = len(chunks)
    message = [chunks[r][r - 1] for r in range(n)]
    for step in range(1, n):
        message = [message[r - 1] + chunks[r][(r - 1 - step) % n] for r in range(n)]
    for r in range(n):
        chunks[r][r].copy_(message[r])
""",
        "the ring the other way, torch.add into what was there": changed(
            "allreduce/reduce_scatter",
            ("(rank + 1) % n", "rank - 1"),
            PLACE="(rank + 1 + step)",
            WRITE="torch.add(chunks[peer][i], chunks[rank][i], out=chunks[peer][i])",
        ),
    },
    "allreduce/allgather": {
        "all send before any copies": changed(
            "allreduce/allgather",
            (
                "        for rank",
                "        sent = ["
                "own[(r - step) % n].clone() for r, own in enumerate(chunks)]\n        for rank",
            ),
            WRITE="chunks[peer][i].copy_(sent[rank])",
        ),
        "zeroed, then added": changed(
            "allreduce/allgather", WRITE="chunks[peer][i].zero_().add_(chunks[rank][i])"
        ),
    },
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
    "buckets/send_full": {
        "a loop that ends": """
def send_full(buckets, p):
    for bucket in buckets:
        bucket.missing.discard(p)
    number = 0
    while number < len(buckets) and not buckets[number].missing:
        if buckets[number].work is None:
            buckets[number].send()
        number += 1
""",
        "with takewhile": """
def send_full(buckets, p):
    from itertools import takewhile
    [bucket] = [bucket for bucket in buckets if p in bucket.missing]
    bucket.missing.remove(p)
    for bucket in takewhile(lambda bucket: len(bucket.missing) == 0, buckets):
        bucket.work or bucket.send()
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
    "many_machines/finish": {
        "a death at a time, the saves before it counted": """
import math
def finish(work, every, cost, deaths):
    start = done = 0
    for death in [*deaths, math.inf]:
        left = work - done
        needed = left + cost * (math.ceil(left / every) - 1)
        if start + needed <= death:
            return start + needed
        done += (death - start) // (every + cost) * every
        start = death
""",
        "a queue": """
from collections import deque
def finish(work, every, cost, deaths):
    waiting, clock, saved = deque(deaths), 0.0, 0.0
    while True:
        last = saved + every >= work
        end = clock + (work - saved if last else every + cost)
        if not waiting or end <= waiting[0]:
            if last:
                return end
            clock, saved = end, saved + every
        else:
            clock = waiting.popleft()
""",
    },
    "memory/count": {
        "lists and dicts by hand": """
def count(alive, values):
    if isinstance(values, torch.Tensor):
        alive.add(values.untyped_storage())
    elif isinstance(values, dict):
        count(alive, list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            count(alive, value)
    return sum(map(torch.UntypedStorage.nbytes, alive))
""",
        "a set, then added": changed(
            "memory/count",
            NOTE="pass",
            BEFORE="alive |= {x.untyped_storage() for x in "
            "tree_leaves(values) if torch.is_tensor(x)}",
        ),
    },
    "count_price_look/allreduce": {
        "all alphas, then all bytes": changed(
            "count_price_look/allreduce",
            RESULT="rounds * alpha + rounds / ranks * size / bandwidth",
        ),
        "round by round": """
def allreduce(size, ranks, alpha, bandwidth):
    seconds = 0
    for phase in "reduce-scatter", "all-gather":
        for step in range(ranks - 1):
            seconds += alpha + size / ranks / bandwidth
    return seconds
""",
    },
    "count_price_look/two_levels": {
        "a loop over the levels": """
def two_levels(size, nodes, each, inside, between):
    levels, seconds = [(each, *inside), (nodes, *between)], 0
    for n, alpha, bandwidth in levels:
        seconds += 2 * (n - 1) * alpha + 2 * (n - 1) * size / n / bandwidth
    return seconds
""",
        "shared links": """
def two_levels(size, nodes, each, inside, between):
    def ring(size, n, alpha, bandwidth):
        return 2 * (n - 1) * (alpha + size / n / bandwidth)
    alpha, bandwidth = between
    return ring(size, each, *inside) + ring(size / each, nodes, alpha, bandwidth / each)
""",
    },
    "count_price_look/sends": {
        "lists, without a variable for the wire": """
def sends(forward, backward, size, buckets, price):
    bars = []
    for i in range(1, buckets + 1):
        start = max([forward + i * backward / buckets, *(end for _, end in bars)])
        bars.append([start, start + price(size / buckets)])
    return bars
""",
        "a generator": changed(
            "count_price_look/sends",
            ("bars.append((start, free))", "yield start, free"),
            ("    return bars\n", ""),
        ),
    },
    "keep_only_a_part/hooks": {
        "a hook before backward": changed(
            "keep_only_a_part/hooks",
            AFTER="free()",
            MORE="layer.register_full_backward_pre_hook(lambda *_: gather())",
        ),
        "two hooks after forward, the gradient is handed back": changed(
            "keep_only_a_part/hooks",
            AFTER="free()",
            MORE="layer.register_forward_hook(lambda _, inputs, output: "
            "output.register_hook(lambda grad: (gather(), grad)[1]) and None)",
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
    "is_it_correct/one_step_test": {
        "rank 0's weights are sent, and come back with the result": """
def one_step_test(step, make, X, y, n=3):
    def run(start=None):
        net, optimizer = make()
        with torch.no_grad():
            for p, value in zip(net.parameters(), start or net.parameters()):
                p.copy_(value)
                dist.broadcast(p, 0)
        old = [p.detach().clone() for p in net.parameters()]
        step(net, optimizer, X, y)
        return old, [p.detach().clone() for p in net.parameters()]
    many = run_ranks(run, n)
    (old, one), = run_ranks(run, 1, many[0][0])
    return (max(largest_difference(new, one) for _, new in many)
            / largest_difference(old, one))
""",
        "one long vector, and the largest by an all-reduce": """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
def one_step_test(step, make, X, y, n=3):
    start = parameters_to_vector(make()[0].parameters()).detach()
    def run(one=None):
        net, optimizer = make()
        vector_to_parameters(start.clone(), net.parameters())
        step(net, optimizer, X, y)
        new = parameters_to_vector(net.parameters()).detach()
        if one is None:
            return new
        off = (new - one).abs().max() / (one - start).abs().max()
        dist.all_reduce(off, dist.ReduceOp.MAX)
        return off
    one, = run_ranks(run, 1)
    return run_ranks(run, n, one)[0]
""",
    },
    "sixteen_bits/scaler": {
        "as torch does it": """
class MyScaler:
    def __init__(self, scale, every):
        self.real = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=every)
        self.scale = self.real.scale
    def step(self, optimizer):
        self.real.step(optimizer)
        self.real.update()
""",
        "one long vector": changed(
            "sixteen_bits/scaler",
            DIVIDE="grad.mul_(1 / self.factor)",
            FINE="torch.cat([grad.flatten() for grad in grads]).isfinite().all()",
        ),
    },
}
