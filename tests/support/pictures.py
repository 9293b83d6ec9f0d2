"""Every picture of the course that is an SVG, at the ends of what its lesson allows.

Run as a file, it prints what each one's bytes come to, for a test in another process.
"""

import hashlib

from manual_dp import allreduce, ring_allreduce, tree_allreduce
from manual_dp.lab import replay
from manual_dp.lab.figures import (
    buckets,
    budget,
    clock,
    memory,
    messages,
    pipeline,
    player,
    sampler,
    shards,
    split,
    step,
    timeline,
    traffic,
    turns,
    weights,
)
from manual_dp.lab.timeline.pace import Pace
from manual_dp.lab.timeline.predict import predict
from manual_dp.lab.trace import Event
from manual_dp.lab.wire import Sent

TRAFFIC = {
    "by layer": [("activations", 102_400), ("their gradients", 102_400)],
    "inside a layer": [("conv 1", 432_640, "both"), ("scores", 640, 1),
                       ("gradients of the scores", 640, 0)],
    "by data": [("gradients", 1_032_544, 1), ("their sum", 1_032_544, 0)],
}


def schedule(stages, micro_batches, backward=True):
    """Return GPipe's schedule: all forward, then all backward."""
    slots = stages + micro_batches - 1
    return [(stage + i, stage, i + 1, "forward")
            for stage in range(stages) for i in range(micro_batches)] + [
        (slots + i + stages - 1 - stage, stage, i + 1, "backward")
        for stage in range(stages) for i in range(micro_batches) if backward]


def backward(layers, overlap):
    """Return a backward's events in ticks: a layer takes two, a bucket one."""
    events = [Event(2 * i + 2, "ready", f"layer {layers - i}.weight", i)
              for i in range(layers)] + [Event(2 * layers, "wait", "", None)]
    for i in range(layers):
        start = 2 * i + 2 if overlap else 2 * layers + i
        events += [Event(start, "start", "", i), Event(start + 1, "arrive", "", i)]
    end = max(event.time for event in events)
    return [*sorted(events, key=lambda event: event.time), Event(end, "end", "", None)]


def star(ranks):
    return [Sent(*way, "weights", 1_032_544) for rank in range(1, ranks)
            for way in ((0, rank), (rank, 0))]


def ring(ranks):
    return [Sent(rank, (rank + 1) % ranks, "chunk", 1_806_952) for rank in range(ranks)]


def pictures():
    """Return (name, picture) of each."""
    made = {"split": split.draw(TRAFFIC)}
    for n in range(2, 9):
        made[f"step of {n}"] = step.draw(n, 4)
    made["step of 8 rows"] = step.draw(8, 8)
    made["step of one row"] = step.draw(2, 1)
    for stages, micro_batches in ((1, 1), (2, 1), (4, 8), (8, 16)):
        name = f"pipeline {stages} {micro_batches}"
        made[name] = pipeline.draw(schedule(stages, micro_batches), stages)
    made["pipeline 8 32"] = pipeline.draw(schedule(8, 32), 8)
    made["pipeline forward"] = pipeline.draw(schedule(4, 1, False), 4)
    made["memory of 1"] = memory.draw({"get_params": [5]})
    made["memory of 4"] = memory.draw({"p.to(device)": [7] * 4, "get_params": [*range(4)]})
    made["memory of 8"] = memory.draw({"p.to(device)": [7] * 8, "get_params": [*range(8)],
                                       "pairs": [1, 1, 2, 2, 3, 3, 4, 4]})
    made["shards"] = shards.draw({
        "5 rows over 4": [2, 2, 1, 0], "2 rows over 8": [1, 1] + [0] * 6,
        "60 rows over 8": [8] * 7 + [4], "3 rows over 1": [3]})
    for sizes in ([3, 3, 3, 1], [2, 2, 1, 0], [1, 1], [8] * 7 + [2]):
        made[f"weights {sizes}"] = weights.draw(sizes)
    made["sampler"] = sampler.draw(
        {"epoch 0": [[4, 0], [1, 2]], "a seed a rank": [[0, 1, 3], [3, 2, 0]]}, 5)
    made["sampler of 6"] = sampler.draw({"one": [[i, i + 6] for i in range(6)]}, 12)
    for function in (allreduce, ring_allreduce, tree_allreduce):
        for n in range(2, 9):
            made[f"{function.__name__} {n}"] = player.play(function, n)
    for n in range(2, 9):
        made[f"race {n}"] = player.race([allreduce, ring_allreduce, tree_allreduce], n)
    for layers in (2, 4, 8):
        made[f"clock of {layers}"] = clock.draw(
            {"after backward": backward(layers, False), "during": backward(layers, True)},
            "ticks")
    sizes = [("b4", 10), ("W4", 1280), ("b3", 128), ("W3", 102_400), ("b2", 50),
             ("W2", 25_000), ("b1", 20), ("W1", 500)]
    made["buckets"] = buckets.draw({
        "cap 25 MiB": [sizes], "cap 0.05 MiB": [sizes[:4], sizes[4:]],
        "cap 0.001 MiB": [[size] for size in sizes]})
    for n in (2, 4, 8):
        made[f"traffic of {n}"] = traffic.draw({"a star": star(n), "a ring": ring(n)}, n)
        made[f"messages of {n}"] = messages.draw({
            "zeros": ([(e.source, e.target, 0) for e in ring(n)], [1] * n, [2] * n),
            "numbers": ([(e.source, e.target, i + 1) for i in range(n - 1)
                         for e in ring(n)], [1] * n, [n * (n + 1) / 2] * n)}, n)
    for workers, slow in ((4, 4), (4, 8), (8, 4), (8, 8)):
        paces, ticks = [1] * (workers - 1) + [slow], 4 * slow
        made[f"turns of {workers}, {slow}"] = turns.draw({
            "all wait": replay.together(paces, ticks),
            "nobody waits": replay.alone(paces, ticks)}, workers, ticks)
    for wire in (5, 8):
        pace = Pace(1, 1, 1, 1, wire)
        made[f"timeline, wire {wire}"] = timeline.draw({
            "one device, 4 rows": predict(pace, 1, 4),
            "two ranks, 2 rows each": predict(pace, 2, 2)}, "ticks")
    for n, slow in ((2, 2), (4, 4)):
        made[f"timeline of {n}, slow"] = timeline.draw({
            "equal ranks": predict(Pace(), n, 2),
            "the last one is slow": predict(Pace(), n, 2, slow={n - 1: slow})}, "ticks")
    made["timeline of buckets"] = timeline.draw(
        {"three": predict(Pace(1, 1, 2, 1, 6), 2, 3, 2, layers=3)}, "ticks")
    made["budget"] = budget.draw({
        "256 rows": {"weights": 516_272, "gradients": 516_272, "Adam": 1_032_544,
                     "kept for backward": 22_000_000},
        "8 times 32 rows": {"weights": 516_272, "gradients": 516_272, "Adam": 1_032_544,
                            "kept for backward": 2_800_000}})
    made["traffic, one row"] = traffic.draw({"a star": [], "a ring": ring(8)}, 8)
    return list(made.items())


if __name__ == "__main__":
    for name, picture in pictures():
        print(name, hashlib.sha256(picture.text.encode()).hexdigest())
