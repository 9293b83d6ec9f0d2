"""What problem set 4 compares with: one device, on minibatches that nobody split.

    draw      networks and uneven shards for 1, 2 and 3 ranks, five steps each
    alone     these steps on a single device, and what each rank's rows give
    begin     messages for ranks that do not start from rank 0's numbers
    weights   messages for weights that are not the single device's
    some      the message for a few of many numbers, from the first that is wrong
"""

import torch

from manual_dp.school.exercise import close, differ, each, so_many, times, unequal
from manual_dp.school.ps4.run import network, row_loss, state
from manual_dp.school.tools.plain import numbers, random_numbers, tensor

# whose rows pass the layer `side`, step by step: all, not rank 0's, nobody's, ...
UNEVEN = (lambda rank, last: True, lambda rank, last: rank > 0,
          lambda rank, last: False, lambda rank, last: rank == 0,
          lambda rank, last: rank < last)


def draw(random, spare=False, backwards=(1,) * 5, equal=False):
    """Yield a case for each world size.

    spare: some parameters have no gradient on some ranks, or on all. backwards: how
    many, step by step. equal: the ranks' networks are drawn from the same seed.
    """
    for world_size in (1, 2, 3):
        steps = []
        for passes, count in zip(UNEVEN if spare else UNEVEN[:1] * 5, backwards):
            rows = [random.sample(range(1, 6), world_size) for _ in range(count)]
            shards = [[_batch(random, part[rank], passes(rank, world_size - 1))
                       for part in rows] for rank in range(world_size)]
            steps.append({"shards": shards, "rows": sum(map(sum, rows))})
        seeds = random.sample(range(2**32), world_size)
        yield {"world_size": world_size, "lr": random.uniform(0.1, 0.2),
               "seeds": seeds[:1] * world_size if equal else seeds,
               "spare": spare, "steps": steps}


def _batch(random, rows, passes):
    X, y = random_numbers(random, rows, 5), random_numbers(random, rows, 2)
    for i, row in enumerate(X):
        row[0] = abs(row[0]) if passes and i == 0 else -abs(row[0])
    return X, y


def alone(case):
    """Yield for each step: the state before, each rank's gradients, the state after.

    The gradients: for each rank a list, with a dict of tensors for each backward.
    """
    module = network(case["seeds"][0], case["spare"])
    for step in case["steps"]:
        before, rows = state(module), step["rows"]
        own = [[_grads(module, X, y, rows, case["world_size"]) for X, y in shard]
               for shard in step["shards"]]
        X, y = (sum(lists, []) for lists in zip(*sum(step["shards"], [])))
        whole = _grads(module, X, y, rows, 1)
        with torch.no_grad():
            for name, p in module.named_parameters():
                p -= case["lr"] * whole[name].view(p.shape)
        yield before, own, state(module)


def _grads(module, X, y, rows, world_size):
    """Return flat gradients by the names that `state` uses, zeros for none."""
    grads = {name: torch.zeros(len(values), dtype=torch.float64)
             for name, values in state(module).items()}
    wanting = {name: p for name, p in module.named_parameters() if p.requires_grad}
    loss = row_loss(module, tensor(X), tensor(y), rows, world_size)
    found = torch.autograd.grad(loss, list(wanting.values()), materialize_grads=True)
    grads.update((name, grad.flatten()) for name, grad in zip(wanting, found))
    grads["again.weight"] = grads["middle.weight"]
    return grads


def begin(case, ranks, called):
    """Yield how networks after `called`, at the start, are not rank 0's."""
    k = case["world_size"]
    own = [state(network(seed, case["spare"])) for seed in case["seeds"]]
    buffers = [name for name, _ in network(0).named_buffers()]
    for name in sorted(own[0], key=buffers.__contains__):  # these last
        got = each(each(ranks, "start"), name)
        wanted, mine = own[0][name], [tensor(rank[name]) for rank in own]
        kind = ("buffers are sent too" if name in buffers else
                "frozen weights are sent too" if name == "frozen.weight" else
                "was it sent? And written into the parameter?")
        yield some(f"{so_many(k, 'rank')}; {name} on every rank after {called}", got,
                   [wanted] * k, [
            (f"every rank keeps its own: {kind}", mine),
            ("these are rank 1's; rank 0's are wanted", mine[1:2] * k),
            ("this is the mean; rank 0's are wanted", [sum(mine) / k] * k),
            ("this is the sum; rank 0's are wanted", [sum(mine)] * k),
            ("rank 0's own numbers must stay as they are", not close(got[0], wanted)),
            ("some ranks keep their own", True)])


