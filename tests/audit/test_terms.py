"""What the terms of a script's losses count is heard, and what loaders give is followed.

Each program trains for three steps on two ranks, with a loader and two uneven masks.
"""

from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit import watch
from manual_dp.audit.losses import Losses
from manual_dp.audit.records import Step
from manual_dp.ranks import run_ranks

ROWS = 24  # over two ranks, in minibatches of 4 rows


def data(rows=ROWS):
    """Return rows of 5 numbers, and words of which some are no words (-100)."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(rows, 5, generator=generator)
    words = torch.randint(3, (rows, 2), generator=generator)
    words[::3, 0] = -100  # a sampler without shuffling: more on one rank than on another
    words[4:12:2] = -100
    return TensorDataset(X, words)


class Net(nn.Module):
    """Say for each row which of three words come next, twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 6)

    def forward(self, X):
        return self.b(self.a(X).tanh()).view(-1, 2, 3)


def flat(y_hat, words):
    return y_hat.flatten(0, 1), words.flatten()


def all_of(number):
    """Return the sum of a number over all ranks."""
    total = torch.tensor(float(number))
    dist.all_reduce(total)
    return total.item()


def followed(minibatch, wrap=DistributedDataParallel, rows=ROWS, split=None, world_size=2,
             loader=True, **options):
    """Return rank 0's report on a training in which minibatch(model, X, y) goes back."""
    def rank():
        torch.manual_seed(0)
        model = wrap(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dataset = data(rows)
        sampler = DistributedSampler(dataset, shuffle=False)
        batches = DataLoader(dataset, 4, sampler=sampler)
        if not loader:
            mine = list(sampler)
            batches = [dataset[mine[i:i + 4]] for i in range(0, len(mine), 4)]
        seen = watch(model, optimizer, **options)
        for X, y in batches:
            optimizer.zero_grad()
            minibatch(model, X, y)
            optimizer.step()
        seen.finish()
        return seen.report and (
            [(f.code, f.says) for f in seen.report.findings], seen.report.unchecked,
            seen.report.remarks)
    return run_ranks(rank, world_size)[0]


def summed(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


# right ones

def the_rows_mean(model, X, y):
    F.mse_loss(model(X)[..., 0], X[:, :2]).backward()


def a_module_of_torchs(model, X, y):
    nn.BCEWithLogitsLoss()(model(X)[..., 0], (X[:, :2] > 0.5).float()).backward()


def sum_over_all_words_under_ddp(model, X, y):
    words = all_of((y >= 0).sum())
    loss = F.cross_entropy(*flat(model(X), y), reduction="sum")
    (loss * dist.get_world_size() / words).backward()


def each_mean_weighed_by_its_words(model, X, y):
    mine = (y >= 0).sum()
    loss = F.cross_entropy(*flat(model(X), y))
    (loss * mine * dist.get_world_size() / all_of(mine)).backward()


def losses_masked_by_hand(model, X, y):
    each = F.cross_entropy(*flat(model(X), y.clamp(min=0)), reduction="none")
    mask = (y >= 0).flatten().float()
    ((each * mask).sum() * dist.get_world_size() / all_of(mask.sum())).backward()


def classes_weighed_under_ddp(model, X, y):
    weight = torch.tensor([1.0, 2.0, 3.0])
    mine = weight[y[y >= 0]].sum()
    loss = F.cross_entropy(*flat(model(X), y), weight=weight)
    (loss * mine * dist.get_world_size() / all_of(mine)).backward()


def micro_batches(model, X, y):
    with model.no_sync():
        (F.mse_loss(model(X[:2])[..., 0], X[:2, :2]) / 2).backward()
    (F.mse_loss(model(X[2:])[..., 0], X[2:, :2]) / 2).backward()


def two_backwards_of_the_same_rows(model, X, y):
    for k in range(2):
        F.mse_loss(model(X)[..., k], X[:, 2 * k:2 * k + 2]).backward()


def micro_batches_that_are_all_reduced_and_add_up(model, X, y):
    for rows in X.split(2):
        F.mse_loss(model(rows)[..., 0], rows[:, :2]).backward()


def two_losses(model, X, y):
    y_hat = model(X)
    loss = F.mse_loss(y_hat[..., 0], X[:, :2])
    (loss + F.l1_loss(y_hat[..., 1], X[:, 2:4])).backward()


def a_sum_over_each_row(model, X, y):
    loss = F.binary_cross_entropy(model(X).sigmoid(), torch.full((len(X), 2, 3), 0.3),
                                  reduction="sum")
    (loss / len(X)).backward()


def divided_in_place(model, X, y):
    loss = F.mse_loss(model(X)[..., 0], X[:, :2])
    loss *= 4
    loss /= 4
    loss.backward()


def micro_batches_in_a_loop(model, X, y):
    for i in range(4):
        with nullcontext() if i == 3 else model.no_sync():
            y_hat = model(X[i:i + 1])
            (F.mse_loss(y_hat[..., 0], X[i:i + 1, :2]) / 4).backward()


RIGHT = [the_rows_mean, a_module_of_torchs, sum_over_all_words_under_ddp,
         each_mean_weighed_by_its_words, losses_masked_by_hand, classes_weighed_under_ddp,
         micro_batches, divided_in_place, two_losses, a_sum_over_each_row, micro_batches_in_a_loop]


@pytest.mark.parametrize("minibatch", RIGHT)
def test_a_right_script_is_clean(minibatch):
    assert followed(minibatch) == ([], [], [])


def in_micro_batches(model, X, y, loss):
    """Go back for two halves, of unequally many words; loss(y_hat, y, half)."""
    for half, part in enumerate((slice(2), slice(2, 4))):
        with nullcontext() if half else model.no_sync():
            loss(*flat(model(X[part]), y[part]), half).backward()


def micro_batches_of_all_ranks(model, X, y):
    def loss(y_hat, y, half):  # as one device would, with twice the rows
        each = F.cross_entropy(y_hat, y, reduction="sum")
        return each * dist.get_world_size() / all_of((y >= 0).sum()) / 2
    in_micro_batches(model, X, y, loss)


def test_micro_batches_that_one_device_would_weigh_alike_are_right():
    assert followed(micro_batches_of_all_ranks) == ([], [], [])


def test_micro_batches_with_words_of_a_rank_are_a_mean_of_means():
    def minibatch(model, X, y):
        mine = (y >= 0).sum()
        in_micro_batches(model, X, y, lambda y_hat, y, _: F.cross_entropy(
            y_hat, y, reduction="sum") / mine)
    [(code, says)], *_ = followed(minibatch)
    assert code == "uneven-shards" and "on ranks 0, 1, ..." in says


def test_a_loss_may_weigh_the_terms_of_one_forward_as_it_likes():
    def minibatch(model, X, y):
        y_hat = model(X)
        sum(F.cross_entropy(one, words.clamp(min=0)[:n]) if n == 2 else F.cross_entropy(
            one[:n], words.clamp(min=0)[:n]) for one, words, n in zip(
            y_hat, y, (1, 2, 1, 1 + dist.get_rank()))).div(len(X)).backward()
    found, [unchecked], _ = followed(minibatch)
    assert not found and unchecked.endswith("do not count alike")


def test_two_forwards_of_one_backward_are_reduced_once():
    def minibatch(model, X, y):
        F.mse_loss(torch.cat([model(X[:2]), model(X[2:])])[..., 0], X[:, :2]).backward()
    assert followed(minibatch) == ([], [], [])


class Adapted(nn.Module):
    """A frozen network with adapters of its own layers (LoRA), or of the last alone."""

    def __init__(self, bias=True, last=False):
        super().__init__()
        self.frozen = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 6, bias=bias)])
        self.frozen.requires_grad_(False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 7, bias=False)
        self.last = nn.Linear(7, 6, bias=False) if last else None

    def forward(self, X):
        inner, outer = self.frozen
        X = (inner(X) + 0.5 * self.up(self.down(X))).tanh()
        y_hat = outer(X) + 2 * self.last(X) if self.last else outer(X)
        return y_hat.view(-1, 2, 3)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"last": True}])
