"""Problem set 3, the test accuracy on all devices: counts, not means of means."""

import itertools

import torch

from manual_dp.lenet import lenet
from manual_dp.school.exercise import close, differ, flat, so_many
from manual_dp.school.ps3.epoch import tally
from manual_dp.school.ps3.run import network
from manual_dp.school.tools.images import images


def draw(random):
    """Draw minibatches that do not divide and labels of which some are right."""
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


def judge(case, got):
    """Judge the accuracy first, then who looked at which rows."""
    k, params, hits, least = case["world_size"], network(case["seed"]), [], 0
    for seed, y in case["data"]:
        scores = lenet(images(seed, len(y))[0], params)
        hits.append((scores.argmax(dim=1) == torch.tensor(y)).tolist())
        least += int((scores.argmin(dim=1) == torch.tensor(y)).sum())
    sizes, total, right = [len(part) for part in hits], len(flat(hits)), sum(flat(hits))
    who = f"minibatches of {', '.join(map(str, sizes))} rows, {so_many(k, 'device')}"
    accuracy, seen = got["accuracy"], got["seen"][:k]
    looked = tally(seen, total)
    twice = ("rows are counted more than once", bool(looked["more than once"]))
    never = ("rows are left out", bool(looked["never"]))
    yield differ(f"{who}; {right} of {total} rows are right", accuracy, right / total, [
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
    yield differ(f"{who}; rows that went through lenet with the replicas", looked,
                 {"more than once": [], "never": []}, [
        ("other weights than device_params were used", bool(got["seen"][k])),
        ("every device works on the whole minibatch",
         sum(map(len, got["seen"])) == k * total), never, twice])
    yield differ(f"{who}; rows that went through other weights", got["seen"][k], [])
    ends = itertools.accumulate(sizes)
    shares = [[sum(end - size <= row < end for row in rows) for rows in seen]
              for size, end in zip(sizes, ends)]
    most = [-(-size // k) for size in sizes]
    if any(max(share) > limit for share, limit in zip(shares, most)):
        yield differ(f"{who}; rows of each minibatch that each device worked on",
                     shares, f"at most {', '.join(map(str, most))} on one device",
                     [("one device does all the work", sum(map(bool, seen)) == 1),
                      ("each minibatch is to be cut over the devices", True)])


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
    shares = [sum(part) / len(part) for part in parts if part]
    return sum(shares) / len(shares)
