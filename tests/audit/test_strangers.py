"""What an optimizer holds beside the model: alike on all ranks, and it stays so."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit.records import Evidence, Run, Step
from manual_dp.audit.strangers import strangers
from tests.support.broken_training import mean_loss, net
from tests.support.scripted import batches, report_on


class Scaled(nn.Module):
    """A loss with a temperature that is learned."""

    def __init__(self, start=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([start, 2.0]))

    def forward(self, model, X, y):
        return mean_loss(lambda X: model(X) * self.scale[0] + self.scale[1], X, y)


def learned(wrap=lambda loss: loss, after=lambda loss: None, start=lambda: 1.0):
    """Train a model in DDP and a loss beside it, which `wrap` or `after` looks after."""
    def script():
        model, loss = DistributedDataParallel(net()), wrap(Scaled(start()))
        optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.01)
        yield model, optimizer
        for X, y in batches():
            optimizer.zero_grad()
            loss(model, X, y).backward()
            after(loss)
            optimizer.step()
    return script


def averaged(loss):
    dist.all_reduce(loss.scale.grad)
    loss.scale.grad /= dist.get_world_size()


def test_weights_of_a_loss_that_nobody_averages_are_found():
    codes, text, _ = report_on(learned())[0]
    assert codes == ["not-synchronised"], text
    assert "tensor 4 of Adam, (2,), which no watched model holds, is alike before" in (
        " ".join(text.split()))


def frozen_head():
    """An optimizer of a frozen layer, too, which gets no gradient on any rank."""
    model, rest = DistributedDataParallel(net()), nn.Linear(2, 2)
    with torch.no_grad():
        rest.weight.fill_(dist.get_rank())
    optimizer = torch.optim.SGD([*model.parameters(), *rest.parameters()], lr=0.1)
    yield model, optimizer
    for X, y in batches():
        optimizer.zero_grad()
        mean_loss(model, X, y).backward()
        optimizer.step()


@pytest.mark.parametrize("far, codes", [(1e-8, []), (1e-5, ["not-synchronised"])])
def test_last_digits_of_a_sum_in_another_order_are_no_mistake(far, codes):
    def run(scale):
        step = Step(0, close=1e-4, strangers=(
            {"s": torch.ones(2)}, {"s": scale * torch.ones(2).double()}))
        return Run([], [], [step])
    evidence = Evidence([run(1.1), run(1.1 * (1 + far))], watched=True)
    assert [found.code for found in strangers(evidence)] == codes


def another_network():
    """Train a network of the rank's own, too, by an optimizer of its own."""
    model, own = DistributedDataParallel(net()), net()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, own)]
    yield model, optimizers[0]
    for X, y in batches():
        for one, optimizer in zip((model, own), optimizers):
            optimizer.zero_grad()
            mean_loss(one, X, y).backward()
            optimizer.step()


@pytest.mark.parametrize("script", [
    learned(after=averaged), learned(wrap=DistributedDataParallel), frozen_head,
    another_network],
    ids=["averaged by hand", "in a DDP of its own", "without a gradient", "apart"])
def test_what_is_averaged_or_never_moves_is_no_mistake(script):
    codes, text, _ = report_on(script)[0]
    assert codes == [] and "no watched model holds" not in text, text


def test_what_differs_from_the_start_may_be_meant_and_is_said():
    codes, text, _ = report_on(learned(start=lambda: float(dist.get_rank())))[0]
    assert codes == [], text
    assert "tensors of an optimizer that no watched model holds: they differ from" in (
        " ".join(text.split()))


def masters():
    """Train masters in float64, which are copied into a model of 32 bits."""
    model = DistributedDataParallel(net())
    own = [p.detach().double().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(own, lr=0.1)
    yield model, optimizer
    for X, y in batches():
        model.zero_grad()
        mean_loss(model, X, y).backward()
        for mine, p in zip(own, model.parameters()):
            mine.grad = p.grad.double()
        optimizer.step()
        with torch.no_grad():
            for mine, p in zip(own, model.parameters()):
                p.copy_(mine)


def test_masters_that_stay_alike_are_no_mistake():
    codes, text, _ = report_on(masters)[0]
    assert codes == [], text


def own_average():
    """Average weights every second step, of a model and of what stands beside it."""
    model, loss = net(), Scaled()
    held = [*model.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(held, lr=0.1)
    yield model, optimizer
    for t, (X, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss(model, X, y).backward()
        optimizer.step()
        for p in held if t % 2 else ():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()


def test_ranks_that_average_their_weights_are_not_accused():
    codes, text, _ = report_on(own_average)[0]
    assert "not-synchronised" not in codes, text


def skipping(every=False):
    """Take a second batch on rank 1, in whose place the first is left out."""
    def script():
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        yield model, optimizer
        for t, (X, y) in enumerate(batches()):
            optimizer.zero_grad()
            loss = mean_loss(model, X, y)
            if t == 1 and (every or dist.get_rank() == 1):
                loss = mean_loss(model, X.flip(0), y.flip(0))
            loss.backward()
            optimizer.step()
    return script


def test_a_batch_that_one_rank_leaves_out_is_said():
    said = "rows that took no part: in step 1 rank 1 took 2 forwards and 1 backward, "
    codes, text, _ = report_on(skipping())[0]
    assert said in " ".join(text.split()), text
    codes, text, _ = report_on(skipping(every=True))[0]
    assert "rows that took no part" not in text, text


def more_parts():
    """Train on more micro-batches on rank 1, each of which goes back."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    yield model, optimizer
    for X, y in batches():
        optimizer.zero_grad()
        for part in torch.arange(6).chunk(1 + dist.get_rank()):
            (mean_loss(model, X[part], y[part]) * len(part) / 6).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        optimizer.step()


def test_more_micro_batches_on_one_rank_took_part():
    codes, text, _ = report_on(more_parts)[0]
    assert codes == [] and "rows that took no part" not in text, text
