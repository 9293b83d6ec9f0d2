import copy
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import manual_dp
from manual_dp.ranks import (
    RankError,
    allgather,
    broadcast,
    checked_allreduce,
    collectives,
    reduce_scatter,
    ring_allreduce,
    run_ranks,
)

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WORLD_SIZES = [1, 2, 3, 4, 7]
SHAPES = [(), (1,), (5,), (4, 3), (0,)]
DTYPES = [torch.float32, torch.float64, torch.int64]


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
def test_every_rank_ends_with_the_sum_and_with_the_same_bits(world_size):
    # pieces of 16 bytes: these sizes lie around 1, 2, 3, 5 and 9 pieces a chunk
    borders = [
        (2 * pieces * world_size + more,)
        for pieces in (1, 2, 3, 5, 9)
        for more in (-1, 0, 1)
    ]
    cases = [(shape, dtype) for dtype in DTYPES for shape in SHAPES]
    cases += [(shape, torch.int64) for shape in borders]

    def rank_function():
        collectives.PIECE = 16
        rank, sums, theirs = dist.get_rank(), [], []
        for shape, dtype in cases:
            tensor = numbers(rank, shape, dtype)
            theirs.append(tensor.clone())
            dist.all_reduce(theirs[-1])
            ring_allreduce(tensor)
            sums.append(tensor)
        return sums, theirs

    by_rank = run_ranks(rank_function, world_size)
    for i, (shape, dtype) in enumerate(cases):
        tensors = [numbers(rank, shape, dtype) for rank in range(world_size)]
        expected = torch.stack(tensors).sum(dim=0)
        for sums, theirs in by_rank:
            torch.testing.assert_close(sums[i], expected)  # int64: exactly
            torch.testing.assert_close(sums[i], theirs[i])
            assert torch.equal(sums[i], by_rank[0][0][i])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_chunks_are_added_in_the_order_of_the_ring_in_one_process(world_size):
    shapes = [(), (5,), (4, 3), (1000,)]

    def rank_function():
        tensors = [numbers(dist.get_rank(), shape, torch.float32) for shape in shapes]
        for tensor in tensors:
            ring_allreduce(tensor)
        return tensors

    by_rank = run_ranks(rank_function, world_size)
    for i, shape in enumerate(shapes):
        tensors = [numbers(rank, shape, torch.float32) for rank in range(world_size)]
        manual_dp.ring_allreduce(tensors)  # test_allreduce.py has it by hand
        assert all(torch.equal(sums[i], tensors[0]) for sums in by_rank)