def test_adapters_of_frozen_layers_keep_rows_apart(options):
    def wrap(_):
        return DistributedDataParallel(Adapted(**options))
    assert followed(the_rows_mean, wrap) == ([], [], [])


def test_a_gradient_of_zeros_is_not_lost():
    def wrap(_):
        model = Adapted()
        nn.init.zeros_(model.up.weight)  # so nothing comes to model.down at first
        return DistributedDataParallel(model)
    assert followed(micro_batches, wrap) == ([], [], [])


def sum_over_all_rows_by_hand(model, X, y):
    loss = F.mse_loss(model(X)[..., 0], X[:, :2], reduction="sum")
    (loss / all_of(2 * len(X))).backward()
    summed(model)


def means_averaged_by_hand(model, X, y):
    F.mse_loss(model(X)[..., 0], X[:, :2]).backward()
    summed(model)
    for p in model.parameters():
        p.grad /= dist.get_world_size()


@pytest.mark.parametrize("minibatch", [sum_over_all_rows_by_hand, means_averaged_by_hand])
def test_sums_by_hand_are_right_where_the_loss_makes_up_for_it(minibatch):
    assert followed(minibatch, wrap=lambda model: model) == ([], [], [])


@pytest.mark.parametrize("minibatch", [the_rows_mean, micro_batches])
def test_three_ranks_and_rows_that_do_not_divide_are_a_remark(minibatch):
    found, unchecked, [remark] = followed(minibatch, rows=35, world_size=3)
    assert (found, unchecked) == ([], [])
    assert remark == ("35 rows over 3 ranks: the sampler gives 1 of them twice in an epoch, "
                      "or leaves the last 2 out (drop_last)")


