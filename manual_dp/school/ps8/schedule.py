"""Lightning: what is drawn, and what would be right.

    draw_lit, judge_lit              training with a learner's module
    draw_schedules, judge_schedules  how many steps a schedule has

The truth of a training is the loop by hand, with the whole minibatch in one process.
"""

from itertools import combinations

import torch
from torch.nn import functional as F

from manual_dp.lenet import lenet
from manual_dp.school.exercise import about, close, each, failed
from manual_dp.school.ps8.trainer import first_weights, in_short
from manual_dp.school.tools.images import images


def draw_lit(random):
    """Draw one training in this process, and one on two ranks with unequal rows."""
    for world_size in (1, 2):
        case = {"world_size": world_size, "lr": random.uniform(0.05, 0.2), "rows": 8,
                "batch_size": 4, "test_rows": 19 if world_size == 2 else 14,
                "epochs": 2}
        while True:
            case["seed"] = random.randrange(10 ** 6)
            right, wrong = _accuracies(case, train(case)[0])
            made = [[right] * world_size, *wrong.values()]
            if all(abs(one - other) > 1e-3 for pair in combinations(made, 2)
                   for one, other in zip(*pair)):
                break  # the mistakes would show
        yield case


def _accuracies(case, params):
    """Return the share of right answers, and what mistakes make of it on each rank."""
    k, n = case["world_size"], case["test_rows"]
    X, y = images(case["seed"], n)
    with torch.no_grad():
        right = (lenet(X, params).argmax(1) == y).double()
    own = [right[rank::k] for rank in range(k)]
    means = [[rows.mean() for rows in part.split(case["batch_size"] // k)]
             for part in own]
    share, shares = right.mean().item(), [part.mean().item() for part in own]
    wrong = {"batches": [sum(map(sum, means)).item() / k / len(means[0])] * k}
    if k > 1:
        wrong |= {"own": shares, "ranks": [sum(shares) / k] * k,
                  "rounded": [share * n / k / (n // k)] * k}
    return share, wrong


def train(case, reduction="mean", lr=None, factor=1, optimizer=torch.optim.SGD,
          twice=False):
    """Train by hand; return weights and the last epoch's losses.

    The arguments are mistakes.
    """
    params = [p.requires_grad_() for p in first_weights(case["seed"])]
    rule = optimizer(params, lr=case["lr"] if lr is None else lr)
    X, y = images(case["seed"], case["rows"])
    for _ in range(case["epochs"]):
        losses = []
        for rows in torch.arange(case["rows"]).split(case["batch_size"]):
            for _ in range(1 + twice):
                rule.zero_grad()
                loss = F.cross_entropy(lenet(X[rows], params), y[rows],
                                       reduction=reduction)
                (loss * factor).backward()
                rule.step()
            losses.append(loss.item())
    return params, losses


def judge_lit(case, got):
    """Compare weights with those by hand, then what was logged."""
    k = case["world_size"]
    given = (f"{k} process{'es' * (k > 1)} with {case['batch_size'] // k} rows each a "
             f"step, lr {case['lr']:.3f}")
    yield failed(given, got, "weights as by hand", [
        ("configure_optimizers needs parameters: keep them in an nn.ParameterList",
         "empty parameter list"),
        ("Lightning steps with what training_step returns: a tensor with a graph",
         "Misconfiguration|closure")])
    ranks, say = got["ranks"], about(given)
    params, losses = train(case)
    weights = each(ranks, "weights")
    yield say("a sum of each weight on each rank", weights, [in_short(params)] * k, [
        (text, [in_short(made)] * k) for text, made in _mistakes(case, k)])
    yield say("the tensors that were handed over, afterwards", each(ranks, "given"),
              [in_short(first_weights(case["seed"]))] * k, [
        ("copy them: p.detach().clone()", True)])
    logged, mean = each(ranks, "train_loss"), sum(losses) / len(losses)
    of_epoch = close(logged, [mean] * k, 1e-6)  # on_epoch=True averages over steps, too
    yield say("the last logged train_loss", logged,
              [mean if of_epoch else losses[-1]] * k, [
        ("nothing is logged under this name: self.log(\"train_loss\", loss, ...)",
         [None] * k),
        ("every rank logs the loss of its own rows: say sync_dist=True", k > 1)],
        tolerance=1e-6)
    yield from _judge_accuracy(case, say, params, each(ranks, "val_acc"))


def _mistakes(case, k):
    yield ("nothing has moved: training_step returns the loss",
           first_weights(case["seed"]))
    yield ("the loss is summed over rows: the mean is wanted, which does not grow "
           "with them", train(case, "sum")[0])
    if k > 1:
        yield (f"the step is {k} times too large: DDP takes the mean over ranks, and "
               "each rank's loss is a mean: leave the rate", train(case, factor=k)[0])
        yield f"the step is {k} times too small", train(case, factor=1 / k)[0]
        yield ("the sum of each rank's rows", train(case, "sum", factor=1 / k)[0])
    yield ("each batch takes two steps: Lightning calls backward and step itself",
           train(case, twice=True)[0])
    for lr in (0.01, 0.1, 0.001):
        yield "the rate is the one that is handed over", train(case, lr=lr)[0]
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        yield "plain SGD is wanted", train(case, optimizer=kind)[0]


def _judge_accuracy(case, say, params, got):
    k, n = case["world_size"], case["test_rows"]
    right, wrong = _accuracies(case, params)
    yield say(f"val_acc, of the {n} rows of all ranks", got, [right] * k, [
        ("nothing is logged under this name: self.log(\"val_acc\", ...)", [None] * k),
        ("this is the mean of the batches' means, and some have fewer rows: count "
         "right answers and rows", wrong["batches"]),
        ("every rank has the accuracy of its own rows: count those of all ranks",
         wrong.get("own", False)),
        ("this is the mean of the ranks' shares, and one rank has fewer rows: count "
         "right answers and rows of all ranks", wrong.get("ranks", False)),
        ("sync_dist takes the mean of the ranks' numbers of rows, and rounds it down: "
         "count right answers and rows of all ranks, as torchmetrics does",
         wrong.get("rounded", False)),
        ("this is the number of right answers, not their share", [right * n] * k)],
        tolerance=1e-6)


def draw_schedules(random):
    """Draw rows, batch_size, world_size, accumulate, epochs."""
    yield {"schedules": [[50_000, 128, 1, 1, 90], [50_000, 128, 4, 1, 90],
                         [10, 8, 4, 3, 2], [1001, 10, 2, 4, 3], [3, 5, 4, 2, 7]]}
    for _ in range(3):
        yield {"schedules": [[random.randint(50, 5000), random.randint(8, 64),
                              random.randint(2, 8), random.randint(2, 5),
                              random.randint(2, 9)] for _ in range(4)]}


def judge_schedules(case, got):
    """Compare all counts at once."""
    def steps(count):
        return [count(*schedule) for schedule in case["schedules"]]

    def right(n, b, k, a, e):
        return _up(_up(_up(n, k), b), a) * e
    yield about(f"(rows, batch_size, world_size, accumulate, epochs) = "
                f"{case['schedules']}")("the steps", got, steps(right), [
        ("batch_size is that of each rank: a step takes world_size times as many rows",
         steps(lambda n, b, k, a, e: _up(_up(n, b), a) * e)),
        ("these are batches: with accumulation a step takes several",
         steps(lambda n, b, k, a, e: _up(_up(n, k), b) * e)),
        ("the last batch of an epoch counts too, although it is smaller, and so does a "
         "last step with fewer batches: round up, not down",
         steps(lambda n, b, k, a, e: n // k // b // a * e)),
        ("the last step of an epoch has fewer batches, but it is a step: round up",
         steps(lambda n, b, k, a, e: _up(_up(n, k), b) // a * e)),
        ("the last batch of an epoch is smaller, but it counts: round up",
         steps(lambda n, b, k, a, e: _up(n // k // b, a) * e)),
        ("a step ends with the epoch: batches that are left over do not wait for the "
         "next one", steps(lambda n, b, k, a, e: _up(_up(_up(n, k), b) * e, a))),
        ("batches do not go on into the next epoch",
         steps(lambda n, b, k, a, e: _up(n * e, b * k * a))),
        ("these are the steps of one epoch",
         steps(lambda n, b, k, a, e: right(n, b, k, a, 1)))])


def _up(n, d):
    return -(-n // d)