def test_pieces_of_the_size_that_is_used_arrive_too():
    size = 2 * (collectives.PIECE // 8 * 2 + 3)  # in each of two chunks two, and a bit

    def rank_function():
        tensor = torch.arange(size) * (dist.get_rank() + 1)
        ring_allreduce(tensor)
        return torch.equal(tensor, torch.arange(size) * 3)

    assert run_ranks(rank_function, 2) == [True] * 2


def test_any_number_of_waiting_receives_gives_the_same():
    def rank_function():
        sums = []
        for collectives.AHEAD in (1, 2, 9):
            collectives.PIECE = 8
            tensor = torch.arange(23) * 10 ** dist.get_rank()
            ring_allreduce(tensor)
            sums.append(tensor.tolist())
        return sums

    assert run_ranks(rank_function, 3) == [[[111 * i for i in range(23)]] * 3] * 3


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_rank_sends_two_tensors_less_two_chunks_to_its_right(world_size):
    sizes = [0, 1, 5, 12 * world_size, 12 * world_size + 1]

    def rank_function():
        collectives.PIECE = 8
        sent, isend = [], dist.isend

        def counted(tensor, dst):
            sent[-1].append((tensor.numel() * tensor.element_size(), dst))
            return isend(tensor, dst)

        dist.isend = counted
        # by hand means by hand
        for (
            name
        ) in "send all_reduce all_gather all_gather_object reduce_scatter".split():
            setattr(dist, name, None)
        for size in sizes:
            sent.append([])
            ring_allreduce(torch.ones(size))
        return sent

    for rank, sent in enumerate(run_ranks(rank_function, world_size)):
        for size, messages in zip(sizes, sent):
            chunks = [len(chunk) for chunk in torch.ones(size).tensor_split(world_size)]
            # reduce_scatter does not send chunk `rank` on, allgather not the next
            elements = 2 * size - chunks[rank] - chunks[(rank + 1) % world_size]
            assert sum(count for count, _ in messages) == 4 * elements
            if size == 12 * world_size:
                assert elements * world_size == 2 * (world_size - 1) * size
            assert {dst for _, dst in messages} <= {(rank + 1) % world_size}


def test_floats_of_two_bytes_and_leaves_are_summed_in_place():
    def rank_function():
        half = torch.tensor([1, 2, 3]).half() * 2 ** dist.get_rank()
        brain = half.bfloat16()
        leaf = half.double().requires_grad_()
        address = leaf.data_ptr()
        for tensor in (half, brain, leaf):
            returned = ring_allreduce(tensor)
        return (
            [tensor.tolist() for tensor in (half, brain, leaf)],
            returned,
            leaf.is_leaf and leaf.requires_grad,
            leaf.data_ptr() == address,
        )

    assert run_ranks(rank_function, 3) == [([[7, 14, 21]] * 3, None, True, True)] * 3


# broadcast


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_broadcast_gives_every_rank_the_bits_of_any_src(world_size):
    cases = [
        (src, shape, dtype)
        for src in range(world_size)
        for shape in SHAPES
        for dtype in DTYPES
    ]
    cases += [
        (0, (5,), dtype)
        for dtype in (  # which cannot be summed
            torch.uint8,
            torch.int16,
            torch.int32,
            torch.bfloat16,
        )
    ]

    def rank_function():
        tensors = [numbers(dist.get_rank(), shape, dtype) for _, shape, dtype in cases]
        for (src, _, _), tensor in zip(cases, tensors):
            broadcast(tensor, src)
        first = numbers(dist.get_rank(), (5,))
        broadcast(first)  # src=0
        return [*tensors, first]

    for tensors in run_ranks(rank_function, world_size):
        for (src, shape, dtype), tensor in zip(cases, tensors):
            assert torch.equal(tensor, numbers(src, shape, dtype))
        assert torch.equal(tensors[-1], numbers(0, (5,)))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_broadcast_goes_down_a_tree(world_size):
    def rank_function():
        counts, send = [], dist.send

        def counted(tensor, dst):
            counts[-1] += 1
            send(tensor, dst)

        dist.send = counted
        for src in range(dist.get_world_size()):
            counts.append(0)
            broadcast(torch.zeros(3), src)
        return counts

    by_rank = run_ranks(rank_function, world_size)
    rounds = (world_size - 1).bit_length()  # the 2-logarithm, rounded up
    for src in range(world_size):
        assert sum(counts[src] for counts in by_rank) == world_size - 1
        assert max(counts[src] for counts in by_rank) == by_rank[src][src] == rounds


# reduce_scatter and allgather


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_scatter_finishes_the_chunk_of_the_rank(world_size):
    sizes = [7 * i % 5 for i in range(world_size)]  # 0, 2, 4, 1, 3, 0, 2: uneven

    def rank_function():
        collectives.PIECE = 16
        rank = dist.get_rank()
        uneven = [numbers(10 * rank + i, (size,)) for i, size in enumerate(sizes)]
        reduce_scatter(uneven)
        even = numbers(rank, (4 * world_size,))
        theirs = torch.empty(4, dtype=torch.float64)
        dist.reduce_scatter_tensor(theirs, even.clone())
        reduce_scatter(even.tensor_split(world_size))
        return uneven[rank], even.tensor_split(world_size)[rank], theirs

    for rank, (uneven, even, theirs) in enumerate(run_ranks(rank_function, world_size)):
        parts = [numbers(10 * r + rank, (sizes[rank],)) for r in range(world_size)]
        torch.testing.assert_close(uneven, torch.stack(parts).sum(dim=0))
        torch.testing.assert_close(even, theirs)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_allgather_gives_every_rank_every_chunk(world_size):
    sizes = [7 * i % 5 for i in range(world_size)]

    def rank_function():
        collectives.PIECE = 16
        rank = dist.get_rank()
        uneven = [numbers(10 * rank + i, (size,)) for i, size in enumerate(sizes)]
        allgather(uneven)
        even = [numbers(10 * rank + i, (6,)) for i in range(world_size)]
        theirs = [torch.empty(6, dtype=torch.float64) for _ in even]
        dist.all_gather(theirs, even[rank])
        allgather(tuple(even))
        return uneven, all(map(torch.equal, even, theirs))

    for uneven, same in run_ranks(rank_function, world_size):
        assert same
        for i, size in enumerate(sizes):
            assert torch.equal(uneven[i], numbers(10 * i + i, (size,)))


# checked_allreduce


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_checked_sum_and_mean_are_the_sum_and_the_mean(world_size):
    def rank_function():
        rank = dist.get_rank()
        results = []
        for shape in SHAPES:
            total, mean = numbers(rank, shape), numbers(rank, shape)
            checked_allreduce(total, f"total {shape}")
            checked_allreduce(mean, f"mean {shape}", op="mean")
            results.append((total, mean))
        whole = torch.tensor([1, 2]) * 10**rank
        leaf = torch.ones(2, requires_grad=True)
        return (
            results,
            checked_allreduce(whole, 7),
            whole.tolist(),
            checked_allreduce(leaf, "leaf", "mean"),
            leaf.tolist(),
        )

    for results, *rest in run_ranks(rank_function, world_size):
        for shape, (total, mean) in zip(SHAPES, results):
            stack = torch.stack([numbers(rank, shape) for rank in range(world_size)])
            torch.testing.assert_close(total, stack.sum(dim=0))
            torch.testing.assert_close(mean, stack.mean(dim=0))
        ones = int("1" * world_size)
        assert rest == [None, [ones, 2 * ones], None, [1, 1]]


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
        ((one, "a", "max"), (one, "a"), "op 'max'", "op 'sum'"),
        ((one, "a"), (one, "a", "max"), "op 'sum'", "op 'max'"),
        ((one, "a", None), (one, "a"), "op None", "op 'sum'"),
        ((one, "a", "max"), (two, "a", "max"), "shape (1,)", "shape (2,)"),
        ((whole, "a"), (one, "a"), "dtype torch.int32", "dtype torch.float32"),
        (
            (one, "a", "mean"),
            (whole, "a", "mean"),
            "dtype torch.float32",
            "dtype torch.int32",
        ),
        (
            (one.cfloat(), "a"),
            (one.bool(), "a"),
            "dtype torch.complex64",
            "dtype torch.bool",
        ),
        ((one, "a"), ([1.0], "a"), "shape (1,)", "a list"),
        ((None, "a"), (one, "a"), "a NoneType", "shape (1,)"),
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
        results = []
        for odd in (0, 1, 3):
            tensor = torch.ones(3 if dist.get_rank() == odd else 2)
            results += told(checked_allreduce, tensor, "t"), tensor.tolist()
        return results

    def text(first, named, other):
        return (
            f"ValueError: checked_allreduce: rank 0 has shape ({first},), "
            f"rank {named} has shape ({other},)"
        )

    for rank, found in enumerate(run_ranks(rank_function, 4)):
        assert found[::2] == [text(3, 1, 2), text(2, 1, 3), text(2, 3, 3)]
        assert found[1::2] == [[1] * (3 if rank == odd else 2) for odd in (0, 1, 3)]


def test_no_two_tags_are_taken_for_one():
    long = "a step with a long name, " * 40
    pairs = [
        (long + "1", long + "2"),
        (long, long + " "),
        ("", " "),
        ("a", "a "),
        ("Schritt für Schritt", "Schritt fur Schritt"),
        ("\u00e9", "e\u0301"),
        ("\U0001f600", "\U0001f601"),
        ("\ud800", "\ud801"),
        ("a", "a\0"),
        ("a\nop 'sum'", "a"),
        ("\\n", "\n"),
        ("1", 2),
        ("None", "none"),
        # all that is compared, once more
        ("a", "a\nop 'sum'\nshape (2,)\ndtype torch.float32\nstrides (1,)\ndevice cpu"),
    ]

    def rank_function():
        results = []
        for pair in pairs:
            tensor = torch.ones(2)
            text = told(checked_allreduce, tensor, pair[dist.get_rank()])
            results.append(
                (text is not None and text.split(" has ")[0], tensor.tolist())
            )
            for tag in pair:
                checked_allreduce(tensor, tag)  # the same on both ranks: no error
            results.append(tensor.tolist())
        return results

    different = ("ValueError: checked_allreduce: rank 0", [1, 1])
    assert run_ranks(rank_function, 2) == [[different, [4, 4]] * len(pairs)] * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda tensor: checked_allreduce(tensor, "step 1"),
        lambda tensor: broadcast(tensor, 1),
    ],
    ids=["checked_allreduce", "broadcast"],
)
def test_a_rank_that_returns_early_is_an_error_and_no_hang(call):
    def rank_function():
        if dist.get_rank() == 0:
            call(torch.ones(4))

    with pytest.raises(
        RankError, match="rank 0 was still waiting in .* when rank 1 had finished"
    ):
        run_ranks(rank_function, 2, timeout=20)


