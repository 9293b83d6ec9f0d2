import pytest
import torch

from manual_dp import (
    check_replicas,
    get_params,
    largest_difference,
    lenet,
    loss,
    pack_grads,
)


def some_params():
    """Return parameters of the shapes that trip: 0-dim, empty, transposed, ..."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (1,), (5,), (4, 3), (0,)]
    params = [torch.rand(shape, dtype=torch.float64, generator=generator)
              for shape in shapes]
    return params + [torch.rand(2, 3, dtype=torch.float64, generator=generator).t()]


def addresses(params):
    return {p.untyped_storage().data_ptr() for p in params if p.numel()}


# get_params

@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_replicas_on_one_device_share_no_memory(world_size):
    params = some_params()
    device_params = [get_params(params, "cpu") for _ in range(world_size)]
    homes = set().union(*(addresses(p) for p in [params, *device_params]))
    assert len(homes) == (world_size + 1) * len(addresses(params))


def test_a_replica_holds_the_same_numbers_in_the_same_order():
    params = some_params()
    replica = get_params(params, "cpu")
    assert len(replica) == len(params)
    for p, q in zip(replica, params):
        assert torch.equal(p, q) and p.dtype == q.dtype and p.device == q.device


def test_the_input_is_left_as_it_was():
    params = some_params()
    values = [p.clone() for p in params]
    for p in get_params(params, "cpu"):
        p.data += 1
    assert not any(p.requires_grad for p in params)
    assert all(torch.equal(p, value) for p, value in zip(params, values))


def test_trained_parameters_give_new_leaves_without_a_gradient():
    trained = [p.requires_grad_() for p in some_params()]
    sum(p.sum() for p in trained).backward()
    for p, old in zip(get_params(trained, "cpu"), trained):
        assert p.is_leaf and p.requires_grad and p.grad is None
        assert old.grad is not None and old.requires_grad


def test_a_result_of_an_operation_becomes_a_leaf():
    W = torch.ones(3, requires_grad=True) * 2
    [p] = get_params([W], "cpu")
    assert p.is_leaf
    p.sum().backward()
    assert p.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("params, error, message", [
    (torch.zeros(3), ValueError, "params must be a list of at least one tensor, got a Tensor"),
    ([], ValueError, "params must be a list of at least one tensor"),
    ([torch.zeros(1), None], TypeError, r"params\[1\] is a NoneType, not a tensor"),
    ([[0.0]], TypeError, r"params\[0\] is a list, not a tensor"),
    ([torch.zeros(1).numpy()], TypeError, r"params\[0\] is a ndarray, not a tensor"),
    ([torch.zeros(1), torch.zeros(1).long()], TypeError,
     r"params\[1\] is torch.int64; only floats have gradients"),
    ([torch.zeros(1).bool()], TypeError, r"params\[0\] is torch.bool; only floats"),
    ([torch.zeros(1), torch.zeros(1, device="meta")], TypeError,
     r"params\[1\] is on the meta device and holds no numbers"),
])
def test_refuses_what_cannot_be_a_replica(params, error, message):
    with pytest.raises(error, match=message):
        get_params(params, "cpu")
    assert not any(p.requires_grad for p in params if isinstance(p, torch.Tensor))


# pack_grads

def test_gradients_are_views_of_one_flat_tensor_in_order():
    params = get_params(some_params(), "cpu")
    flat = pack_grads(params)
    flat.copy_(torch.arange(len(flat)))
    start = 0
    for p in params:
        assert p.grad.shape == p.shape
        assert p.grad.flatten().tolist() == list(range(start, start + p.numel()))
        start += p.numel()
    assert start == len(flat)


def test_backward_fills_the_flat_tensor(batch, replicas):
    X, y = batch(3)
    [params] = replicas(1)
    expected = torch.autograd.grad(loss(lenet(X, params), y).sum(), params)
    flat = pack_grads(params)
    loss(lenet(X, params), y).sum().backward()
    assert torch.equal(flat, torch.cat([grad.flatten() for grad in expected]))


def test_an_unused_parameter_has_a_zero_gradient():
    used, unused = get_params([torch.ones(2), torch.ones(3)], "cpu")
    flat = pack_grads([used, unused])
    used.sum().backward()
    assert flat.tolist() == [1, 1, 0, 0, 0]
    assert unused.grad.tolist() == [0, 0, 0]


def test_packing_again_drops_what_was_there():
    params = get_params([torch.ones(2)], "cpu")
    first = pack_grads(params)
    params[0].sum().backward()
    assert pack_grads(params).tolist() == [0, 0] == params[0].grad.tolist()
    assert first.tolist() == [1, 1]


# check_replicas

@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_equal_and_separate_replicas_pass(world_size):
    check_replicas([get_params(some_params(), "cpu") for _ in range(world_size)])


def without(params, i):
    return params[:i] + params[i + 1:]


def replaced(params, i, p):
    return params[:i] + [p] + params[i + 1:]


@pytest.mark.parametrize("spoil, message", [
    (lambda params, first: without(params, 5),
     "rank 1 has 5 parameters, rank 0 has 6"),
    (lambda params, first: replaced(params, 3, torch.zeros(3, 4, requires_grad=True)),
     r"parameter 3 of rank 1 is torch.float32 \(3, 4\), "
     r"rank 0's is torch.float64 \(4, 3\)"),
    (lambda params, first: replaced(params, 1, params[1].detach().float()
                                    .requires_grad_()),
     r"parameter 1 of rank 1 is torch.float32 \(1,\), rank 0's is torch.float64"),
    (lambda params, first: replaced(params, 2, params[2].detach()),
     "parameter 2 of rank 1 is not a leaf that wants a gradient; .* get_params"),
    (lambda params, first: replaced(params, 2, params[2] * 1),
     "parameter 2 of rank 1 is not a leaf that wants a gradient; .* get_params"),
    (lambda params, first: replaced(params, 3, first[3]),
     "parameter 3 of rank 1 shares memory with parameter 3 of rank 0; .* get_params"),
    (lambda params, first: replaced(params, 3, first[3].detach().requires_grad_()),
     "parameter 3 of rank 1 shares memory with parameter 3 of rank 0; .* get_params"),
    (lambda params, first: replaced(params, 2, (params[2] + 1e-15).detach()
                                    .requires_grad_()),
     "parameter 2 of rank 1 differs from rank 0's, by up to 1e-15"),
    (lambda params, first: replaced(params, 2, (params[2] * torch.nan).detach()
                                    .requires_grad_()),
     "parameter 2 of rank 1 differs from rank 0's, by up to nan"),
])
def test_refuses_replicas_naming_rank_and_index(spoil, message):
    first, params = (get_params(some_params(), "cpu") for _ in range(2))
    device_params = [first, spoil(params, first)]
    values = [[p.detach().clone() for p in params] for params in device_params]
    with pytest.raises(ValueError, match=message):
        check_replicas(device_params)
    for params, old in zip(device_params, values):
        assert all(p.equal(q) or q.isnan().any() for p, q in zip(params, old))


def test_a_parameter_used_twice_in_one_replica_is_refused():
    [p] = get_params([torch.ones(2)], "cpu")
    with pytest.raises(ValueError, match="parameter 1 of rank 0 shares memory with "
                                         "parameter 0 of rank 0"):
        check_replicas([[p, p]])


def test_values_are_not_compared_when_not_asked_for():
    first, second = (get_params(some_params(), "cpu") for _ in range(2))
    second[2].data += 1
    check_replicas([first, second], values=False)


def test_what_can_be_walked_once_is_no_list_of_parameters():
    with pytest.raises(ValueError, match="a list of at least one tensor, got a generator"):
        get_params(torch.nn.Linear(2, 2).parameters(), "cpu")


def test_replicas_that_are_nan_alike_are_equal_and_others_are_not():
    def replica(value):
        return [torch.tensor([1.0, value], requires_grad=True)]
    check_replicas([replica(torch.nan), replica(torch.nan)])
    check_replicas([replica(torch.inf), replica(torch.inf)])
    for value in (2.0, torch.inf):
        with pytest.raises(ValueError, match="parameter 0 of rank 1 differs from rank 0"):
            check_replicas([replica(torch.nan), replica(value)])


@pytest.mark.parametrize("others, said", [
    ([torch.zeros(1)], r"\[0\] is \[3\], .*\[0\] \[1\]|\[0\] is \[1\], .*\[0\] \[3\]"),
    ([torch.zeros(2, 3)], r"\[0\] is \[3\], .* \[2, 3\]|\[0\] is \[2, 3\], .* \[3\]"),
    ([], "shorter|longer"), ([torch.zeros(3), torch.zeros(3)], "shorter|longer")])
def test_a_difference_of_other_shapes_is_refused(others, said):
    for one, other in ([torch.ones(3)], others), (others, [torch.ones(3)]):
        with pytest.raises(ValueError, match=said):
            largest_difference(one, other)


@pytest.mark.parametrize("nothing", [[], [torch.zeros(0)], [torch.zeros(0, 3)] * 2])
def test_the_difference_of_no_numbers_is_refused(nothing):
    with pytest.raises(ValueError, match="params and others hold no numbers to compare"):
        largest_difference(nothing, nothing)


def test_an_empty_parameter_beside_others_does_not_count():
    empty = torch.zeros(0)
    assert largest_difference([empty, torch.ones(2)], [empty, torch.zeros(2)]) == 1


def test_no_replicas_are_refused():
    with pytest.raises(ValueError, match="device_params is empty: need a replica"):
        check_replicas([])
