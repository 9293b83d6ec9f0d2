"""Problem set 3, batch, learning rate, evaluation: what is drawn, what would be right.

The shards of an epoch are in epoch.py.
"""

import math
from itertools import accumulate
from operator import itemgetter
from statistics import fmean

import torch

from manual_dp.lenet import lenet
from manual_dp.school.exercise import Exercise, about, close, differ, flat, so_many
from manual_dp.school.ps3 import epoch
from manual_dp.school.ps3.run import network
from manual_dp.school.sums import met
from manual_dp.school.tools.images import images

KEYS = ["batch_size", "lr", "rows", "steps"]


def _draw_plan(random):
    sizes = [(3, 64), (2, 2 * random.randint(4, 20) + 1), (1, random.randint(8, 40)),
             (4, 4 * random.randint(2, 10) + 1), (4, 5), (4, 3)]
    for world_size, batch_size in sizes:
        whole = batch_size * world_size
        for keep in ("batch", "shard"):
            # all minibatches are full, or one device's would be, or there is a rest
            rest = {3: 0, 64: batch_size}.get(batch_size, random.randint(1, whole - 1))
            yield {"examples": whole * random.randint(3, 30) + rest, "keep": keep,
                   "batch_size": batch_size, "world_size": world_size,
                   "lr": round(random.uniform(0.01, 0.5), 4)}


