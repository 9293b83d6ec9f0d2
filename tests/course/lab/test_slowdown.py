"""A slow wire, slow layers, whole ticks."""

import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course.lab.slowdown import Late, agreed, in_ticks, slow_network, slow_wire
from course.lab.timeline import Event
from manual_dp.ranks import run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BYTES = 800  # of the tensors here: 100 float64


def numbers():
    return torch.full((100,), 1.0 + dist.get_rank(), dtype=torch.float64)


def test_a_message_takes_its_bytes_divided_by_the_bandwidth_one_after_the_other():
    def rank_function():
        tensor, real, start, said, ends = (
            numbers(),
            dist.all_reduce,
            time.monotonic(),
            [],
            [],
        )
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


def test_a_message_may_take_a_time_to_start_before_its_bytes():
    def rank_function():
        begun = time.monotonic()
        with slow_wire(BYTES / 0.1, start=0.2):
            for _ in range(2):
                dist.all_reduce(numbers())
        return time.monotonic() - begun

    assert min(run_ranks(rank_function, 2)) >= 2 * (0.2 + 0.1)


def test_an_error_of_the_real_work_is_passed_on():
    class Broken:
        def wait(self):
            raise RuntimeError("peer is gone")

    late = Late(Broken())
    late.carry_for(0)
    with pytest.raises(RuntimeError, match="peer is gone"):
        late.wait()
    assert late.is_completed()


def test_a_slow_layer_takes_its_time_before_its_gradient_and_computes_as_any():
    network, times, X = slow_network(3, 0.1, width=4), [], torch.ones(2, 4)
    for p in network.parameters():
        p.register_post_accumulate_grad_hook(lambda p: times.append(time.monotonic()))
    start = time.monotonic()
    network(X).sum().backward()
    assert (
        all(t - start >= 0.1 * (i + 1) for i, t in enumerate(times)) and len(times) == 3
    )
    first, second, third = weights = [
        p.detach().requires_grad_() for p in network.parameters()
    ]
    (X @ first.T @ second.T @ third.T).sum().backward()
    assert all(
        torch.allclose(w.grad, p.grad) for w, p in zip(weights, network.parameters())
    )
    assert [name for name, _ in network.named_parameters()][0] == "layer 1.weight"


def at(*times):
    return [Event(time, "ready", "p", 0) for time in times]


@pytest.mark.parametrize("seconds, ticks", [(0.199, 2), (0.285, 2)])
def test_ticks_are_whole_and_rounded_down(seconds, ticks):
    assert in_ticks(at(seconds), 0.1) == at(ticks)


def test_runs_are_repeated_until_two_agree():
    runs = iter([0.1, 0.22, 0.3, 0.21, 0.9])  # the fourth agrees with the second
    assert agreed(lambda: at(next(runs)), 0.1) == at(2)
    assert len(list(runs)) == 1
