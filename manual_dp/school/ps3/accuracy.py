"""Problem set 3, the test accuracy on all devices: counts, not means of means.

    draw, judge   of the exercise evaluate_accuracy
    devices       how many, in words
"""

from collections import Counter

import torch

from manual_dp.lenet import lenet
from manual_dp.school.exercise import close, differ
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
    sizes, total = [len(part) for part in hits], sum(map(len, hits))
    right = sum(map(sum, hits))
    who = f"minibatches of {', '.join(map(str, sizes))} rows, {devices(k)}"
    accuracy = got["accuracy"]
    return differ(
        f"{who}; {right} of {total} rows are right", accuracy, right / total,
        [("the accuracy of no rows is 0 / 0: add counts, and divide once",
          isinstance(accuracy, float) and accuracy != accuracy),
         ("this is the count: divide by all rows", right),
         ("these are percent", 100 * right / total),
         ("this is the share of wrong rows", 1 - right / total),
         ("the last minibatch is left out",
          sum(map(sum, hits[:-1])) / sum(sizes[:-1])),
         ("rows are counted more than once", bool(_looked(got, k, total)[0])),
         ("rows are left out", bool(_looked(got, k, total)[1])),
         ("this is the last minibatch's accuracy: count over all of them",
          sum(hits[-1]) / sizes[-1]),
         *((f"this is the mean {of}: rows of small ones count more. Add counts, and "
            "divide once", value) for of, value in _means(hits, k)),
         *((f"only device 0's {what}: add the counts of all devices", value)
           for what, value in _alone(hits, k)),
         ("this takes the digit with the lowest score; argmax finds the highest",
          least / total),
         ("nothing is returned", accuracy is None),
         ("this is rounded", close(accuracy, right / total, 0.005))],
        tolerance=1e-6) or _judge_seen(who, k, sizes, got)


def devices(k):
    """Say how many devices there are."""
    return f"{k} device{'s' * (k > 1)}"


def _looked(got, k, total):
    """Return the rows that the replicas worked on more than once, and never."""
    counts = Counter(row for rows in got["seen"][:k] for row in rows)
    return ([row for row in counts if counts[row] > 1],
            [row for row in range(total) if row not in counts])


def _ranks(hits, k):
    """Yield, for the two usual cuts, the hits and misses of each device."""
    for cut in (torch.tensor_split, torch.chunk):
        shards = [[part.tolist() for part in cut(torch.tensor(rows), k)]
                  for rows in hits]
        yield shards, [[hit for parts in shards for part in parts[rank:rank + 1]
                        for hit in part] for rank in range(k)]


def _means(hits, k):
    """Yield what may have been averaged instead, and the number that it gives."""
    def mean(parts):
        shares = [sum(part) / len(part) for part in parts if part]
        return sum(shares) / len(shares)
    yield "of the minibatches' accuracies", mean(hits)
    for shards, ranks in _ranks(hits, k):
        flat = [part for parts in shards for part in parts]
        yield "of the shards' accuracies", mean(flat)
        yield "of the shards' accuracies", sum(map(mean, shards)) / len(shards)
        yield ("of the shards' accuracies, empty ones taken for 0",
               sum(sum(part) / max(1, len(part)) for part in flat) / k / len(hits))
        yield "of the devices' accuracies", mean(ranks)


def _alone(hits, k):
    """Yield what device 0 alone would give."""
    for _, ranks in _ranks(hits, k):
        yield "hits are counted, over all rows", sum(ranks[0]) / sum(map(len, hits))
        yield "accuracy", sum(ranks[0]) / len(ranks[0])


def _judge_seen(who, k, sizes, got):
    twice, never = _looked(got, k, sum(sizes))
    problem = differ(
        f"{who}; rows that went through lenet with the replicas",
        {"more than once": twice, "never": never}, {"more than once": [], "never": []},
        [("other weights than device_params were used", bool(got["seen"][k])),
         ("every device works on the whole minibatch",
          sum(map(len, got["seen"])) == k * sum(sizes)),
         ("rows are left out", bool(never)),
         ("rows are counted more than once", bool(twice))])
    problem = problem or differ(f"{who}; rows that went through other weights",
                                got["seen"][k], [])
    if problem:
        return problem
    ends = [sum(sizes[:number + 1]) for number in range(len(sizes))]
    shares = [[sum(end - size <= row < end for row in rows) for rows in got["seen"][:k]]
              for size, end in zip(sizes, ends)]
    most = [-(-size // k) for size in sizes]
    if all(max(share) <= limit for share, limit in zip(shares, most)):
        return None
    return differ(f"{who}; rows of each minibatch that each device worked on", shares,
                  f"at most {', '.join(map(str, most))} on one device",
                  [("one device does all the work", len([r for r in got["seen"] if r])
                    == 1), ("each minibatch is to be cut over the devices", True)])