# what they refuse

CALLS = {
    "broadcast": broadcast,
    "ring_allreduce": ring_allreduce,
    "reduce_scatter": lambda tensor: reduce_scatter([tensor, tensor]),
    "allgather": lambda tensor: allgather([tensor, tensor]),
    "checked_allreduce": lambda tensor: checked_allreduce(tensor, "t"),
}
SUMS = ["ring_allreduce", "reduce_scatter", "checked_allreduce"]


def test_every_rank_refuses_what_does_not_fit_and_writes_nothing():
    def rank_function():
        matrix = torch.arange(6.0).view(2, 3)
        bad = {
            "list": [1.0],
            "sparse": torch.eye(2).to_sparse(),
            "meta": torch.ones(2, device="meta"),
            "strides": matrix.t(),
            "every second": matrix.view(-1)[::2],
        }
        texts = {
            (name, what): told(call, tensor)
            for name, call in CALLS.items()
            for what, tensor in bad.items()
        }
        for dtype in (torch.int32, torch.uint8, torch.bool, torch.complex64):
            tensor = torch.ones(2).to(dtype)
            texts.update({(name, dtype): told(CALLS[name], tensor) for name in SUMS})
        ring_allreduce(right := torch.ones(2))  # and nothing of these is under way
        return texts, matrix.tolist(), right.tolist()

    for rank, (texts, matrix, right) in enumerate(run_ranks(rank_function, 2)):
        assert (matrix, right) == ([[0, 1, 2], [3, 4, 5]], [2, 2])
        words = {
            "list": f"TypeError: rank {rank} holds a list, not a tensor",
            "sparse": f"TypeError: rank {rank} holds a tensor on cpu, "
            "torch.sparse_coo; need an ordinary one on the CPU",
            "meta": f"TypeError: rank {rank} holds a tensor on meta, "
            "torch.strided; need an ordinary one on the CPU",
            "strides": f"ValueError: rank {rank}'s tensor is not contiguous, "
            "its strides are (1, 3)",
            "every second": f"ValueError: rank {rank}'s tensor is not contiguous, "
            "its strides are (2,)",
        }
        assert len(texts) == 5 * 5 + 3 * 4
        for (_, what), text in texts.items():
            assert text == words.get(
                what,
                f"TypeError: rank {rank} holds {what}; only "
                "floats and int64 are added (shorter integers "
                "overflow)",
            )