# wrong ones

def words_of_a_rank(model, X, y):
    F.cross_entropy(*flat(model(X), y)).backward()


def words_of_a_rank_by_a_mask(model, X, y):
    each = F.cross_entropy(*flat(model(X), y.clamp(min=0)), reduction="none")
    mask = (y >= 0).flatten().float()
    ((each * mask).sum() / mask.sum()).backward()


def uneven_micro_batches(model, X, y):
    with model.no_sync():
        (F.mse_loss(model(X[:1])[..., 0], X[:1, :2]) / 2).backward()
    (F.mse_loss(model(X[1:])[..., 0], X[1:, :2]) / 2).backward()


def divided_by_the_ranks_too(model, X, y):
    (F.mse_loss(model(X)[..., 0], X[:, :2]) / dist.get_world_size()).backward()


def micro_batches_that_add_up(model, X, y):
    with model.no_sync():
        F.mse_loss(model(X[:2])[..., 0], X[:2, :2]).backward()
    F.mse_loss(model(X[2:])[..., 0], X[2:, :2]).backward()


def micro_batches_in_a_loop_that_add_up(model, X, y):
    for i in range(4):
        with nullcontext() if i == 3 else model.no_sync():
            y_hat = model(X[i:i + 1])
            F.mse_loss(y_hat[..., 0], X[i:i + 1, :2]).backward()


def two_backwards_of_one_forward(model, X, y):
    y_hat = model(X)
    F.mse_loss(y_hat[..., 0], X[:, :2]).backward(retain_graph=True)
    F.l1_loss(y_hat[..., 1], X[:, 2:4]).backward()  # DDP averages once a forward


