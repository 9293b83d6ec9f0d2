import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from course.lab.slow import Late, slow_network, slow_wire
from manual_dp.ranks import DDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BYTES = 800  # of the tensors here: 100 float64


def numbers():
    return torch.full((100,), 1.0 + dist.get_rank(), dtype=torch.float64)


def test_a_message_takes_its_bytes_divided_by_the_bandwidth():
    def rank_function():
        tensor, start = numbers(), time.monotonic()
        with slow_wire(BYTES / 0.1):
            returned = dist.all_reduce(tensor)
        return returned, tensor.tolist(), time.monotonic() - start
    for returned, tensor, seconds in run_ranks(rank_function, 2):
        assert returned is None and tensor == [3.0] * 100
        assert seconds >= 0.1


def test_an_asynchronous_one_returns_at_once_and_ends_when_the_wire_is_done():
    def rank_function():
        tensor, start, said = numbers(), time.monotonic(), []
        with slow_wire(BYTES / 0.5):
            work = dist.all_reduce(tensor, async_op=True)
            work.get_future().then(lambda _: said.append(time.monotonic() - start))
            back, done = time.monotonic() - start, work.is_completed()
            work.wait()
        return back, done, work.is_completed(), time.monotonic() - start, said[0]
    for back, done, completed, waited, said in run_ranks(rank_function, 2):
        assert back < 0.4 and not done and completed
        assert waited >= 0.5 and said >= 0.5


def test_messages_go_one_after_the_other():
    def rank_function():
        start, ends = time.monotonic(), []
        with slow_wire(BYTES / 0.1):
            works = [dist.all_reduce(numbers(), async_op=True) for _ in range(3)]
            for work in works:
                work.wait()
                ends.append(time.monotonic() - start)
        return ends
    for first, second, third in run_ranks(rank_function, 2):
        assert first >= 0.1 and second >= 0.2 and third >= 0.3


def test_operation_and_group_are_passed_on():
    def rank_function():
        tensor = numbers()
        with slow_wire(1e9):
            dist.all_reduce(tensor, dist.ReduceOp.MAX, dist.group.WORLD)
        return tensor[0].item()
    assert run_ranks(rank_function, 3) == [3.0, 3.0, 3.0]


def test_gradients_are_those_of_a_quick_wire():
    def rank_function():
        grads = []
        for bandwidth in (1e12, 1e4):
            torch.manual_seed(0)
            model = DDP(torch.nn.Linear(3, 2), bucket_cap_mb=1e-6)
            with slow_wire(bandwidth):
                model(torch.full((1, 3), 1.0 + dist.get_rank())).sum().backward()
            grads.append([p.grad.tolist() for p in model.parameters()])
        return grads
    for quick, slow in run_ranks(rank_function, 2):
        assert quick == slow == [[[1.5] * 3] * 2, [1.0, 1.0]]


def test_after_the_block_the_wire_is_the_real_one_again():
    def rank_function():
        real = dist.all_reduce
        with pytest.raises(KeyError):
            with slow_wire(1e9):
                raise KeyError
        return dist.all_reduce is real
    assert run_ranks(rank_function, 1) == [True]


def test_an_error_of_the_real_work_is_passed_on():
    class Broken:
        def wait(self):
            raise RuntimeError("peer is gone")
    late = Late(Broken())
    late.carry(0)
    with pytest.raises(RuntimeError, match="peer is gone"):
        late.wait()
    assert late.is_completed()


@pytest.mark.parametrize("bandwidth", [0, -1, float("nan")])
def test_a_bandwidth_that_is_none_is_refused(bandwidth):
    with pytest.raises(ValueError, match="bandwidth must be bytes a second > 0, got"):
        with slow_wire(bandwidth):
            pass


def test_the_backward_of_each_slow_layer_takes_its_time_before_its_gradient():
    network, times = slow_network(3, 0.1, width=4), []
    assert [name for name, _ in network.named_parameters()] == [
        "layer 1.weight", "layer 2.weight", "layer 3.weight"]
    for p in network.parameters():
        p.register_post_accumulate_grad_hook(lambda p: times.append(time.monotonic()))
    X = torch.ones(2, 4)
    start = time.monotonic()
    loss = network(X).sum()
    forward = time.monotonic() - start
    loss.backward()
    assert forward < 0.1
    assert all(t - start >= 0.1 * (i + 1) for i, t in enumerate(times)) and len(times) == 3
    plain = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    plain.load_state_dict(dict(zip(plain.state_dict(), network.state_dict().values())))
    plain(X).sum().backward()
    assert [p.grad.tolist() for p in plain.parameters()] == [
        p.grad.tolist() for p in network.parameters()]
