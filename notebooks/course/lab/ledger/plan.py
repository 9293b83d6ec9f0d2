"""What all methods of methods.py share: weights, minibatches, a step, taking notes.

    Plan          what a run is told
    places        the devices of replicas in one process
    start         the initial weights
    minibatches   the minibatches
    sgd_step      a step of a module, by torch's own SGD
    alone         where one device would be after a step from the same weights
    follow        take the steps; keep weights and seconds

LeNet, float64, plain SGD. The same plan draws the same numbers in every process.
"""

import time
from collections import namedtuple
from statistics import median

import torch
from torch.nn import functional as F

from course.lab.same import apart, most
from manual_dp.devices import try_devices
from manual_dp.lenet import init_params, lenet

# rows: of a minibatch. shares: how many of them each rank has, over processes.
# device: where all ranks are, if they are to share one; None: as `try_devices` says.
Plan = namedtuple("Plan", "world_size steps rows shares seed lr device",
                  defaults=[None])


def places(plan, count):
    """List a device for each of `count` replicas in one process."""
    return try_devices(count) if plan.device is None else [plan.device] * count


def start(plan):
    """Draw the initial weights."""
    return init_params("he", torch.Generator().manual_seed(plan.seed), torch.float64)


def minibatches(plan):
    """Yield the minibatches (X, y)."""
    generator = torch.Generator().manual_seed(plan.seed)
    for _ in range(plan.steps):
        X = torch.rand(plan.rows, 1, 28, 28, dtype=torch.float64, generator=generator)
        yield X, torch.randint(10, (plan.rows,), generator=generator)


def sgd_step(net, plan, after_backward=None, factor=1):
    """Return a function of X and y that takes a step of torch's own plain SGD.

    The loss is factor * sum / plan.rows: a rank that holds a shard divides by the
    rows of the whole minibatch.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=plan.lr)

    def step(X, y):
        optimizer.zero_grad()
        total = F.cross_entropy(net(X), y, reduction="sum")
        (factor * total / plan.rows).backward()
        if after_backward:
            after_backward()
        optimizer.step()
    return step


def alone(params, X, y, lr):
    """Return where one device ends after one step from `params`, which stay as is."""
    params = [p.detach().clone().requires_grad_() for p in params]
    grads = torch.autograd.grad(F.cross_entropy(lenet(X, params), y), params)
    return [p.detach() - lr * grad for p, grad in zip(params, grads)]


def follow(plan, step, replicas, device):
    """Call `step(X, y)` on every minibatch; return weights and seconds, a dict.

    replicas: lists of parameters, which the steps change in place.
    "weights": step -> replicas, copies on the CPU, after steps 1, 10, 100 and the
    last. "seconds": the median over steps. "stepwise": over all steps, how far a
    replica ended from one device that took this step from the first replica's weights.
    """
    weights, seconds, stepwise = {}, [], []
    devices = {device, *(p.device for params in replicas for p in params)}
    for number, (X, y) in enumerate(minibatches(plan), 1):
        X, y = X.to(device), y.to(device)
        one = alone([p.to(device) for p in replicas[0]], X, y, plan.lr)
        begin = _clock(devices)
        step(X, y)
        seconds.append(_clock(devices) - begin)
        stepwise.append(most([apart(replica, one) for replica in replicas]))
        if number in (1, 10, 100, plan.steps):
            weights[number] = [[p.detach().to("cpu", copy=True) for p in params]
                               for params in replicas]
    return {"weights": weights, "seconds": median(seconds), "stepwise": most(stepwise)}


def _clock(devices):
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter()