def _cut(rows, world_size):
    """Return the rows of each shard, as `split_batch` cuts them."""
    size = -(-rows // world_size)
    return [max(0, min(size, rows - rank * size)) for rank in range(world_size)]


def _judge_plan(case, got):
    n, b, k, lr, keep = itemgetter("examples", "batch_size", "world_size", "lr",
                                   "keep")(case)
    given = (f"{n} examples, batch_size {b} and lr {lr} on one device; "
             f"{so_many(k, 'device')}, keep={keep!r}")
    say = about(given)
    if not isinstance(got, dict) or sorted(got) != KEYS:
        yield differ(given, got, f"a dict with the keys {', '.join(KEYS)}", [
            ("nothing is returned", got is None),
            ("numbers without names: write them into a dict", isinstance(got, list))])
    stays = keep == "batch"
    rows, whole, new = (_cut(b, k), b, lr) if stays else ([b] * k, k * b, k * lr)
    listed = got["rows"] if isinstance(got["rows"], list) else []
    yield say("rows", got["rows"], rows, [
        ("batch_size // world_size loses rows: 64 over 3 would be 63",
         stays and [b // k] * k),
        ("this is keep='shard': each device takes batch_size rows", stays and [b] * k),
        ("this is keep='batch': the devices share batch_size rows",
         not stays and _cut(b, k)),
        ("all rows are there; cut them as split_batch does, shards of "
         "ceil(batch_size / world_size) rows until they run out, then empty ones",
         stays and sum(listed) == b),
        ("one number a device, in a list", not listed)])
    yield say("batch_size", got["batch_size"], whole, [
        ("each device's rows count", not stays and b),
        ("the devices share one device's minibatch", stays and k * b)])
    yield say("lr", got["lr"], new, [
        ("the minibatch is the one of a single device, so is its mean gradient: leave "
         "the rate", stays),
        ("one step takes the place of world_size steps: the linear rule multiplies the "
         "rate", lr),
        ("the square root is a rule for Adam; this is SGD", lr * k ** 0.5),
        ("the rate is not shared out: a larger minibatch gets a larger rate", lr / k)],
        tolerance=1e-6)  # it may be a float32
    yield say("steps", got["steps"], -(-n // whole), [
        ("the minibatch is larger now: fewer steps", not stays and -(-n // b)),
        ("the last minibatch may be short, and is a step too", n // whole),
        ("there is no step without rows: no rest, no short minibatch", n // whole + 1),
        ("rows go by minibatches, whoever works on them: do not divide again",
         -(-n // (whole * k))),
        ("rows go by minibatches, not by shards", -(-n // max(rows)))])


def _draw_rate(random):
    for world_size, warmup in [(3, 10), (2, 7), (1, 12), (4, random.randint(5, 20)),
                               (8, random.randint(21, 90)), (4, 0), (3, 1), (2, 2)]:
        steps = {0, 1, warmup // 2, warmup - 1, warmup, warmup + 1,
                 random.randint(2, warmup + 2), 5 * warmup + 3}
        yield {"base_lr": round(random.uniform(0.01, 0.2), 4), "world_size": world_size,
               "warmup_steps": warmup, "steps": sorted(steps - {-1})}


def _judge_rate(case, got):
    b, k, w, steps = itemgetter("base_lr", "world_size", "warmup_steps", "steps")(case)

    def ramp(start, end, reached=w, early=0):
        return [start + (end - start) * min(1, (step + early) / reached)
                if reached > 0 else end for step in steps]

    def jump(before):
        return w > 0 and [before(step / w) if step < w else k * b for step in steps]
    who = (f"base_lr {b}, world_size {k}, warmup_steps {w}; the rates at steps "
           f"{', '.join(map(str, steps))}")
    yield differ(who, got, ramp(b, k * b), [
        ("nothing is returned", [None] * len(steps)),
        ("warmup_steps=0 is no warm-up: k * base_lr from the first step on",
         isinstance(got, list) and "ZeroDivisionError" in got),
        ("step 0 takes base_lr, the rate that one device had; this starts at 0",
         ramp(0, k * b)),
        ("step 0 takes base_lr; this starts at 0 and is one step ahead",
         ramp(0, k * b, early=1)),
        ("this is one step ahead: the full rate is reached at warmup_steps, and "
         "step 0 takes base_lr", ramp(b, k * b, early=1)),
        ("this is one step early: the full rate is reached at step warmup_steps, not "
         "before", ramp(b, k * b, w - 1)),
        ("this is one step late: step warmup_steps has the full rate",
         ramp(b, k * b, w + 1)),
        ("there is no warm-up: this is k * base_lr at once", ramp(k * b, k * b)),
        ("this waits until the end of the warm-up; the rate rises at every step",
         jump(lambda part: b)),
        ("nothing is scaled: this is base_lr for ever", ramp(b, b)),
        ("base_lr is what one device had: multiply by world_size, divide by nothing",
         ramp(b, b / k)),
        ("step 0 takes base_lr, the rate that one device had, and not a share of it",
         ramp(b / k, b)),
        ("this ends at the square root, a rule for Adam; k * base_lr is wanted",
         ramp(b, b * math.sqrt(k))),
        ("this ends at base_lr + k * base_lr", ramp(b, b + k * b)),
        ("from base_lr to k * base_lr it is k - 1 times base_lr; this overshoots",
         jump(lambda part: b + k * b * part)),
        ("it goes on growing after warmup_steps",
         w > 0 and [b + (k * b - b) * step / w for step in steps]),
        ("each step multiplies the rate; a straight line adds the same at each step",
         [b * k ** (min(1, step / w) if w else 1) for step in steps]),
        ("the warm-up ramps to base_lr, then jumps", jump(lambda part: b * part))],
        tolerance=1e-6)  # torch.linspace gives float32


def _draw_accuracy(random):
    full = random.randint(2, 3)
    for world_size, sizes in [(4, (full + 8, full + 8, 2)), (2, (7, 7, 3)), (4, (9, 3)),
                              (1, (8, 8, 3)), (3, (8, 8, 1)), (3, (4, 7, 5))]:
        case = {"seed": random.getrandbits(32), "world_size": world_size, "data": []}
        params = network(case["seed"])
        for number, rows in enumerate(sizes):
            seed, last = random.getrandbits(32), number == len(sizes) - 1
            right = random.sample(range(rows), rows if last else rows // 3)
            y = lenet(images(seed, rows)[0], params).argmax(dim=1).tolist()
            case["data"].append((seed, [
                label if row in right else (label + random.randint(1, 9)) % 10
                for row, label in enumerate(y)]))
        yield case


def _judge_accuracy(case, got):
    k, params, hits, least = case["world_size"], network(case["seed"]), [], 0
    for seed, y in case["data"]:
        scores = lenet(images(seed, len(y))[0], params)
        hits.append((scores.argmax(dim=1) == torch.tensor(y)).tolist())
        least += int((scores.argmin(dim=1) == torch.tensor(y)).sum())
    sizes, total, right = [len(part) for part in hits], len(flat(hits)), sum(flat(hits))
    say = about(f"minibatches of {', '.join(map(str, sizes))} rows, "
                f"{so_many(k, 'device')}")
    accuracy, seen = got["accuracy"], got["seen"][:k]
    looked = epoch.tally(seen, total)
    twice = ("rows are counted more than once", bool(looked["more than once"]))
    never = ("rows are left out", bool(looked["never"]))
    yield say(f"{right} of {total} rows are right", accuracy, right / total, [
        ("the accuracy of no rows is 0 / 0: add counts, and divide once",
         isinstance(accuracy, float) and accuracy != accuracy),
        ("this is the count: divide by all rows", right),
        ("these are percent", 100 * right / total),
        ("this is the share of wrong rows", 1 - right / total),
        ("the last minibatch is left out", sum(flat(hits[:-1])) / sum(sizes[:-1])),
        twice, never,
        ("this is the last minibatch's accuracy: count over all of them",
         sum(hits[-1]) / sizes[-1]),
        *_parts(hits, k, total),
        ("this takes the digit with the lowest score; argmax finds the highest",
         least / total),
        ("nothing is returned", accuracy is None),
        ("this is rounded", close(accuracy, right / total, 0.005))], tolerance=1e-6)
    yield say("rows that went through lenet with the replicas", looked,
              {"more than once": [], "never": []}, [
        ("other weights than device_params were used", bool(got["seen"][k])),
        ("every device works on the whole minibatch",
         sum(map(len, got["seen"])) == k * total), never, twice])
    yield say("rows that went through other weights", got["seen"][k], [])
    ends = accumulate(sizes)
    shares = [[sum(end - size <= row < end for row in rows) for rows in seen]
              for size, end in zip(sizes, ends)]
    most = [-(-size // k) for size in sizes]
    if any(max(share) > limit for share, limit in zip(shares, most)):
        yield say("rows of each minibatch that each device worked on",
                  shares, f"at most {', '.join(map(str, most))} on one device",
                  [("one device does all the work", sum(map(bool, seen)) == 1),
                   ("each minibatch is to be cut over the devices", True)])
    yield met(got["together"])


def _parts(hits, k, total):
    """Yield hints: which shares may have been averaged instead, or taken alone."""
    for cut in (torch.tensor_split, torch.chunk):
        minibatches = [[part.tolist() for part in cut(torch.tensor(rows), k)]
                       for rows in hits]
        shards = [part for parts in minibatches for part in parts]
        ranks = [flat([parts[rank:rank + 1] for parts in minibatches])
                 for rank in range(k)]
        for of, value in [
                ("minibatches' accuracies", _mean(hits)),
                ("shards' accuracies", _mean(shards)),
                ("shards' accuracies", sum(map(_mean, minibatches)) / len(hits)),
                ("shards' accuracies, empty ones taken for 0",
                 sum(sum(part) / max(1, len(part)) for part in shards) / k / len(hits)),
                ("devices' accuracies", _mean(ranks))]:
            yield (f"this is the mean of the {of}: rows of small ones count more. Add "
                   "counts, and divide once", value)
        for what, rows in [("hits are counted, over all rows", total),
                           ("accuracy", len(ranks[0]))]:
            yield (f"only device 0's {what}: add the counts of all devices",
                   sum(ranks[0]) / rows)


def _mean(parts):
    return fmean(fmean(part) for part in parts if part)


EXERCISES = [
    Exercise("ps3/plan", 3, _draw_plan, _judge_plan),
    Exercise("ps3/learning_rate", 3, _draw_rate, _judge_rate),
    Exercise("ps3/shard_indices", 4, epoch.draw, epoch.judge),
    Exercise("ps3/evaluate_accuracy", 5, _draw_accuracy, _judge_accuracy),
]
WORDS = {"words": 6}  # points that a person gives, by grade id
