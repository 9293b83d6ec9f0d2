"""The situations of exercise 7.4: what may have become of a model on several ranks.

    RIGHT, BUGS   the functions; the first line of each says what it does

Each is `change(model, rank, k)`, called on every rank. Before, weights and gradients
are equal, bit for bit. The last rank is `k - 1`.
"""

import torch


def nothing(model, rank, k):
    """Leave all as it is."""


def no_gradients(model, rank, k):
    """Have no gradients yet, on any rank."""
    for p in model.parameters():
        p.grad = None


def one_without_a_gradient(model, rank, k):
    """Have a parameter that no rank used."""
    list(model.parameters())[2].grad = None


def frozen(model, rank, k):
    """Have a frozen parameter."""
    first = next(model.parameters())
    first.grad = None
    first.requires_grad_(False)


def in_float32(model, rank, k):
    """Be in float32."""
    for p in model.parameters():
        p.grad = None
    model.float()


def huge(model, rank, k):
    """Have weights near the largest number, equal on all ranks."""
    for p in model.parameters():
        p.data.mul_(1e308)


def not_a_number(model, rank, k):
    """Have the same NaN on all ranks."""
    next(model.parameters()).data[0, 0] = torch.nan


def own_statistics(model, rank, k):
    """Have running statistics of each rank's own, as batch norm does."""
    for buffer in model.buffers():
        buffer += rank


def minus_zero(model, rank, k):
    """Have a weight of zero, which has a minus sign on the last rank."""
    next(model.parameters()).data[3, 4] = -0.0 if rank == k - 1 else 0.0


def last_bit(model, rank, k):
    """Change the last bit of one weight on rank 0."""
    weight = next(model.parameters()).data
    if rank == 0:
        weight[1, 2] = torch.nextafter(weight[1, 2], weight.new_tensor(9.0))


def exchanged(model, rank, k):
    """Exchange two weights on rank 1: their sum and their length stay."""
    weight = next(model.parameters()).data
    if rank == 1:
        weight[0, 0], weight[0, 1] = weight[0, 1].clone(), weight[0, 0].clone()


def opposite(model, rank, k):
    """Turn the sign of a parameter on rank 1: its length stays."""
    if rank == 1:
        list(model.parameters())[-2].data.neg_()


def rows_turned(model, rank, k):
    """Reverse the rows of a matrix on the last rank."""
    weight = list(model.parameters())[-2].data
    if rank == k - 1:
        weight.copy_(weight.flip(0))


def gradient_of_its_own(model, rank, k):
    """Have another gradient on the last rank."""
    if rank == k - 1:
        list(model.parameters())[1].grad[0] += 0.1


def gradient_missing(model, rank, k):
    """Have no gradient for one parameter on rank 1, and zeros on the others."""
    bias = list(model.parameters())[1]
    bias.grad = None if rank == 1 else torch.zeros_like(bias)


def gradients_exchanged(model, rank, k):
    """Exchange the gradients of two parameters on rank 0."""
    params = list(model.parameters())
    if rank == 0:
        params[1].grad, params[3].grad = params[3].grad, params[1].grad


def frozen_and_other(model, rank, k):
    """Have a frozen parameter that differs on the last rank."""
    first = next(model.parameters())
    first.grad = None
    first.requires_grad_(False)
    if rank == k - 1:
        first.data[0, 0] += 0.5


def around_the_mean(model, rank, k):
    """Move a weight on all ranks, so that the mean over ranks stays."""
    next(model.parameters()).data[2, 2] += 0.25 * (rank - (k - 1) / 2)


def nan_on_one(model, rank, k):
    """Have a NaN on the last rank alone."""
    if rank == k - 1:
        next(model.parameters()).data[0, 0] = torch.nan


def last_parameter(model, rank, k):
    """Have another last parameter on the last rank."""
    if rank == k - 1:
        list(model.parameters())[-1].data[-1] += 1e-3


RIGHT = [nothing, no_gradients, one_without_a_gradient, frozen, in_float32, huge,
         not_a_number, own_statistics]
BUGS = [minus_zero, last_bit, exchanged, opposite, rows_turned,
        gradient_of_its_own, gradient_missing, gradients_exchanged, frozen_and_other,
        around_the_mean, nan_on_one, last_parameter]
