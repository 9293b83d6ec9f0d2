"""Two exercises of lesson 10: which rows a rank sees, and the accuracy over all.

    sampler, evaluate    run an answer
    EXERCISES            with what is drawn, and what is right
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler

from manual_dp.school.exercise import (
    WAITED,
    Exercise,
    about,
    close,
    each,
    failed,
    so_many,
    unequal,
)
from manual_dp.school.tools.linear import draw_batch, draw_layer, linear
from manual_dp.school.tools.plain import numbers, plainly, random_numbers, tensor
from manual_dp.school.tools.ranks import attempt

SECONDS = 10  # that all ranks have: plenty, unless they wait for one another
NO_EVAL = ("the test runs in training mode: dropout would be on, and batch norm takes "
           "in the test's rows. Begin with model.eval()")


def sampler(case, indices):
    """Ask for the rows of every rank; note if torch's own generator begins anew."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**40)  # which no answer asks for
        rows = [plainly(indices(case["length"], case["world_size"], rank, case["epoch"],
                                case["seed"])) for rank in range(case["world_size"])]
        return {"rows": rows, "seeded": torch.initial_seed() != 2**40}


def _draw_sampler(random):
    for length, world_size in (10, 4), (7, 3), (12, 3), (2, 5), (5, 1):
        yield {"length": length, "world_size": world_size,
               "epoch": random.randint(2, 9), "seed": random.randint(10, 999)}


