"""Replicas are equal, separate and whole; what is not is named by rank and index."""

import pytest
import torch

from manual_dp import (
    check_replicas,
    get_params,
    largest_difference,
    pack_grads,
)


def some_params():
    """Return parameters of the shapes that trip: 0-dim, empty, transposed, ..."""
    generator = torch.Generator().manual_seed(0)
    params = [
        torch.rand(shape, dtype=torch.float64, generator=generator)
        for shape in [(), (1,), (5,), (4, 3), (0,), (2, 3)]
    ]
    return params[:5] + [params[5].t()]


def addresses(params):
    return {p.untyped_storage().data_ptr() for p in params if p.numel()}


# get_params


def test_replicas_on_one_device_are_equal_and_share_no_memory():
    params = some_params()
    device_params = [get_params(params, "cpu") for _ in range(3)]
    check_replicas(device_params)
    homes = set().union(*(addresses(p) for p in [params, *device_params]))
    assert len(homes) == 4 * len(addresses(params))
    for p, q in zip(device_params[-1], params, strict=True):
        assert torch.equal(p, q) and p.dtype == q.dtype and p.device == q.device
        p.data += 1
    assert not any(p.requires_grad for p in params)
    assert all(map(torch.equal, params, some_params()))


def test_trained_parameters_and_results_give_new_leaves_without_a_gradient():
    trained = [p.requires_grad_() for p in some_params()]
    sum(p.sum() for p in trained).backward()
    for p, old in zip(get_params([*trained, trained[2] * 2], "cpu"), trained):
        assert p.is_leaf and p.requires_grad and p.grad is None
        assert old.grad is not None and old.requires_grad


@pytest.mark.parametrize(
    "params, error, message",
    [
        (
            torch.zeros(3),
            ValueError,
            "params must be a list of at least one tensor, got a Tensor",
        ),
        ([], ValueError, "params must be a list of at least one tensor, got a list"),
        (torch.nn.Linear(2, 2).parameters(), ValueError, "one tensor, got a generator"),
        ([torch.zeros(1), None], TypeError, r"params\[1\] is a NoneType, not a tensor"),
        (
            [torch.zeros(1), torch.zeros(1).long()],
            TypeError,
            r"params\[1\] is torch.int64; only floats have gradients",
        ),
        (
            [torch.zeros(1), torch.zeros(1, device="meta")],
            TypeError,
            r"params\[1\] is on the meta device and holds no numbers",
        ),
    ],
)
def test_refuses_what_cannot_be_a_replica(params, error, message):
    with pytest.raises(error, match=message):
        get_params(params, "cpu")


# pack_grads


def test_gradients_are_views_of_one_flat_tensor_in_order():
    params = get_params(some_params(), "cpu")
    flat = pack_grads(params)
    assert flat.dtype == torch.float64 and not flat.any()
    flat.copy_(torch.arange(len(flat)))
    assert [p.grad.shape for p in params] == [p.shape for p in params]
    numbers = torch.cat([p.grad.flatten() for p in params])
    assert numbers.tolist() == list(range(0 + 1 + 1 + 5 + 12 + 0 + 6))


def test_packing_again_drops_what_was_there_and_what_is_unused_stays_zero():
    used, unused = get_params([torch.ones(2), torch.ones(3)], "cpu")
    first = pack_grads([used, unused])
    used.sum().backward()
    assert first.tolist() == [1, 1, 0, 0, 0] and unused.grad.tolist() == [0, 0, 0]
    assert not pack_grads([used, unused]).any() and not used.grad.any()
    assert first.tolist() == [1, 1, 0, 0, 0]
    assert pack_grads([used]).tolist() == [0, 0]  # one alone


# check_replicas


def leaf(p):
    return p.detach().requires_grad_()


NO_LEAF = "parameter 2 of rank 1 is not a leaf that wants a gradient; .* get_params"
SHARED = "parameter 3 of rank 1 shares memory with parameter 3 of rank 0; .* get_params"
APART = "parameter 2 of rank 1 differs from rank 0's, by up to "


@pytest.mark.parametrize(
    "i, spoilt, message",
    [  # of p on rank 1 and of rank 0's
        (
            3,
            lambda p, p0: leaf(p.t()),
            r"parameter 3 of rank 1 is .*float64 \(3, 4\), rank 0's is .*float64 \(4, 3\)",
        ),
        (
            1,
            lambda p, p0: leaf(p.float()),
            r"parameter 1 of rank 1 is torch.float32 \(1,\), rank 0's is torch.float64",
        ),
        (2, lambda p, p0: p.detach(), NO_LEAF),
        (2, lambda p, p0: p * 1, NO_LEAF),
        (3, lambda p, p0: leaf(p0), SHARED),
        (2, lambda p, p0: leaf(p + 1e-15), APART + "1e-15"),
        (2, lambda p, p0: leaf(p * torch.nan), APART + "nan"),
    ],
)
def test_refuses_replicas_naming_rank_and_index(i, spoilt, message):
    first, second = (get_params(some_params(), "cpu") for _ in range(2))
    second[i] = spoilt(second[i], first[i])
    before = [p.detach().clone() for p in first + second]
    with pytest.raises(ValueError, match=message):
        check_replicas([first, second])
    assert all(
        torch.allclose(p, old, 0, 0, equal_nan=True)
        for p, old in zip(first + second, before)
    )


def test_refuses_none_one_too_few_and_one_twice():
    first, second = (get_params(some_params(), "cpu") for _ in range(2))
    with pytest.raises(ValueError, match="device_params is empty: need a replica"):
        check_replicas([])
    with pytest.raises(ValueError, match="rank 1 has 5 parameters, rank 0 has 6"):
        check_replicas([first, second[:5]])
    with pytest.raises(
        ValueError,
        match="parameter 1 of rank 0 shares memory with parameter 0 of rank 0",
    ):
        check_replicas([[first[2], first[2]]])


def test_values_are_not_compared_when_not_asked_for():
    first, second = (get_params(some_params(), "cpu") for _ in range(2))
    second[2].data += 1
    check_replicas([first, second], values=False)


def test_two_replicas_that_both_hold_nan_are_equal():
    params = [torch.tensor([1.0, torch.nan])]
    check_replicas([get_params(params, "cpu") for _ in range(2)])


# largest_difference


@pytest.mark.parametrize(
    "params, others, message",
    [
        (
            [torch.ones(2), torch.ones(3)],
            [torch.ones(2), torch.zeros(2, 3)],
            r"params\[1\] is \[3\], others\[1\] \[2, 3\]",
        ),
        ([torch.ones(3)], [torch.zeros(3)] * 2, "shorter|longer"),
        (
            [torch.zeros(0, 3)] * 2,
            [torch.zeros(0, 3)] * 2,
            "hold no numbers to compare",
        ),
    ],
)
def test_a_difference_of_other_shapes_or_of_no_numbers_is_refused(
    params, others, message
):
    with pytest.raises(ValueError, match=message):
        largest_difference(params, others)


@pytest.mark.parametrize(
    "values, largest",
    [
        ([[1.0, -7.0], [5.0]], 7),
        ([[], [1.0]], 1),
        ([[5.0], [torch.nan]], torch.nan),
    ],
)
def test_the_largest_difference_by_hand(values, largest):
    params = [torch.tensor(row) for row in values]
    difference = largest_difference(params, [torch.zeros_like(p) for p in params])
    assert difference == pytest.approx(largest, nan_ok=True)
