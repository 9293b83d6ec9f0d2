"""The exercise of lesson 10 in which a run goes on from its checkpoint.

    resume       run an answer
    EXERCISES    with what is drawn, and what is right
"""

import tempfile

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from manual_dp.ranks import save, snapshot
from manual_dp.school.exercise import WAITED, Exercise, about, each, failed
from manual_dp.school.tools.linear import draw_batch, draw_layer, gradients, linear
from manual_dp.school.tools.plain import batches, numbers, plainly, tensor
from manual_dp.school.tools.ranks import attempt

RANKS = 2     # that save a run and take it up
SECONDS = 20  # that all ranks have: optimizers import a compiler first


def resume(case, resume):
    """Save a run half-way, let the answer take it up with new models, and go on."""
    def work():
        model, optimizer = _begin(case, "first")
        LambdaLR(optimizer, lambda step: case["lr"] / case["first_lr"])
        _train(model, optimizer, case["before"])
        save(path, snapshot(model, optimizer, *case["place"]))
        model, optimizer = _begin(case, "second")
        returned = plainly(resume(path, model, optimizer))
        start, seen = numbers(list(model.parameters())), numbers(model.seen)
        return {"returned": returned, "start": start, "seen": seen,
                "after": _train(model, optimizer, case["after"])}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run.ckpt"
        return attempt(work, RANKS, SECONDS)


def _begin(case, which):
    model, lr = linear(case[which]), case["first_lr"]
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
               "first_lr": random.uniform(0.3, 0.5),
               "place": [random.randint(1, 4), random.randint(5, 9)],
               "before": [draw_batch(random, 4) for _ in range(3)],
               "after": [draw_batch(random, 4) for _ in range(2)]}


def _judge_resume(case, got):
    epoch, step = case["place"]
    momentum = " with momentum" * (case["optimizer"] == "SGD")
    given = (f"{RANKS} ranks, {case['optimizer']}{momentum}, made with lr "
             f"{case['first_lr']:.3f}, a schedule has brought it to {case['lr']:.3f}; "
             f"saved after three steps, at epoch {epoch}, step {step}")
    yield failed(given, got, "a run that goes on", [
        ("every rank reads the file: load is called on all of them", WAITED)])
    say, found, other = about(given), got["ranks"], case["first_lr"]
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


EXERCISES = [Exercise("10/resume", 0, _draw_resume, _judge_resume, 20)]