SRC = "ValueError: src must be a rank from 0 to 1, got "
COUNT = "ValueError: rank 0 holds {} chunks; 2 ranks need as many"
CHUNK = "ValueError: rank 0 holds a chunk of torch.{}; need flat ones of one dtype"
SHARED = "ValueError: two chunks share memory; copy the tensor for each rank"
SIGNS = (
    "ValueError: rank 0's tensor is a view that changes signs when it is read; send "
    "tensor.resolve_neg().resolve_conj()"
)
REFUSED = [
    (lambda t: broadcast(t, 2), SRC + "2"),
    (lambda t: broadcast(t, -1), SRC + "-1"),
    (lambda t: broadcast(t, 0.5), SRC + "0.5"),
    (lambda t: broadcast(t, "0"), SRC + "'0'"),
    (lambda t: reduce_scatter([t]), COUNT.format(1)),
    (lambda t: allgather([t] * 3), COUNT.format(3)),
    (lambda t: allgather([t, t.view(1, 2)]), CHUNK.format("float32, (1, 2)")),
    (lambda t: allgather([t[0], t[1]]), CHUNK.format("float32, ()")),
    (lambda t: reduce_scatter([t, t.double()]), CHUNK.format("float64, (2,)")),
    (lambda t: allgather([t] * 2), SHARED),
    (lambda t: reduce_scatter([t] * 2), SHARED),
    (lambda t: allgather([*t[:1].expand(2, 1)]), SHARED),
    (lambda t: reduce_scatter([t, t[1:]]), SHARED),
    (lambda t: ring_allreduce(torch._neg_view(t)), SIGNS),
    (lambda t: broadcast(torch.complex(t, t).conj()), SIGNS),
    (
        lambda t: allgather([t.clone(), torch.complex(t, t).conj()[0].imag.view(1)]),
        SIGNS,
    ),
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
            tensor, right = torch.ones(2), torch.ones(2)
            texts.append(told(call, tensor))
            ring_allreduce(right)
            texts.append((tensor.tolist(), right.tolist()))
        return texts

    texts = run_ranks(rank_function, 2)[0]
    assert texts[::2] == [text for _, text in REFUSED]
    assert texts[1::2] == [([1, 1], [2, 2])] * len(REFUSED)


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_call_outside_a_rank_says_so(call):
    tensor = torch.ones(2)
    with pytest.raises(
        RuntimeError, match="no process group: call this in a rank, with run_ranks"
    ):
        call(tensor)
    assert tensor.tolist() == [1, 1]
