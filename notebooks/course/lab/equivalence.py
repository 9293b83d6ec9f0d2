"""Are two ways of training the same? A test step by step, and a control for long runs.

    stepwise   one step at a time, each from equal weights: only rounding is left
    apart      how far two replicas are apart, for weights of any size
    most       the largest of some numbers, NaN if one is NaN
    nudge      the control: the same start but for the last place of one weight

Rounding makes two correct runs differ in the last place after their first step. The
training then decides what becomes of that difference: a stable one keeps it small, and
one whose rate is too high multiplies it in every step. The control shows how fast: one
device beside itself, nudged. The stepwise test needs no control, at any rate.
"""

import torch

from manual_dp.params import get_params, largest_difference
from manual_dp.train import train_batch


def stepwise(X, y, params, devices, lr, steps=1, step=train_batch):
    """Train replicas; return the largest distance of one from a single device.

    At each step a single device starts from the weights of the last replica and takes
    the step alone; `apart` says how far each replica then is from it. X, y: the
    minibatch of every step. params: the weights before the first step, which stay as
    they are. step: what trains replicas, called as `train_batch` is; the single device
    is trained by `train_batch`.
    """
    replicas = [get_params(params, device) for device in devices]
    distances = [0.0]
    for _ in range(steps):
        one = get_params(replicas[-1], devices[0])
        train_batch(X, y, [one], devices[:1], lr)
        step(X, y, replicas, devices, lr)
        distances += [apart(replica, one) for replica in replicas]
    return most(distances)


def apart(params, others):
    """Return the largest difference, divided by the largest of `others` if that is > 1.

    Rounding is relative: among weights of 10,000 the last place is worth 2e-12.
    """
    largest = max(float(p.detach().abs().max()) for p in others)
    return largest_difference(params, others) / max(1.0, largest)


def most(numbers):
    """Return the largest; NaN if one is NaN, which `max` may overlook."""
    return float(torch.tensor(numbers, dtype=torch.float64).max())


def nudge(params):
    """Copy `params`, the largest number of the first moved to the next float."""
    params = [p.detach().clone() for p in params]
    first = params[0].view(-1)
    i = first.abs().argmax()
    first[i] = torch.nextafter(first[i], first[i].sign() * torch.inf)
    return params
