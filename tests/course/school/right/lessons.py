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
            "allreduce/reduce_scatter", ("(rank + 1) % n", "rank - 1"),
            PLACE="(rank + 1 + step)",
            WRITE="torch.add(chunks[peer][i], chunks[rank][i], out=chunks[peer][i])")},
    "allreduce/allgather": {
        "all send before any copies": changed(
            "allreduce/allgather", ("        for rank", "        sent = ["
            "own[(r - step) % n].clone() for r, own in enumerate(chunks)]\n        for rank"),
            WRITE="chunks[peer][i].copy_(sent[rank])"),
        "zeroed, then added": changed(
            "allreduce/allgather", WRITE="chunks[peer][i].zero_().add_(chunks[rank][i])")},
    "dataparallel/forward": {
        "torch's chunk, replicas called one by one": changed(
            "dataparallel/forward", SHARDS="X.chunk(len(devices))",
            CALLS="[f(shard.to(device)) for f, shard, device in zip("
                  "replicas, X_shards, devices)]",
            RESULT="torch.cat([output.to(devices[0]) for output in outputs])"),
        "torch.func, with parameters that are moved": """
from torch.func import functional_call
def forward(module, devices, X):
    import copy
    outputs = []
    for device, shard in zip(devices, scatter(X, devices)):
        if len(shard):
            params = {name: p.to(device) for name, p in module.named_parameters()}
            outputs.append(functional_call(copy.deepcopy(module), params, (shard,)))
    return gather(outputs, devices[0])
"""},
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
"""},
    "ddp/sampler": {
        "torch's own": """
from torch.utils.data import DistributedSampler
def indices(length, world_size, rank, epoch, seed):
    sampler = DistributedSampler(range(length), world_size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)
""",
        "by modulo, as a tensor": changed(
            "ddp/sampler", BEFORE="places = torch.arange(rank, length + world_size - 1, world_size)"
            "\n    return torch.tensor(order)[places[:-(-length // world_size)] % length]")},
    "predict_before_you_pay/seconds": {
        "the last of a sorted copy": changed(
            "predict_before_you_pay/seconds", MOST="sorted(step)[-1]"),
        "all alphas, then all bytes, as a tensor": changed(
            "predict_before_you_pay/seconds",
            RESULT="len(steps) * link.alpha + torch.tensor("
                   "[max(step) for step in steps]).double().sum() / link.bandwidth")},
    "the_clock/amdahl": {
        "one fraction": changed(
            "the_clock/amdahl", RESULT="world_size / (serial * world_size + 1 - serial)"),
        "exact fractions": """
from fractions import Fraction
def amdahl(serial, world_size):
    s = Fraction(serial)
    return 1 / (s + (1 - s) / world_size)
"""},
    "keep_only_a_part/zero_bytes": {
        "the paper's fractions": changed(
            "keep_only_a_part/zero_bytes", RESULT="params * ["
            "16, 4 + 12 / world_size, 2 + 14 / world_size, 16 / world_size][stage]"),
        "whole weights, rounded up": """
def zero_bytes(params, world_size, stage):
    share = -(-params // world_size)
    adam, gradients, weights = [share] * stage + [params] * (3 - stage)
    return 12 * adam + 2 * gradients + 2 * weights
"""},
    "many_machines/rows_to_go": {
        "a tensor's": changed(
            "many_machines/rows_to_go",
            ROWS="torch.tensor(left, dtype=torch.int64)[rank::world_size]"),
        "one slice, a tuple": changed(
            "many_machines/rows_to_go", ROWS="tuple(order[seen + rank::world_size])")},
}