@pytest.mark.parametrize("minibatch, code, says", [
    (two_backwards_of_one_forward, "not-synchronised", "micro-batch 2 of 2 rank 0 applied "
     "its own"),
    (words_of_a_rank, "uneven-shards", "is a mean of 3, 7 terms on ranks 0, 1, ..., and "
     "these means count alike"),
    (words_of_a_rank_by_a_mask, "uneven-shards", "is a mean of 3, 7 terms on ranks"),
    (uneven_micro_batches, "uneven-shards", "is a mean of 2, 6, 2, 6 terms on forwards"),
    (divided_by_the_ranks_too, "averaged-twice", "the loss is divided by 2, the world "
     "size, and gradients are averaged"),
    (micro_batches_that_are_all_reduced_and_add_up, "accumulation", "the losses of 2 "
     "forwards add up: they count once each"),
    (micro_batches_that_add_up, "accumulation", "the losses of 2 forwards add up, 1 of "
     "them without an all-reduce: they count once each; "),
    (micro_batches_in_a_loop_that_add_up, "accumulation", "the losses of 4 forwards add "
     "up, 3 of them without an all-reduce: they count once each")])
def test_a_wrong_script_is_found_and_named(minibatch, code, says):
    [found, *_], *_ = followed(minibatch)
    assert found[0] == code and says in found[1]
    assert ("multiplied by 2, the world size" in found[1]) == (
        minibatch in (micro_batches_that_add_up,
                      micro_batches_that_are_all_reduced_and_add_up))  # as many as ranks
    assert " in test_terms.py, line" in found[1] or "is a mean" not in found[1]


def test_means_that_are_summed_by_hand_are_a_sum():
    def minibatch(model, X, y):
        F.mse_loss(model(X)[..., 0], X[:, :2]).backward()
        summed(model)
    [(code, says)], [unchecked], _ = followed(minibatch, wrap=lambda model: model)
    assert code == "sum" and "2 times the mean of the ranks'" in says
    assert unchecked == ("whether the loss is divided rightly: losses count 2 times in a "
                         "step: right if these are their weights")


# what cannot be told

def with_a_decay_by_hand(model, X, y):
    decay = sum(p.square().sum() for p in model.parameters())
    (F.mse_loss(model(X)[..., 0], X[:, :2]) + 0.01 * decay).backward()


def without_a_loss_of_torchs(model, X, y):
    (model(X)[..., 0] - X[:, :2]).square().mean().backward()


def a_second_loss_that_counts_less(model, X, y):
    y_hat = model(X)
    loss = F.mse_loss(y_hat[..., 0], X[:, :2])
    loss = loss + 0.3 * F.l1_loss(y_hat[..., 1], X[:, 2:4])
    loss.backward()


def halves_of_two_losses(model, X, y):
    y_hat = model(X)
    loss = F.mse_loss(y_hat[..., 0], X[:, :2]) + F.l1_loss(y_hat[..., 1], X[:, 2:4])
    (loss / 2).backward()


def half_a_loss(model, X, y):
    (0.5 * F.mse_loss(model(X)[..., 0], X[:, :2])).backward()


def negatives_of_a_rank(model, X, y):
    one = F.normalize(model(X).flatten(1), dim=1)
    F.cross_entropy(one @ one.detach().T / 0.1, torch.arange(len(X))).backward()


def distances_of_a_rank(model, X, y):
    one = model(X).flatten(1)
    far = (one[:, None] - one[None]).square().sum(-1)
    F.mse_loss(far, torch.zeros(len(X), len(X))).backward()


class Tempered(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, X):
        one = F.normalize(super().forward(X).flatten(1), dim=1)
        return one @ one.flip(1).T * self.scale.exp()


def a_learned_temperature(model, X, y):
    F.cross_entropy(model(X), torch.arange(len(X))).backward()


def differences_of_neighbours(model, X, y):
    y_hat = model(X).flatten(1)
    F.mse_loss(y_hat[1:] - y_hat[:-1], torch.zeros(len(X) - 1, 6)).backward()


