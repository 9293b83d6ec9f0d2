"""Numbers that a script draws alike on all ranks are said, where rows come from a loader."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from manual_dp.audit.catalogue import finding
from manual_dp.audit.draws import aims
from manual_dp.audit.records import Evidence, Part, Run, Step
from tests.support.scripted import report_on

DRAWS = torch.Generator().manual_seed(0)
DATA = TensorDataset(torch.randn(48, 6, generator=DRAWS),
                     torch.randint(3, (48,), generator=DRAWS))
SAYS = "all ranks draw the same random numbers"


class Norm(nn.BatchNorm1d):
    """Take the mean and variance of all ranks' rows."""

    def forward(self, x):
        mean = torch.stack([x.mean(0), x.square().mean(0)]).detach()
        dist.all_reduce(mean)
        mean, square = mean / 2
        return (x - mean) / (square - mean ** 2 + self.eps).sqrt() * self.weight + self.bias


def script(prepare=lambda X: X, seed=lambda: None, model=None, size=4):
    model = DistributedDataParallel(model or nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seed()
    yield model, optimizer
    sampler = DistributedSampler(DATA)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for X, y in DataLoader(DATA, size, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(prepare(X)), y).backward()
            optimizer.step()


def steps_on(loss, width=3):
    """Take four steps on loss(model, t), without a loader."""
    model = DistributedDataParallel(nn.Linear(6, width))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    yield model, optimizer
    for t in range(4):
        optimizer.zero_grad()
        loss(model, t).backward()
        optimizer.step()


def by_hand():
    """Draw the places of the minibatch's rows, the same ones on all ranks."""
    def loss(model, t):
        X, y = DATA[torch.randperm(48)[:8][dist.get_rank()::2]]
        return F.cross_entropy(model(X), y)
    return steps_on(loss)


def noise(X):
    return X + 0.1 * torch.randn_like(X)


def own_noise(X):
    draws = torch.Generator().manual_seed(int(1000 * X.sum()))
    return X + 0.1 * torch.randn(X.shape, generator=draws)


def own_seed():
    torch.manual_seed(5 + dist.get_rank())


def seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("words, says", [
    ((noise,), True), ((noise, seed), True), ((noise, own_seed), False), ((), False),
    ((own_noise,), False)])
def test_noise_that_all_ranks_draw_is_said(words, says):
    (codes, said, _), _ = report_on(lambda: script(*words))
    assert codes == [] and (SAYS in " ".join(said.split())) == says


def test_draws_between_epochs_and_of_rows_are_no_noise():
    said = [" ".join(report_on(one)[0][1].split()) for one in (
        lambda: script(size=12), by_hand, lambda: script(
            model=nn.Sequential(nn.Linear(6, 3), nn.Dropout())))]
    assert [SAYS in one for one in said] == [False] * 3
    assert "dropout draws the same masks" in said[2]


@pytest.mark.parametrize("norm, says", [
    (Norm, False), (nn.BatchNorm1d, True)])
def test_of_batch_norm_only_torchs_own_is_known_to_send_nothing(norm, says):
    (_, said, _), _ = report_on(lambda: script(
        model=nn.Sequential(nn.Linear(6, 8), norm(8), nn.Linear(8, 3))))
    assert ("batch norm (1 layer)" in said) == says


def adversaries(latent, wrap=DistributedDataParallel):
    """Train two models by turns; one of them makes its rows of what `latent` gives."""
    def going():
        torch.manual_seed(0)
        first, second = wrap(nn.Linear(6, 3)), wrap(nn.Linear(2, 6))
        optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (first, second)]
        yield first, second, *optimizers
        sampler = DistributedSampler(DATA)
        for t, (X, y) in enumerate(DataLoader(DATA, 4, sampler=sampler)):
            for rows, optimizer in ((X, optimizers[0]),
                                    (second(latent(t)), optimizers[1])):
                optimizer.zero_grad()
                F.cross_entropy(first(rows), y).backward()
                optimizer.step()
    return going


def own(seed):
    return torch.randn(4, 2, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("latent, codes, said", [
    (lambda t: torch.randn(4, 2), ["random-same"], False),
    (lambda t: own(t), [], True), (lambda t: own(2 * t + dist.get_rank()), [], False),
    (lambda t: own(3), [], False)],
    ids=["from one state", "by alike generators", "by ranks' own", "the same each time"])
def test_what_is_drawn_for_one_of_two_models_is_each_ranks_own(latent, codes, said):
    found, text, _ = report_on(adversaries(latent))[0]
    assert found == codes, text
    assert ("whether each rank should have its own" in text) == said, text


def test_the_same_rows_in_all_forwards_are_no_noise():
    def loss(model, t):
        X, y = DATA[8 * t:8 * t + 8]
        return F.cross_entropy(model(X), y)
    codes, text, _ = report_on(lambda: steps_on(loss))[0]
    assert codes == ["rows-same"] and "should have its own" not in text, text


def denoising(draw):
    """Return a script that learns to find what `draw` adds to a rank's own rows."""
    def loss(model, t):
        X, _ = DATA[8 * t:8 * t + 8]
        X = X.chunk(2)[dist.get_rank()]
        aim = draw(t, X)
        return F.mse_loss(model(X + aim), aim)
    return lambda: steps_on(loss, width=6)


@pytest.mark.parametrize("draw, said", [
    (lambda t, X: torch.randn(4, 6, generator=torch.Generator().manual_seed(t)), True),
    (lambda t, X: torch.randn(4, 6, generator=torch.Generator().manual_seed(
        2 * t + dist.get_rank())), False),
    (lambda t, X: X.clone(), False), (lambda t, X: torch.zeros(4, 6) + 0.5, False),
    (lambda t, X: torch.arange(24.0).view(4, 6), False)],
    ids=["alike", "ranks' own", "of the rows", "one number", "whole numbers"])
def test_noise_to_be_found_that_is_the_same_on_all_ranks_is_said(draw, said):
    codes, text, _ = report_on(denoising(draw))[0]
    text = " ".join(text.split())
    assert codes == []
    assert ("has the same 4 targets on all ranks, and their rows are others" in text
            ) == said, text


def test_equal_targets_of_equal_rows_or_that_are_known_are_not_said():
    parts = [Part("line 1", 4, 1.0, 1, False, 1, (1, 2, 3, 4), (2,), True)]

    def said(*rows, ignored=(), codes=(), parts=parts):
        found = Evidence([Run(["w"], [(2,)], [Step(0, all_rows=[one], terms=parts)])
                          for one in rows], ignored=ignored)
        found.findings = [finding(code, 1, "") for code in codes]
        assert aims(found) == []
        return bool(found.unchecked)
    assert said([1, 2], [3, 4]) and not said([1, 2]) and not said([1, 2], None)
    assert not said([1, 2], [2, 3]) and not said([1, 2], [3, 4], codes=["rows-same"])
    assert not said([1, 2], [3, 4], ignored=["random-same"])
    assert not said([1, 2], [3, 4], parts=[parts[0]._replace(aims=(1, 2, 3, 3))])
