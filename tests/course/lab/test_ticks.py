"""A slow wire, whole ticks, and the runs of count_price_look, which are made of both."""

import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from programs import paced

from course.lab.ticks import Late, agreed, in_ticks, slow_network, slow_wire
from course.lab.timeline import Event, Pace, Span, predict
from manual_dp.ranks import run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BYTES = 800  # of the tensors here: 100 float64


def numbers():
    return torch.full((100,), 1.0 + dist.get_rank(), dtype=torch.float64)


def test_a_message_takes_its_bytes_divided_by_the_bandwidth_one_after_the_other():
    def rank_function():
        tensor, real, start, said, ends = numbers(), dist.all_reduce, time.monotonic(), [], []
        with slow_wire(BYTES / 0.3):
            works = [dist.all_reduce(t, async_op=True) for t in (tensor, numbers())]
            works[0].get_future().then(lambda _: said.append(time.monotonic() - start))
            assert not works[0].is_completed()
            for work in works:
                work.wait()
                ends.append(time.monotonic() - start)
            returned = dist.all_reduce(tensor, dist.ReduceOp.MAX, dist.group.WORLD)
            ends.append(time.monotonic() - start)
        assert works[0].is_completed() and returned is None
        assert dist.all_reduce is real and tensor.tolist() == [3.0] * 100
        return said[0], *ends
    for said, first, second, third in run_ranks(rank_function, 2):
        assert said >= 0.3 and first >= 0.3 and second >= 0.6 and third >= 0.9


def test_an_error_of_the_real_work_is_passed_on():
    class Broken:
        def wait(self):
            raise RuntimeError("peer is gone")
    late = Late(Broken())
    late.carry(0)
    with pytest.raises(RuntimeError, match="peer is gone"):
        late.wait()
    assert late.is_completed()


def test_a_slow_layer_takes_its_time_before_its_gradient_and_computes_as_any():
    network, times, X = slow_network(3, 0.1, width=4), [], torch.ones(2, 4)
    for p in network.parameters():
        p.register_post_accumulate_grad_hook(lambda p: times.append(time.monotonic()))
    start = time.monotonic()
    network(X).sum().backward()
    assert all(t - start >= 0.1 * (i + 1) for i, t in enumerate(times)) and len(times) == 3
    first, second, third = weights = [p.detach().requires_grad_() for p in network.parameters()]
    (X @ first.T @ second.T @ third.T).sum().backward()
    assert all(torch.allclose(w.grad, p.grad) for w, p in zip(weights, network.parameters()))
    assert [name for name, _ in network.named_parameters()][0] == "layer 1.weight"


def at(*times):
    return [Event(time, "ready", "p", 0) for time in times]


@pytest.mark.parametrize("seconds, ticks", [(0, 0), (0.199, 2), (0.2, 2), (0.285, 2)])
def test_ticks_are_whole_and_rounded_down(seconds, ticks):
    assert in_ticks(at(seconds), 0.1) == at(ticks)
    spans = [Span(0, "compute", "load", seconds, 0.31), Span(0, "compute", "wait", 0.3, 0.31)]
    assert in_ticks(spans, 0.1) == [Span(0, "compute", "load", ticks, 3)]


@pytest.mark.parametrize("runs, known, found, left", [
    ([0.1, 0.22, 0.3, 0.21, 0.9], None, 2, 1),   # the fourth agrees with the second
    ([0.1, 0.2, 0.9], 2, 2, 1),                  # as expected: no second one is needed
    ([0.1, 0.3, 0.1, 0.1, 0.1, 0.9], 7, 1, 1)])  # not as expected: three in a row
def test_runs_are_repeated_until_they_agree(runs, known, found, left):
    runs = iter(runs)
    known = None if known is None else at(known)
    assert agreed(lambda: at(next(runs)), 0.1, known) == at(found)
    assert len(list(runs)) == left


@pytest.mark.parametrize("pace, world_size, more", [
    (Pace(0, 1, 1, 1, 2), 2, {"slow": {1: 2}}),
    (Pace(2, 1, 1, 1, 2), 2, {"steps": 2, "workers": 1})])
def test_a_real_run_is_the_predicted_one(pace, world_size, more):
    # a wrong prediction would not become the result: three other runs agree
    found = paced.run(pace, world_size, 1, tick=0.12, **more)
    if more.pop("workers", 0):
        pace = pace._replace(load=0)
    assert found == predict(pace, world_size, 1, **more)