def _judge_sampler(case, got):
    length, k, epoch, seed = (case[name] for name in
                              ("length", "world_size", "epoch", "seed"))
    rows, got, seeded = -(-length // k), got["rows"], got["seeded"]

    def order(seed):
        return torch.randperm(
            length, generator=torch.Generator().manual_seed(seed)).tolist()

    def dealt(order, places=range(k)):
        order = (order * k)[:rows * k]
        return [order[place::k] for place in places]
    wanted = []
    for rank in range(k):
        own = DistributedSampler(range(length), k, rank, seed=seed)
        own.set_epoch(epoch)
        wanted.append(list(own))
    right, whole = order(seed + epoch), length // k * k
    filled = (right * k)[:rows * k]
    say = about(f"length {length}, world_size {k}, epoch {epoch}, seed {seed}")
    yield say(f"the rows of rank{'s' * (k > 1)} {', '.join(map(str, range(k)))}", got,
              wanted, [
        ("the order is the same in each epoch: torch's seed for an epoch is "
         "seed + epoch", dealt(order(seed))),
        ("the seed is left out: torch's seed for an epoch is seed + epoch",
         dealt(order(epoch))),
        ("torch's seed for an epoch is seed + epoch", dealt(order(seed * epoch))),
        ("nothing is shuffled", dealt(list(range(length)))),
        ("every rank has all rows: its own are every world_size-th", [right] * k),
        ("every rank has all rows: its own are every world_size-th", [filled] * k),
        ("this is a block of neighbouring places for each rank: take every "
         "world_size-th place, from place `rank` on",
         [filled[rank * rows:][:rows] for rank in range(k)]),
        ("some ranks have fewer rows: the order is filled up first, from its own start",
         [right[rank::k] for rank in range(k)]),
        ("the tail is dropped: drop_last is False, so the order is filled up",
         [right[:whole][rank::k] for rank in range(k)]),
        ("each rank draws an order of its own: all must draw the same",
         [dealt(order(seed + epoch + rank))[rank] for rank in range(k)]),
        ("these are another rank's rows: rank r begins at place r",
         dealt(right, range(k)[::-1])),
        ("the right rows in another order", close(_sorted(got), _sorted(wanted))),
        ("the order is filled up from its own start",
         close([part[:length // k] for part in got],
               [part[:length // k] for part in wanted]))])
    yield say("was torch's own generator given a new seed?", seeded, False, [
        ("whatever draws next, such as dropout, would begin with the same numbers in "
         "each epoch: give randperm a generator of its own, "
         "torch.Generator().manual_seed(...)", True)])


def _sorted(rows):
    return [sorted(part) for part in rows]


def evaluate(case, evaluate):
    """Ask every rank for the accuracy, each with rows of its own, perhaps none."""
    def work():
        X, y = case["shards"][dist.get_rank()]
        X, y = tensor(X).view(-1, 3), tensor(y, torch.int64)
        model = _normed(case).train(case["training"])
        return {"accuracy": plainly(evaluate(model, X, y)),
                "mean": numbers(model[0].running_mean),
                "training": [module.training for module in model.modules()]}
    return attempt(work, len(case["shards"]), SECONDS)


def _normed(case):
    """Return a network whose scores in training mode are others."""
    norm = nn.BatchNorm1d(3, dtype=torch.float64)
    norm.running_mean.copy_(tensor(case["mean"]))
    return nn.Sequential(norm, linear(case["layer"]))


def _draw_evaluate(random):
    for sizes, training in ([5, 2], True), ([0, 6, 3], False):
        case = _draw_network(random, sizes)
        while sum(_count_right(case, True)) == sum(_count_right(case, False)):
            case = _draw_network(random, sizes)  # no mode may pass for the other
        yield case | {"training": training}


def _draw_network(random, sizes):
    case = {"layer": draw_layer(random), "mean": random_numbers(random, 3),
            "shards": []}
    for size in random.sample(sizes, len(sizes)):
        X, y = draw_batch(random, size)
        # so many are right: 1 of 5, 2 of 2; 1 of 6, 3 of 3
        right = 1 if size > 4 else size
        if size:
            best = _normed(case).eval()(tensor(X)).argmax(1).tolist()
            y = [(label + (i >= right)) % 4 for i, label in enumerate(best)]
        case["shards"].append((X, y))
    return case


def _judge_evaluate(case, got):
    k, training = len(case["shards"]), case["training"]
    sizes, right = [len(y) for _, y in case["shards"]], _count_right(case, False)
    mode = "training" if training else "evaluation"
    given = (f"{so_many(k, 'rank')} with {sizes} rows, of which {right} are given "
             f"their label; the model has batch norm, and is in {mode} mode")
    yield failed(given, got, "the accuracy over all rows, on every rank", [
        ("a rank can have no rows: divide once, by the rows of all ranks",
         "ZeroDivisionError"),
        ("all ranks must call the same collectives, also a rank with no rows", WAITED)])
    answer = sum(right) / sum(sizes)
    own = [r / max(1, n) for r, n in zip(right, sizes)]
    have, found = sum(n > 0 for n in sizes), each(got["ranks"], "accuracy")
    yield about(given)("batch norm's running mean on each rank after the test",
                       each(got["ranks"], "mean"), [case["mean"]] * k,
                       [(NO_EVAL, training)])
    yield about(given)("the accuracy on each rank", found, [answer] * k, [
        *((NO_EVAL, [sum(_count_right(case, True)) / sum(sizes)] * k)
          for _ in range(training)),
        ("every rank needs the answer: return it on all of them", None in found),
        ("every rank has the accuracy of its own rows: add up over ranks", own),
        *(("this is the mean of the ranks' accuracies: a row of a rank with few "
           "counts more. Add up how many are right, and how many rows there are",
           [sum(own) / count] * k) for count in (k, have)),
        ("the sum is that of all ranks, the number of rows is not",
         [sum(right) / max(1, n) for n in sizes]),
        ("this is how many are right: divide by the rows of all ranks",
         [sum(right)] * k),
        ("this is in percent: 1 is all", [100 * answer] * k),
        ("this is the part that is wrong", [1 - answer] * k),
        ("divided by the number of ranks: the rows of all have been added up",
         [answer / k] * k),
        ("a rank can have no rows: divide once, by the rows of all ranks",
         any(value != value for value in found)),
        ("only rank 0 has the sums: all_reduce gives them to all",
         close(found[0], answer, 1e-6) and unequal(found))], tolerance=1e-6)
    modes = each(got["ranks"], "training")
    yield about(given)("are the model, its batch norm and its linear layer in training "
                       "mode afterwards?", modes, [[training] * 3] * k, [
        ("model.training is the mode of the outermost module alone: model.train() sets "
         "that of all in it", training and modes[0][0]),
        ("dropout would stay off for the rest of training: after model.eval() say "
         "model.train()", training),
        ("it was in eval mode before: leave it there", True)])


def _count_right(case, training):
    """Return how many of each rank's rows the network, in this mode, has right."""
    model = _normed(case).train(training)
    return [int((model(tensor(X)).argmax(1) == tensor(y)).sum()) if y else 0
            for X, y in case["shards"]]


EXERCISES = [
    Exercise("10/sampler", 0, _draw_sampler, _judge_sampler, answers=("indices",)),
    Exercise("10/evaluate", 0, _draw_evaluate, _judge_evaluate, 20),
]
