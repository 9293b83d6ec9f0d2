import copy
import pickle
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from manual_dp.ranks import Bucket, make_buckets, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 2**20


def param(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(shape))
    return nn.Parameter(
        torch.rand(shape, dtype=torch.float64, generator=generator).to(dtype)
    )


def indices(params, buckets):
    """Return the buckets as lists of numbers: which parameters they hold."""
    where = {p: i for i, p in enumerate(params)}
    return [[where[p] for p in bucket.params] for bucket in buckets]


# make_buckets


@pytest.mark.parametrize(
    "cap, expected",
    [
        (0.25, [[6], [5], [4], [3], [2], [1], [0]]),  # one parameter is 0.25 MiB
        (0.001, [[6], [5], [4], [3], [2], [1], [0]]),
        (
            0.26,
            [[6, 5], [4, 3], [2, 1], [0]],
        ),  # closes once it holds the cap: not before
        (0.5, [[6, 5], [4, 3], [2, 1], [0]]),
        (1, [[6, 5, 4, 3], [2, 1, 0]]),
        (1.75, [[6, 5, 4, 3], [2, 1, 0]]),  # the first at 1 MiB whatever the cap
        (25, [[6, 5, 4, 3], [2, 1, 0]]),
    ],
)
def test_the_last_parameters_come_first_and_a_bucket_closes_at_the_cap(cap, expected):
    params = [param(MIB // 32) for _ in range(7)]
    assert indices(params, make_buckets(params, cap)) == expected


def test_buckets_are_torchs_for_the_same_order_and_caps():
    generator = torch.Generator().manual_seed(0)
    many = 0
    for _ in range(50):
        sizes = torch.randint(0, 2**18, (10,), generator=generator).tolist()
        cap = torch.randint(1, 4 * MIB, (), generator=generator).item()
        params = [nn.Parameter(torch.empty(size, device="meta")) for size in sizes]
        theirs, _ = dist._compute_bucket_assignment_by_size(
            params[::-1], [min(cap, MIB), cap]
        )
        buckets = make_buckets(params, cap / MIB)
        assert indices(params[::-1], buckets) == theirs
        many += len(theirs) > 2
    assert many > 20


F32, F64 = torch.float32, torch.float64


@pytest.mark.parametrize(
    "params, expected",
    [  # cap: 1 MiB
        ([], []),
        ([param(MIB // 8), param(MIB // 2), param(8), param(8)], [[3, 2, 1], [0]]),
        ([param(2, dtype=dtype) for dtype in (F64, F32, F32, F64)], [[3], [2, 1], [0]]),
        ([param(2), nn.Parameter(torch.ones(2, dtype=F64, device="meta"))], [[1], [0]]),
        # the size begins again behind a border
        (
            [param(MIB // 8), param(MIB // 16), param(MIB // 8, dtype=F32)],
            [[2], [1, 0]],
        ),
    ],
    ids=["no parameters", "beyond the cap", "dtypes", "devices", "border"],
)
def test_a_bucket_holds_one_dtype_on_one_device_and_a_parameter_whole(params, expected):
    buckets = make_buckets(params, 1)
    assert indices(params, buckets) == expected
    assert all(
        p.dtype == bucket.flat.dtype and p.device == bucket.flat.device
        for bucket in buckets
        for p in bucket.params
    )


# the flat tensor


def test_views_are_the_flat_tensor_in_the_order_of_the_bucket():
    params = [param(2, 3), param(), param(0), param(4)]
    bucket = Bucket(params)
    assert bucket.flat.shape == (11,)
    assert [bucket.views[p].shape for p in params] == [p.shape for p in params]
    bucket.flat.copy_(torch.arange(11))
    assert [bucket.views[p].tolist() for p in params] == [
        [[0, 1, 2], [3, 4, 5]],
        6,
        [],
        [7, 8, 9, 10],
    ]
    bucket.views[params[1]].fill_(-1)
    assert bucket.flat[6] == -1


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_copy_has_a_flat_tensor_and_views_of_its_own(again):
    bucket = Bucket([param(2), param(3)])
    other = again(bucket)
    other.views[other.params[0]].fill_(7)
    assert other.flat.tolist() == [7, 7, 0, 0, 0]
    assert bucket.flat.tolist() == [0] * 5
    assert other.missing == set(other.params) and not other.missing & bucket.missing


# put, start, wait


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_gradients_arrive_as_their_means(world_size):
    def rank_function():
        rank = dist.get_rank()
        params = [param(2, 3), param(), param(0), param(4)]
        bucket = Bucket(params)
        seen = [bucket.missing == set(params)]
        for i, p in enumerate(params[:-1]):
            p.grad = torch.full(p.shape, 6.0 * 10**rank + i, dtype=torch.float64)
            bucket.put(p)
            seen.append(bucket.missing == set(params[i + 1 :]))
            seen.append(p.grad is bucket.views[p])
        bucket.put(params[-1])  # it has no gradient
        seen.append(not bucket.missing and params[-1].grad is None)
        mine = bucket.flat.tolist()
        bucket.start()
        bucket.wait()
        bucket.empty()
        seen.append(bucket.missing == set(params) and bucket.work is None)
        return seen, mine, [p.grad.tolist() for p in params[:-1]], bucket.flat.tolist()

    mean = 6 * int("1" * world_size) / world_size  # 6, 33, 222
    for rank, (seen, mine, grads, flat) in enumerate(
        run_ranks(rank_function, world_size)
    ):
        assert all(seen)
        part = torch.tensor([6.0 * 10**rank] * 6 + [6.0 * 10**rank + 1] + [0] * 4)
        torch.testing.assert_close(mine, (part.double() / world_size).tolist())
        torch.testing.assert_close(
            grads, [[[mean] * 3] * 2, mean + 1, []], check_dtype=False
        )
        torch.testing.assert_close(flat, [mean] * 6 + [mean + 1.0] + [0.0] * 4)


def test_start_returns_before_the_others_have_started():
    def rank_function():
        bucket, word = Bucket([p := param(2)]), torch.zeros(1)
        p.grad = torch.ones(2, dtype=torch.float64) * dist.get_rank()
        bucket.put(p)
        if dist.get_rank() == 0:
            bucket.start()
            dist.send(word, 1)
        else:
            dist.recv(word, 0)  # comes after rank 0's start has returned
            bucket.start()
        bucket.wait()
        return p.grad.tolist()

    assert run_ranks(rank_function, 2, timeout=20) == [[0.5, 0.5]] * 2


def test_gradients_of_any_layout_are_put_where_they_belong():
    def rank_function():
        matrix = torch.arange(6.0, dtype=torch.float64)
        image = torch.arange(48.0, dtype=torch.float64)
        p, q, r, s = params = [param(2, 3), param(2, 3), param(2, 3, 2, 4), param(2)]
        r.data = r.data.to(memory_format=torch.channels_last)
        bucket = Bucket(params)
        p.grad = matrix.view(3, 2).t()  # strides (1, 2)
        q.grad = matrix[:1].expand(2, 3) + 1  # what sum() hands down
        r.grad = image.view(2, 2, 4, 3).permute(0, 3, 1, 2)  # channels last, as r
        s.grad = torch.tensor(3.0, dtype=torch.float64).expand(2)  # strides (0,)
        expected = [p.grad.tolist() for p in params]
        for p in params:
            bucket.put(p)
        bucket.start()
        bucket.wait()
        flat = [number for p in params for number in bucket.views[p].flatten().tolist()]
        return (
            [p.grad.tolist() for p in params] == expected,
            bucket.flat.tolist() == flat,
        )

    assert run_ranks(rank_function, 2) == [(True, True)] * 2
