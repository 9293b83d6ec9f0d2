"""The exercises of lesson 10: which rows a rank sees, its accuracy, how a run goes on.

    sampler, evaluate, resume    run an answer
    EXERCISES                    with what is drawn, and what is right
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

from manual_dp.ranks import save, snapshot
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
from manual_dp.school.tools.linear import draw_batch, draw_layer, gradients
from manual_dp.school.tools.plain import batches, numbers, plainly, tensor
from manual_dp.school.tools.ranks import attempt

RANKS = 2  # that save a run and take it up
SECONDS = 10  # that all ranks have: plenty, unless they wait for one another


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
        model = _layer(case["layer"]).train(case["training"])
        return {"accuracy": plainly(evaluate(model, X, y)), "training": model.training}
    return attempt(work, len(case["shards"]), SECONDS)


def _layer(params):
    model = nn.Linear(3, 4, dtype=torch.float64)
    model.load_state_dict(dict(zip(("weight", "bias"), map(tensor, params))))
    return model


def _draw_evaluate(random):
    for sizes in [5, 2], [0, 6, 3]:
        layer, shards = draw_layer(random), []
        for size in random.sample(sizes, len(sizes)):
            X, y = draw_batch(random, size)
            # so many are right: 1 of 5, 2 of 2; 1 of 6, 3 of 3
            right = 1 if size > 4 else size
            if size:
                best = F.linear(tensor(X), *map(tensor, layer)).argmax(1).tolist()
                y = [(label + (i >= right)) % 4 for i, label in enumerate(best)]
            shards.append((X, y))
        yield {"layer": layer, "shards": shards, "training": len(sizes) == 2}


def _judge_evaluate(case, got):
    model, k = _layer(case["layer"]), len(case["shards"])
    sizes = [len(y) for _, y in case["shards"]]
    right = [sum(model(tensor(X)).argmax(1).tolist()[i] == label
                 for i, label in enumerate(y)) if y else 0 for X, y in case["shards"]]
    given = (f"{so_many(k, 'rank')} with {sizes} rows, of which {right} are given "
             "their label")
    yield failed(given, got, "the accuracy over all rows, on every rank", [
        ("a rank can have no rows: divide once, by the rows of all ranks",
         "ZeroDivisionError"),
        ("all ranks must call the same collectives, also a rank with no rows", WAITED)])
    answer = sum(right) / sum(sizes)
    own = [r / max(1, n) for r, n in zip(right, sizes)]
    have, found = sum(n > 0 for n in sizes), each(got["ranks"], "accuracy")
    yield about(given)("the accuracy on each rank", found, [answer] * k, [
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
    yield about(given)("is the model in training mode afterwards?",
                       each(got["ranks"], "training"), [case["training"]] * k, [
        ("dropout would stay off for the rest of training: after model.eval() say "
         "model.train()", case["training"]),
        ("it was in eval mode before: leave it there", True)])


def resume(case, resume):
    """Save a run half-way, let the answer take it up with new models, and go on."""
    def work():
        model, optimizer = _begin(case, "first", case["lr"])
        _train(model, optimizer, case["before"])
        save(path, snapshot(model, optimizer, *case["place"]))
        model, optimizer = _begin(case, "second", case["other_lr"])
        returned = plainly(resume(path, model, optimizer))
        start, seen = numbers(list(model.parameters())), numbers(model.seen)
        return {"returned": returned, "start": start, "seen": seen,
                "after": _train(model, optimizer, case["after"])}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.ckpt"
        return attempt(work, RANKS, 2 * SECONDS)  # optimizers import a compiler first


def _begin(case, which, lr):
    model = _layer(case[which])
    model.register_buffer("seen", tensor(case["seen"][which]))
    if case["optimizer"] == "Adam":
        return model, torch.optim.Adam(model.parameters(), lr=lr)
    return model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def _train(model, optimizer, pairs):
    """Take a step for each minibatch; return the weights after each."""
    steps = []
    for X, y in batches(pairs):
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()
        steps.append(numbers(list(model.parameters())))
    return steps


def _draw_resume(random):
    for optimizer in "SGD", "Adam":
        yield {"optimizer": optimizer, "first": draw_layer(random),
               "second": draw_layer(random),
               "seen": {"first": random.uniform(5, 9), "second": 0.0},
               "lr": random.uniform(0.1, 0.2),
               "other_lr": random.uniform(0.3, 0.5),
               "place": [random.randint(1, 4), random.randint(5, 9)],
               "before": [draw_batch(random, 4) for _ in range(3)],
               "after": [draw_batch(random, 4) for _ in range(2)]}


def _judge_resume(case, got):
    epoch, step = case["place"]
    momentum = " with momentum" * (case["optimizer"] == "SGD")
    given = (f"{RANKS} ranks, {case['optimizer']}{momentum}, lr {case['lr']:.3f}; "
             f"saved after three steps, at epoch {epoch}, step {step}")
    yield failed(given, got, "a run that goes on", [
        ("every rank reads the file: load is called on all of them", WAITED)])
    say, found, other = about(given), got["ranks"], case["other_lr"]
    start, after = _by_hand(case)
    yield say("weight and bias on each rank after resume", each(found, "start"),
              [start] * RANKS, [
        ("these are the new model's own weights: write the saved ones into the model "
         "that was handed over", [case["second"]] * RANKS),
        ("resume does not train: it puts back what the file holds", True)])
    yield say("the model's buffer `seen` on each rank after resume",
              each(found, "seen"), [case["seen"]["first"]] * RANKS, [
        ("a state dict holds buffers beside the weights, such as batch norm's running "
         "mean: put all of it back, with load_state_dict", True)])
    yield say("weight and bias on each rank after each of two more steps",
              each(found, "after"), after, [
        *(("the optimizer begins anew: put its state back too, into the optimizer that "
           "was handed over", _by_hand(case, lr, state=False)[1])
          for lr in (case["lr"], other)),
        (f"the learning rate is the new optimizer's, {other:.3f}: it is a part of what "
         "was saved", _by_hand(case, other)[1])])
    returned = each(found, "returned")
    yield say("what resume returned on each rank", returned, [[epoch, step]] * RANKS, [
        ("return where the run is: epoch and step, as the file has them",
         None in returned),
        ("epoch first, then step", [[step, epoch]] * RANKS),
        ("the file already names the step that comes next",
         [[epoch, step + 1]] * RANKS),
        (f"the run goes on where the file says, at epoch {epoch}, step {step}", True)])


def _by_hand(case, later_lr=None, state=True):
    """Return the weights when the run is saved, and on all ranks after each later step.

    later_lr: the rate from then on, if it is another. state: is the optimizer's kept?
    """
    rule = {"SGD": _sgd, "Adam": _adam}[case["optimizer"]]

    def train(params, memory, pairs, lr):
        after = []
        for batch in pairs:
            params, memory = zip(*(
                rule(p, grad, lr, *kept) for p, grad, kept in
                zip(params, gradients(params, [batch]), memory)))
            after.append(numbers(params))
        return params, memory, after
    params = [tensor(lists) for lists in case["first"]]
    fresh = [(0 * p, 0 * p, 0) for p in params]
    params, memory, (*_, start) = train(params, fresh, case["before"], case["lr"])
    *_, after = train(params, memory if state else fresh, case["after"],
                      later_lr or case["lr"])
    return start, [after] * RANKS


def _sgd(p, grad, lr, momentum, *unused):
    momentum = 0.9 * momentum + grad
    return p - lr * momentum, (momentum, *unused)


def _adam(p, grad, lr, mean, square, steps):
    mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
    steps += 1
    ratio = mean / (1 - 0.9**steps) / ((square / (1 - 0.999**steps)).sqrt() + 1e-8)
    return p - lr * ratio, (mean, square, steps)


EXERCISES = [
    Exercise("10/sampler", 0, _draw_sampler, _judge_sampler, answers=("indices",)),
    Exercise("10/evaluate", 0, _draw_evaluate, _judge_evaluate, 20),
    Exercise("10/resume", 0, _draw_resume, _judge_resume, 20),
]
