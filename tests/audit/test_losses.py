"""What a term of a loss counts is what backward brings, divided by the terms."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from manual_dp.audit.losses import hear
from manual_dp.audit.rules import divided

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
Y = torch.tensor([0, 1, 2, 0, -100, -100])


def heard(loss):
    """Return what is told of a loss: [(terms, each), ...]."""
    told = []
    with ExitStack() as stack:
        for patch in hear(lambda _, *one: told.append(one)):
            stack.enter_context(patch)
        loss().backward()
    return told


@pytest.mark.parametrize(
    "loss, terms",
    [
        (lambda: F.cross_entropy(X, Y), [(4, 1 / 4)]),
        (lambda: F.cross_entropy(X, Y, reduction="sum"), [(4, 1.0)]),
        (lambda: F.nll_loss(X, Y.clamp(0), ignore_index=0), [(2, 1 / 2)]),
        (lambda: F.mse_loss(X, torch.zeros(6, 3)) / 2, [(18, 1 / 36)]),
        (lambda: nn.CrossEntropyLoss()(X, torch.full((6, 3), 1 / 3)), [(6, 1 / 6)]),
        (
            lambda: nn.L1Loss()(X, torch.zeros(6, 3)) + F.mse_loss(X, torch.ones(6, 3)),
            [(18, 1 / 18)] * 2,
        ),
        (
            lambda: F.cross_entropy(X, Y.clamp(0), weight=torch.tensor([1.0, 2, 3])),
            [(9, 1 / 9)],
        ),
        (lambda: F.cross_entropy(X, Y, reduction="none").sum() / 3, [(4, 1 / 3)]),
        (  # a mask of the script's own
            lambda: F.mse_loss(X, 0 * X.detach(), reduction="none")[:2].sum() / 6,
            [(6, 1 / 6)],
        ),
        (  # weights of its own: not followed
            lambda: (
                F.mse_loss(X, 0 * X.detach(), reduction="none")[:2]
                .mul(torch.tensor([1.0, 2, 3]))
                .sum()
            ),
            [],
        ),
        (lambda: nn.BCEWithLogitsLoss()(X, torch.zeros(6, 3)), [(18, 1 / 18)]),
        (lambda: F.kl_div(X, X.detach().exp(), reduction="batchmean"), [()]),
        (lambda: X.square().mean(), []),
    ],
)
def test_a_term_counts_what_comes_back(loss, terms):
    told = [one for one in heard(loss) if one]
    terms = [one for one in terms if one]
    assert [n for n, _ in told] == [n for n, _ in terms]
    assert [each for _, each in told] == pytest.approx([each for _, each in terms])


def test_a_loss_of_which_a_script_takes_some_terms_has_another_name():
    names = []
    with ExitStack() as stack:
        for patch in hear(lambda name, *_: names.append(name)):
            stack.enter_context(patch)
        F.cross_entropy(X, Y, reduction="none").sum().backward()
        F.cross_entropy(X, Y, reduction="none").topk(2).values.mean().backward()
    assert names == ["cross_entropy", "cross_entropy, some of its terms"]


def test_losses_are_torchs_own_again():
    before = F.cross_entropy
    heard(lambda: F.cross_entropy(X, Y))
    assert F.cross_entropy is before


@pytest.mark.parametrize(
    "terms, c, code, why",
    [
        ([[(4, 0.25)], [(4, 0.25)]], [0.5, 0.5], None, ""),
        ([[(6, 0.1 / 0.6)], [(4, 0.25)]], [0.6, 0.4], None, ""),
        ([[(6, 1 / 6)], [(4, 0.25)]], [0.5, 0.5], "uneven-shards", ""),
        ([[(4, 0.5)], [(4, 0.5)]], [0.5, 0.5], None, "the loss counts 2 times"),
        ([[(4, 1)], [(4, 1)]], [0.5, 0.5], None, "a sum over 4 terms, not a mean"),
        (  # the hint "the world size" is for one loss alone
            [[(1, 1), (1, 1)]] * 2,
            [0.5, 0.5],
            None,
            "2 losses of a rank are added in a step",
        ),
        ([[(4, 1)], [(3, 1)]], [0.5, 0.5], None, "the loss counts 3.5 times"),
        ([[(6, 0.3)], [(4, 0.1)]], [0.5, 0.5], None, "do not count alike"),
        (
            [[], [(4, 0.5)]],
            [0.5, 0.5],
            None,
            "no loss of torch.nn.functional was heard",
        ),
        ([[(2, 0.25), (2, 0.25)], [(3, 0.25), (1, 0.25)]], [0.5, 0.5], None, ""),
    ],
)
def test_terms_count_alike_and_add_up_to_one(terms, c, code, why):
    found, said = divided(terms, c, 1e-5)
    assert (found and found.code) == code
    assert why in said and bool(why) == bool(said)
