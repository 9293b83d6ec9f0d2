import copy
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import manual_dp
from manual_dp.ranks import (
    allgather,
    broadcast,
    checked_allreduce,
    collectives,
    reduce_scatter,
    ring_allreduce,
    run_ranks,
)
from tests.support.exact import assert_each_holds

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORLD_SIZES = [1, 2, 5]
SHAPES = [(), (1,), (5,), (4, 3), (0,)]


def numbers(rank, shape, dtype=torch.float64):
    """Return rank's own tensor: distinct random numbers, the same in every process."""
    size = torch.Size(shape)
    generator = torch.Generator().manual_seed(1000 * rank + size.numel())
    if not dtype.is_floating_point:
        return torch.randint(-(10**9), 10**9, size, generator=generator).to(dtype)
    return torch.rand(size, dtype=torch.float64, generator=generator).to(dtype)


def told(function, *args):
    """Return what the call raises, in words; None if it raises nothing."""
    try:
        function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ring_allreduce


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_ends_with_the_sum_and_with_the_bits_of_the_ring_in_one_process(
    world_size,
):
    # pieces of 16 bytes: these sizes lie around 1, 2, 5 and 9 pieces a chunk
    borders = [
        (2 * pieces * world_size + more,)
        for pieces in (1, 2, 5, 9)
        for more in (-1, 0, 1)
    ]
    cases = [(shape, torch.float32) for shape in SHAPES]
    cases += [(shape, torch.int64) for shape in borders]

    def rank_function():
        collectives.PIECE = 16
        tensors = [numbers(dist.get_rank(), *case) for case in cases]
        for tensor in tensors:
            ring_allreduce(tensor)
        return tensors

    by_rank = run_ranks(rank_function, world_size)
    for i, case in enumerate(cases):
        tensors = [numbers(rank, *case) for rank in range(world_size)]
        manual_dp.ring_allreduce(tensors)  # test_allreduce.py has it by hand
        sums = [sums[i] for sums in by_rank]
        assert_each_holds(sums, tensors, "ring_allreduce")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_rank_sends_two_tensors_less_two_chunks_to_its_right(world_size):
    size = 12 * world_size + 1

    def rank_function():
        collectives.PIECE = 8
        sent, isend = [], dist.isend

        def counted(tensor, dst):
            sent.append((tensor.numel(), dst))
            return isend(tensor, dst)

        dist.isend = counted
        ring_allreduce(torch.ones(size))
        return sent

    chunks = [len(chunk) for chunk in torch.ones(size).tensor_split(world_size)]
    for rank, sent in enumerate(run_ranks(rank_function, world_size)):
        right = (rank + 1) % world_size
        # reduce_scatter does not send chunk `rank` on, allgather not the next
        elements = 2 * size - chunks[rank] - chunks[right]
        assert sum(count for count, _ in sent) == elements
        assert {dst for _, dst in sent} <= {right}


def test_a_leaf_of_two_byte_floats_is_summed_in_place():
    def rank_function():
        leaf = torch.tensor([1, 2, 3]).half() * 2 ** dist.get_rank()
        leaf.requires_grad_()
        address = leaf.data_ptr()
        returned = ring_allreduce(leaf)
        return leaf.tolist(), returned, leaf.is_leaf, leaf.data_ptr() == address

    assert run_ranks(rank_function, 3) == [([7, 14, 21], None, True, True)] * 3


# broadcast


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_broadcast_gives_the_bits_of_any_src_down_a_tree(world_size):
    def rank_function():
        short = numbers(dist.get_rank(), (5,), torch.uint8)  # which cannot be summed
        broadcast(short)  # src=0
        counts, tensors, send = [], [], dist.send

        def counted(tensor, dst):
            counts[-1] += 1
            send(tensor, dst)

        dist.send = counted
        for src in range(world_size):
            counts.append(0)
            tensors.append(numbers(dist.get_rank(), (4, 3)))
            broadcast(tensors[-1], src)
        return tensors, short, counts

    by_rank = run_ranks(rank_function, world_size)
    rounds = (world_size - 1).bit_length()  # the 2-logarithm, rounded up
    shorts = [short for _, short, _ in by_rank]
    expected = [numbers(0, (5,), torch.uint8)] * world_size
    assert_each_holds(shorts, expected, "broadcast without src")
    for src in range(world_size):
        got = [tensors[src] for tensors, *_ in by_rank]
        expected = [numbers(src, (4, 3))] * world_size
        assert_each_holds(got, expected, f"broadcast from {src}")
        sent = [counts[src] for *_, counts in by_rank]
        assert sum(sent) == world_size - 1
        assert max(sent) == sent[src] == rounds


