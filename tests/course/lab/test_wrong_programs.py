"""programs/wrong_programs.py: a program's shares make the gradient that its ranks make."""

import torch
import torch.distributed as dist
from programs.wrong_programs import shares, small_blobs, small_unet

from manual_dp.models.segment import pixel_loss
from manual_dp.ranks import run_ranks

SIZES = [4, 4, 2]
COMBINED = {  # what a rank steps with: of the ranks' mean gradients, and their sizes
    "right": lambda means, n: sum(m * k for m, k in zip(means, n)) / sum(n),
    "not synchronised": lambda means, n: means[0],
    "sum for mean": lambda means, n: sum(means),
    "mean of means": lambda means, n: sum(means) / len(means),
    "last left out": lambda means, n: sum(
        m * k for m, k in zip(means[:-1], n)) / sum(n),
}


def gradient(net, X, y, share):
    grads = torch.autograd.grad(share @ pixel_loss(net(X), y), list(net.parameters()))
    return torch.cat([grad.flatten() for grad in grads])


def test_shares_make_the_gradient_that_three_ranks_make():
    (X, y), net = small_blobs(10), small_unet()

    def rank():
        me = dist.get_rank()
        mine = slice(sum(SIZES[:me]), sum(SIZES[:me + 1]))
        equal = torch.full([SIZES[me]], 1 / SIZES[me], dtype=torch.float64)
        return gradient(net, X[mine], y[mine], equal)
    means = run_ranks(rank, 3)
    for program, share in shares(SIZES).items():
        expected = COMBINED[program](means, SIZES)
        assert (gradient(net, X, y, share) - expected).abs().max() < 1e-10, program
    assert list(shares(SIZES)) == list(COMBINED)
