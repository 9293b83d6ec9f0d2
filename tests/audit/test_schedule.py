"""A schedule that is faster than its optimizer is said; any other is not."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler as made

from tests.support.broken_training import mean_loss, net
from tests.support.scripted import batches, report_on


def script(moves, schedule=lambda optimizer: made.CosineAnnealingLR(optimizer, 40)):
    """Move the schedule on as often after each of the optimizer's steps."""
    def going():
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = schedule(optimizer)
        yield model, optimizer
        for t, (X, y) in enumerate(batches()):
            optimizer.zero_grad()
            mean_loss(model, X, y).backward()
            optimizer.step()
            for _ in range(moves(t)):
                plan.step()
    return going


def said(going):
    codes, text, _ = report_on(going)[0]
    assert codes == [], text
    return " ".join(text.split())


def test_a_schedule_that_moves_on_world_size_times_is_said():
    assert "a schedule moves on 2 times, the world size, for one step" in said(
        script(lambda t: dist.get_world_size()))


def test_one_that_moves_on_for_each_micro_batch_is_said():
    assert "a schedule moves on 3 times, for one step" in said(script(lambda t: 3))


def warm_then_cosine(optimizer):
    return made.SequentialLR(optimizer, [made.LinearLR(optimizer), made.CosineAnnealingLR(
        optimizer, 10)], [2])


def two_at_once(optimizer):
    return made.ChainedScheduler([made.ConstantLR(optimizer), made.ExponentialLR(
        optimizer, 0.9)])


@pytest.mark.parametrize("going", [
    script(lambda t: 1), script(lambda t: 0), script(lambda t: t % 2),
    script(lambda t: 5 * (t == 1)), script(lambda t: 1, warm_then_cosine),
    script(lambda t: 1, two_at_once)],
    ids=["each step", "never", "now and then", "once an epoch", "two in turn", "chained"])
def test_one_that_moves_on_once_is_not(going):
    assert "schedule" not in said(going)


def inside(moves):
    """Make the schedule under watch; a discriminator takes two steps for one."""
    def going():
        models = [DistributedDataParallel(net()) for _ in range(2)]
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models]
        yield *models, *optimizers
        plans = [made.StepLR(one, 1) for one in optimizers]
        for X, y in batches():
            for which in (0, 0, 1):
                optimizers[which].zero_grad()
                mean_loss(models[which], X, y).backward()
                optimizers[which].step()
                for _ in range(moves):
                    plans[which].step()
    return going


def test_each_schedule_is_counted_beside_its_own_optimizer():
    codes, text, _ = report_on(inside(1))[0]
    assert "a schedule" not in text, text
    codes, text, _ = report_on(inside(2))[0]
    assert "a schedule moves on 2 times" in " ".join(text.split()), text