# reduce_scatter and allgather


def own_chunks(rank, world_size):
    """Return rank's chunks, of uneven sizes: 0, 2, 4, 1, 3."""
    return [numbers(10 * rank + i, (7 * i % 5,)) for i in range(world_size)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_scatter_finishes_a_chunk_and_allgather_gives_it_to_all(world_size):
    def rank_function():
        collectives.PIECE = 16
        rank = dist.get_rank()
        summed, given = own_chunks(rank, world_size), own_chunks(rank, world_size)
        reduce_scatter(summed)
        allgather(tuple(given))
        return summed[rank], given

    theirs = [own_chunks(rank, world_size) for rank in range(world_size)]
    by_rank = run_ranks(rank_function, world_size)
    for rank, (summed, _) in enumerate(by_rank):
        parts = torch.stack([chunks[rank] for chunks in theirs])
        torch.testing.assert_close(
            summed, parts.sum(dim=0), msg=lambda text, rank=rank: f"rank {rank}: {text}"
        )
    for i in range(world_size):
        copies = [given[i] for _, given in by_rank]
        expected = [theirs[i][i]] * world_size
        assert_each_holds(copies, expected, f"allgather, chunk {i}")


# checked_allreduce


def test_the_checked_sum_and_mean_are_the_sum_and_the_mean():
    def rank_function():
        whole = torch.tensor([1, 2]) * 10 ** dist.get_rank()
        leaf = torch.tensor([[1.0], [2.0]]) * 10 ** dist.get_rank()
        leaf.requires_grad_()
        returned = checked_allreduce(whole, 7), checked_allreduce(leaf, "", "mean")
        return returned, whole.tolist(), leaf.tolist()

    found = ((None, None), [111, 222], [[37], [74]])
    assert run_ranks(rank_function, 3) == [found] * 3


def different():
    """Return what rank 0 and rank 1 pass, tensor, tag and op; and what is said of both."""
    one, two, steps = torch.ones(1), torch.ones(2), torch.arange(6.0)
    whole = torch.ones(1, dtype=torch.int32)
    return [
        # rank 1 left out its step 1, whose number is 40: right would be 41
        ((one, "step 1"), (50 * one, "step 2"), "tag 'step 1'", "tag 'step 2'"),
        ((one, "a", "sum"), (3 * one, "a", "mean"), "op 'sum'", "op 'mean'"),
        ((one, "a"), (whole, "a"), "dtype torch.float32", "dtype torch.int32"),
        (
            (steps.view(2, 3), "a"),
            (steps.view(3, 2), "a"),
            "shape (2, 3)",
            "shape (3, 2)",
        ),
        (
            (steps.view(2, 3), "a"),
            (steps.view(3, 2).t(), "a"),
            "strides (3, 1)",
            "strides (1, 2)",
        ),
        # also where a rank, or each, is refused for what it passes
        ((one, "a", "max"), (two, "a", "max"), "shape (1,)", "shape (2,)"),
        ((one, "a"), ([1.0], "a"), "shape (1,)", "a list"),
        ((one, "a"), (one.to_sparse(), "a"), "strides (1,)", "layout torch.sparse_coo"),
        ((one, "a"), (one.to("meta"), "a"), "device cpu", "device meta"),
    ]


def test_what_differs_is_named_on_every_rank_nothing_is_written_and_the_ranks_go_on():
    def rank_function():
        results = []
        for *both, _, _ in different():
            arguments = both[dist.get_rank()]
            before, after = (
                copy.deepcopy(arguments),
                torch.tensor([dist.get_rank() + 1.0]),
            )
            text = told(checked_allreduce, *arguments)
            checked_allreduce(after, "after the mistake")
            results.append((text, str(arguments) == str(before), after.tolist()))
        return results

    for results in run_ranks(rank_function, 2, timeout=20):
        assert results == [
            (
                f"ValueError: checked_allreduce: rank 0 has {first}, rank 1 has {other}",
                True,
                [3],
            )
            for *_, first, other in different()
        ]


def test_ranks_that_agree_hear_of_the_odd_one_too():
    def rank_function():
        tensor = torch.ones(3 if dist.get_rank() == 2 else 2)
        return told(checked_allreduce, tensor, "t")

    text = "ValueError: checked_allreduce: rank 0 has shape (2,), rank 2 has shape (3,)"
    assert run_ranks(rank_function, 4) == [text] * 4


def test_no_two_tags_are_taken_for_one():
    long = "a step with a long name, " * 40
    pairs = [
        (long + "1", long + "2"),
        ("\U0001f600", "\U0001f601"),
        # all that is compared, once more
        ("a", "a\nop 'sum'\nshape (2,)\ndtype torch.float32\nstrides (1,)\ndevice cpu"),
    ]

    def rank_function():
        results = []
        for pair in pairs:
            tensor = torch.ones(2)
            text = told(checked_allreduce, tensor, pair[dist.get_rank()])
            results.append(text and text.startswith("ValueError"))
            checked_allreduce(tensor, pair[1])  # the same on both ranks: no error
            results.append(tensor.tolist())
        return results

    assert run_ranks(rank_function, 2) == [[True, [2, 2]] * len(pairs)] * 2


# what they refuse

CALLS = {
    "broadcast": broadcast,
    "ring_allreduce": ring_allreduce,
    "reduce_scatter": lambda tensor: reduce_scatter([tensor, tensor]),
    "allgather": lambda tensor: allgather([tensor, tensor]),
    "checked_allreduce": lambda tensor: checked_allreduce(tensor, "t"),
}
TYPE = "TypeError: rank 0 holds {}"
PLACE = TYPE.format("a tensor on {}; need an ordinary one on the CPU")
ADDED = TYPE.format("{}; only floats and int64 are added (shorter integers overflow)")
STRIDES = "ValueError: rank 0's tensor is not contiguous, its strides are (1, 3)"
SRC = "ValueError: src must be a rank from 0 to 1, got "
COUNT = "ValueError: rank 0 holds {} chunks; 2 ranks need as many"
CHUNK = "ValueError: rank 0 holds a chunk of torch.{}; need flat ones of one dtype"
SHARED = "ValueError: two chunks share memory; copy the tensor for each rank"
SIGNS = (
    "ValueError: rank 0's tensor is a view that changes signs when it is read; send "
    "tensor.resolve_neg().resolve_conj()"
)
REFUSED = [
    *[
        (lambda t, call=call: call(t.view(2, 3).t()), STRIDES)
        for call in CALLS.values()
    ],
    (lambda t: ring_allreduce([1.0]), TYPE.format("a list, not a tensor")),
    (lambda t: broadcast(t.to_sparse()), PLACE.format("cpu, torch.sparse_coo")),
    (lambda t: broadcast(t.to("meta")), PLACE.format("meta, torch.strided")),
    (lambda t: ring_allreduce(t.int()), ADDED.format("torch.int32")),
    (lambda t: checked_allreduce(t.bool(), "t"), ADDED.format("torch.bool")),
    (lambda t: reduce_scatter([t.cfloat(), t]), ADDED.format("torch.complex64")),
    (lambda t: broadcast(t, 2), SRC + "2"),
    (lambda t: broadcast(t, -1), SRC + "-1"),
    (lambda t: reduce_scatter([t]), COUNT.format(1)),
    (lambda t: allgather([t] * 3), COUNT.format(3)),
    (lambda t: allgather([t, t.view(1, 6)]), CHUNK.format("float32, (1, 6)")),
    (lambda t: reduce_scatter([t, t.double()]), CHUNK.format("float64, (6,)")),
    (lambda t: reduce_scatter([t, t[1:]]), SHARED),
    (lambda t: ring_allreduce(torch._neg_view(t)), SIGNS),
    (lambda t: broadcast(torch.complex(t, t).conj()), SIGNS),
    (
        lambda t: checked_allreduce(t, "t", "max"),
        'ValueError: op must be "sum" or "mean", got \'max\'',
    ),
    (
        lambda t: checked_allreduce(t.long(), "t", "mean"),
        "TypeError: rank 0 holds torch.int64, whose mean is no torch.int64; use a float",
    ),
]


def test_a_wrong_argument_is_named_and_nothing_is_written():
    def rank_function():
        texts = []
        for call, _ in REFUSED:
            tensor, right = torch.ones(6), torch.ones(1)
            texts.append(told(call, tensor))
            ring_allreduce(right)  # and nothing of the call is under way
            texts.append((tensor.tolist(), right.item()))
        return texts

    texts = run_ranks(rank_function, 2)[0]
    assert texts[::2] == [text for _, text in REFUSED]
    assert texts[1::2] == [([1] * 6, 2)] * len(REFUSED)


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_call_outside_a_rank_says_so(call):
    tensor = torch.ones(2)
    with pytest.raises(
        RuntimeError, match="no process group: call this in a rank, with run_ranks"
    ):
        call(tensor)
    assert tensor.tolist() == [1, 1]
