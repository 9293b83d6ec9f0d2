"""A schedule that is faster than its optimizer is found; any other is not."""

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


def told(going):
    codes, text, _ = report_on(going)[0]
    return codes, " ".join(text.split())


def test_a_schedule_that_moves_on_world_size_times_is_found():
    codes, text = told(script(lambda t: dist.get_world_size()))
    assert codes == ["schedule"]
    assert "a schedule moves on 2 times, the world size, for one step" in text


def test_one_that_moves_on_for_each_micro_batch_is_found():
    codes, text = told(script(lambda t: 3))
    assert codes == ["schedule"] and "a schedule moves on 3 times, for one" in text


def test_what_accelerate_moves_on_was_made_for_so_many_calls():
    theirs = {"__name__": "accelerate.scheduler"}
    exec("def move(plan):\n    plan.step()\n    plan.step()", theirs)
    del theirs["__builtins__"]  # other tests leave there what cannot be sent

    def going():
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = made.CosineAnnealingLR(optimizer, 40)
        yield model, optimizer
        for X, y in batches():
            optimizer.zero_grad()
            mean_loss(model, X, y).backward()
            optimizer.step()
            theirs["move"](plan)
    assert told(going)[0] == []


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
    assert told(going)[0] == []


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
    assert told(inside(1))[0] == []
    codes, text = told(inside(2))
    assert codes == ["schedule"] and "a schedule moves on 2 times" in text


def waits(metric):
    """Let a schedule go by a metric after the second step."""
    def going():
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = made.ReduceLROnPlateau(optimizer, patience=5)
        yield model, optimizer
        for t, (X, y) in enumerate(batches()):
            optimizer.zero_grad()
            mean_loss(model, X, y).backward()
            optimizer.step()
            if t == 1:
                plan.step(metric())
    return going


def test_a_metric_of_each_ranks_own_is_found_before_rates_part():
    codes, text = told(waits(lambda: 0.5 + dist.get_rank()))
    assert codes == ["rates-differ"]
    assert "a plateau's schedule is given 1.5 on rank 1, 0.5 on rank 0" in text
    assert told(waits(lambda: 0.5))[0] == []