def terms_that_do_not_count_alike(model, X, y):
    each = F.mse_loss(model(X)[..., 0], X[:, :2], reduction="none")
    (each * X[:, :2]).mean().backward()


@pytest.mark.parametrize("minibatch, why", [
    (with_a_decay_by_hand, "there is more in what backward begins with than losses of "
     "torch.nn.functional; `audit` runs the step on one device"),
    (without_a_loss_of_torchs, "there is more in what backward begins with than losses of "
     "torch.nn.functional; `audit` runs the step on one device"),
    (two_backwards_of_the_same_rows, "losses count 2 times in a step: right if these are "
     "their weights"),
    (half_a_loss, "losses count 0.5 times in a step: right if these are their weights"),
    (a_second_loss_that_counts_less, "losses count 0.3, 1 times in a step: right if these "
     "are their weights"),
    (halves_of_two_losses, "losses count 0.5, 0.5 times in a step: right if these are "
     "their weights"),
    (negatives_of_a_rank, "a term of the loss may depend on other rows than its own"),
    (distances_of_a_rank, "a term of the loss may depend on other rows than its own"),
    (differences_of_neighbours,
     "a term of the loss may depend on other rows than its own"),
    (terms_that_do_not_count_alike, "what the terms of the losses count is not known")])
def test_what_cannot_be_told_is_no_finding_and_said(minibatch, why):
    found, unchecked, _ = followed(minibatch)
    assert not found and unchecked == [f"whether the loss is divided rightly: {why}"]


def test_a_parameter_that_is_a_number_makes_no_layer_of_what_it_scales():
    found, unchecked, _ = followed(
        a_learned_temperature, lambda _: DistributedDataParallel(Tempered()))
    assert not found and unchecked == ["whether the loss is divided rightly: a term of the "
                                       "loss may depend on other rows than its own"]


def half_of_the_rows(model, X, y):
    F.mse_loss(model(X[::2])[..., 0], X[::2, :2]).backward()


def noisy_rows(model, X, y):
    F.mse_loss(model(X + 0.1)[..., 0], X[:, :2]).backward()


@pytest.mark.parametrize("minibatch, loader, why", [
    (half_of_the_rows, True, "the loader gave 4 rows, of which the model saw 2"),
    (noisy_rows, True, "on the way from the loader to the model they are changed, or no "
     "longer the rows of one tensor"),
    (the_rows_mean, False, "no DataLoader of torch's gave them")])
def test_rows_that_may_be_lost_are_said_unless_one_knows_better(minibatch, loader, why):
    found, [unchecked], _ = followed(minibatch, loader=loader)
    assert not found and unchecked == (
        f"the rows that no rank saw: {why}; if you know of none: watch(..., "
        "ignore=['rows-missed'])")
    assert followed(minibatch, loader=loader, ignore=["rows-missed"]) == ([], [], [])


def test_a_code_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="ignore must be a list of codes, .* got 'sum'"):
        watch(Net(), ignore="sum")
    with pytest.raises(ValueError, match=r"got \['sums'\]"):
        watch(Net(), ignore=["sums"])


def test_a_loss_is_heard_once_under_a_mode_that_calls_it_once_more():
    class Nothing(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))
    note = Step(0)
    losses = Losses(SimpleNamespace(note=note, quiet=False))
    with ExitStack() as stack:
        for hook in losses.hooks():
            stack.enter_context(hook)
        stack.enter_context(Nothing())
        X = torch.rand(4, 3, requires_grad=True)
        X.register_hook(lambda grad: losses.hear())
        loss = F.cross_entropy(X, torch.tensor([0, 1, 2, -100]))
        torch.autograd.backward(loss)
    [part] = note.terms
    assert part.terms == 3 and len(part.aims) == 3 and part.shape == (3,)
    assert not part.real and not note.unheard
