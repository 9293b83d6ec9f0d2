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
EIGHTH = MIB // 64  # numbers of 8 bytes: an eighth of a MiB


@pytest.mark.parametrize(
    "params, cap, expected",
    [
        ([], 1, []),
        ([param(EIGHTH) for _ in range(3)], 1 / 8, [[2], [1], [0]]),
        (
            [param(2, dtype=dtype) for dtype in (F64, F32, F32, F64)],
            1,
            [[3], [2, 1], [0]],
        ),
        (
            [param(2), nn.Parameter(torch.ones(2, dtype=F64, device="meta"))],
            1,
            [[1], [0]],
        ),
        (
            [param(8 * EIGHTH), param(4 * EIGHTH), param(8 * EIGHTH, dtype=F32)],
            1,
            [[2], [1, 0]],
        ),
    ],
    ids=["no parameters", "the cap", "dtypes", "devices", "the size begins again"],
)
def test_a_bucket_closes_at_the_cap_and_at_another_dtype_or_device(
    params, cap, expected
):
    buckets = make_buckets(params, cap)
    assert indices(params, buckets) == expected
    for bucket in buckets:
        assert {(p.dtype, p.device) for p in bucket.params} == {
            (bucket.flat.dtype, bucket.flat.device)
        }


# the flat tensor


def test_a_copy_has_a_flat_tensor_and_views_of_its_own():
    bucket = Bucket([param(2), param(3)])
    other = pickle.loads(pickle.dumps(bucket))
    other.views[other.params[0]].fill_(7)
    assert other.flat.tolist() == [7, 7, 0, 0, 0]
    assert bucket.flat.tolist() == [0] * 5
    assert other.missing == set(other.params) and not other.missing & bucket.missing


# put, start, wait


def test_the_gradients_arrive_as_their_means():
    def rank_function():
        params = [param(2, 3), param(), param(0), param(4)]
        bucket, missing = Bucket(params), []
        for i, p in enumerate(params[:-1]):  # the last one has no gradient
            p.grad = torch.full(p.shape, 10.0 ** dist.get_rank() + i).double()
        for p in params:
            missing.append([q in bucket.missing for q in params])
            bucket.put(p)
        full = not bucket.missing
        bucket.start()
        bucket.wait()
        bucket.empty()
        views = [p.grad is bucket.views[p] for p in params[:-1]]
        emptied = bucket.missing == set(params) and bucket.work is None
        return missing, full, views, params[-1].grad, emptied, bucket.flat

    mean = torch.tensor([37.0] * 6 + [38.0] + [0.0] * 4).double()
    for missing, *rest, flat in run_ranks(rank_function, 3):
        assert missing == [[i >= done for i in range(4)] for done in range(4)]
        assert rest == [True, [True] * 3, None, True]
        torch.testing.assert_close(flat, mean)


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
        matrix, image = param(2, 3), param(2, 3, 2, 4)
        image.data = image.data.to(memory_format=torch.channels_last)
        bucket, numbers = Bucket([matrix, image]), torch.arange(48.0).double()
        matrix.grad = numbers[:6].view(3, 2).t()  # strides (1, 2)
        image.grad = numbers.view(2, 2, 4, 3).permute(0, 3, 1, 2)  # channels last
        expected = [matrix.grad.tolist(), image.grad.tolist()]
        for p in (matrix, image):
            bucket.put(p)
        bucket.start()
        bucket.wait()
        flat = [*matrix.grad.flatten().tolist(), *image.grad.flatten().tolist()]
        return (
            [matrix.grad.tolist(), image.grad.tolist()] == expected,
            bucket.flat.tolist() == flat,
        )

    assert run_ranks(rank_function, 2) == [(True, True)] * 2