def weights(case, number, ranks, truth):
    """Yield how the weights after step `number` are not right.

    ranks: what each rank returns for this step. truth: what `alone` yields.
    """
    before, own, after = truth
    k, lr, step = case["world_size"], case["lr"], case["steps"][number]
    rows = [sum(len(X) for X, _ in shard) for shard in step["shards"]]
    shuffled = all(close(_moved(before, rank["weights"]), _moved(before, after))
                   for rank in ranks)
    for name, wanted in after.items():
        parts = [[part[name] for part in shard] for shard in own]
        idle = [rank for rank, shard in enumerate(parts) if not sum(shard).any()]
        who = (f"{so_many(k, 'rank')} with {rows} rows, lr {lr:.3f}; {name} on "
               f"every rank after step {number + 1}")
        if name == "side.weight" and idle:
            who += f" (no gradient on rank {', '.join(map(str, idle))}: None)"
        mine, start = each(each(ranks, "weights"), name), tensor(before[name])
        yield some(who, mine, [wanted] * k, [
            ("the right numbers in the wrong places: cut a bucket into pieces in the "
             "order in which it was packed", shuffled),
            *((text, looks if isinstance(looks, bool) else
               [start - lr * grad for grad in looks] * (k // len(looks)))
              for text, looks in _misunderstood(mine, start, lr, parts, idle))])


def _moved(before, after):
    """Return by how much each number has moved, sorted."""
    return sorted(new - old for name in before
                  for new, old in zip(after[name], before[name]))


def _misunderstood(mine, start, lr, parts, idle):
    """Return hints: a text, and a truth value or the gradients that it would explain.

    parts: for each rank the gradients of its backwards, as `alone` yields them.
    """
    k, grads = len(parts), [sum(shard) for shard in parts]
    mean = sum(grads) / k
    last = sum(shard[-1] for shard in parts) / k
    moved = tensor(mine) - start
    factor = times(moved[0].tolist(), (-lr * mean).tolist())
    summed = (moved - (k - 1) * start).abs().sum(1) < moved.abs().sum(1) / 2
    return [
        ("what was added up in no_sync is lost", [last]),
        ("only the last backward's gradient is averaged: what each rank had added up "
         "before has to be, too", [last + sum(shard[:-1]) for shard in parts]),
        ("divided by the number of backwards: the loss has seen to that",
         [mean / len(parts[0])]),
        ("what was added up in no_sync was divided by 2", [(last + mean) / 2]),
        ("no row's loss depends on these numbers, and yet they have moved",
         len(idle) == k),
        ("nothing has moved", [0 * mean]),
        ("the parameter itself was summed over ranks; sum its gradient, p.grad",
         k > 1 and bool(summed.all())),
        ("p was averaged in place of p.grad", [start]),
        ("every number has moved by lr: only the sign is left", [mean.sign()]),
        ("every rank stepped with its own gradient: the mean must be in p.grad, where "
         "a hook is handed the parameter p", grads),
        ("the mean has to go to ranks that had no gradient, too",
         [0 * mean if rank in idle else mean for rank in range(k)]),
        ("ranks that had no gradient count in the mean, as zeros",
         [sum(grads) / max(1, k - len(idle))]),
        ("this is the sum over ranks; the mean is wanted", [mean * k]),
        ("divided by the number of ranks twice", [mean / k]),
        ("every rank has rank 0's gradient; the mean is wanted", grads[:1]),
        ("this is the largest of the ranks' numbers; the mean is wanted",
         [torch.stack(grads).max(dim=0).values]),
        ("the last rank is left out", [mean - grads[-1] / k]),
        ("the ranks differ: the same mean belongs on all", unequal(mine)),
        (f"the step is {factor:.4g} times as long as it should be: divide by the "
         "number of ranks, and by nothing else", factor == factor)]


def some(who, got, wanted, hints):
    """Compare lists of numbers, one a rank; show three of each, hint from them all."""
    wanted = numbers(wanted)
    if close(got, wanted):
        return None
    hints = [("these agree to five digits: was something rounded to float32?",
              close(got, wanted, 1e-5)), *hints]
    if [len(part) for part in got] != [len(part) for part in wanted]:
        return differ(who, got, wanted, hints)
    first = min(i for mine, right in zip(got, wanted) for i in range(len(right))
                if not close(mine[i], right[i]))
    cut = slice(first, first + 3)
    where = f", from its number {first + 1} of {len(wanted[0])} on" if first else ""
    return differ(who + where, [part[cut] for part in got],
                  [part[cut] for part in wanted], hints, whole=got)
