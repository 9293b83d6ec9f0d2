"""All-reduces over a list: what they promise for any ranks, shapes and strides."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manual_dp import allgather, allreduce, checks, reduce_scatter
from manual_dp.allreduce import WAYS
from manual_dp.allreduce import __doc__ as PAGE
from tests.support.exact import assert_each_holds

CUTTING = ["ring", "halving-doubling"]  # they cut tensors, which must be contiguous
DTYPES = [torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def test_the_first_page_lists_each_way():
    names = [way.__name__ for way in WAYS.values()]
    lost = [n for n in names if PAGE.count(f"    {n} ") != 2]
    assert lost == [], "list it, or drop it, in both tables at the top of allreduce.py"


def test_a_wrong_sum_is_told_with_its_way_rank_place_and_both_values():
    right, wrong = digits(3, 2, 2), digits(3, 2, 2)
    wrong[1][0, 1], wrong[1][1, 1] = 7, 8
    told = r"^ring, 3 ranks: rank 1 holds 7 at \(0, 1\), expected 20; 2 of 4 differ"
    with pytest.raises(AssertionError, match=told):
        assert_each_holds(wrong, right, "ring")
    wrong[1] = torch.zeros(2)
    told = r"rank 1 holds torch.float32 \(2,\), expected torch.int64 \(2, 2\)"
    with pytest.raises(AssertionError, match=told):
        assert_each_holds(wrong, right, "ring")
    with pytest.raises(AssertionError, match="ring: 2 ranks answered"):
        assert_each_holds(wrong[:2], right, "ring")


every_way = pytest.mark.parametrize("way", WAYS)


def digits(world_size, *shape):
    """Return int64 tensors: element j of rank r is (j + 1) * 10^r, its own digit."""
    ones = torch.arange(1, torch.Size(shape).numel() + 1).view(shape)
    return [ones * 10**rank for rank in range(world_size)]


@every_way
@given(
    world_size=st.integers(1, 9),
    shape=st.lists(st.integers(0, 5), max_size=3),
    dtype=st.sampled_from(DTYPES),
    wants_gradient=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_rank_ends_with_the_exact_sum_outside_the_graph(
    way, world_size, shape, dtype, wants_gradient, seed
):
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randint(-9, 10, shape, generator=generator).to(dtype)
        for _ in range(world_size)
    ]
    expected = torch.stack(tensors).sum(dim=0)
    wants_gradient = wants_gradient and dtype.is_floating_point
    tensors = tuple(tensor.requires_grad_(wants_gradient) for tensor in tensors)
    assert WAYS[way](tensors) is None
    assert_each_holds(tensors, [expected] * world_size, way)
    for tensor in tensors:
        assert tensor.is_leaf and tensor.requires_grad == wants_gradient


@every_way
def test_ranks_agree_bit_for_bit(way):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.rand(1000, generator=generator) for _ in range(7)]
    expected = torch.stack(tensors).sum(dim=0)
    WAYS[way](tensors)
    assert_each_holds(tensors, [tensors[0]] * 7, way)
    torch.testing.assert_close(tensors[0], expected)


@pytest.mark.parametrize(
    "way, sums",
    [
        ("star", [0, 0, 0]),  # (2^24 + 1) - 2^24, and the 1 is rounded away
        ("tree", [0, 0, 0]),  # the same pairs
        ("halving-doubling", [0, 0, 0]),  # rank 1 is the guest of rank 0
        # chunk i starts on rank i + 1, goes round, and is finished by rank i:
        # (1 - 2^24) + 2^24, then (-2^24 + 2^24) + 1, then (2^24 + 1) - 2^24
        ("ring", [1, 1, 0]),
    ],
)
def test_the_order_of_the_additions_is_fixed(way, sums):
    tensors = [torch.full((3,), value) for value in (2.0**24, 1.0, -(2.0**24))]
    WAYS[way](tensors)
    assert_each_holds(tensors, [torch.tensor(sums).float()] * 3, way)


# layouts

LAYOUTS = {  # of a base of 4 x 4 numbers: what of it is the rank's tensor
    "rows in the middle": lambda base, rank: base[1:3],
    "transposed": lambda base, rank: base.t(),
    "every second column": lambda base, rank: base[:, ::2],
    "of each rank its own": lambda base, rank: (
        base[:, ::2],
        base.t()[:, :2],
        base[1:3].view(4, 2),
    )[rank % 3],
}


@every_way
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_counts_once_and_nothing_outside_a_view_is_touched(way, layout):
    bases, expected = digits(3, 4, 4), digits(3, 4, 4)
    views, places = (
        [LAYOUTS[layout](base, rank) for rank, base in enumerate(some)]
        for some in (bases, expected)
    )
    if way in CUTTING and not views[0].is_contiguous():
        with pytest.raises(ValueError, match=r"contiguous .* rank 0's has strides \("):
            WAYS[way](views)
    else:
        total = sum(views)
        for place in places:
            place.copy_(total)
        WAYS[way](views)
    assert_each_holds(bases, expected, f"{way}, {layout}")


@pytest.mark.parametrize("way", CUTTING)
def test_the_rank_that_has_strides_is_named(way):
    with pytest.raises(ValueError, match=r"rank 1's has strides \(1, 2\)"):
        WAYS[way]([torch.zeros(2, 3), torch.zeros(3, 2).t()])


def test_rows_of_a_matrix_are_told_apart_without_listing_every_place(monkeypatch):
    monkeypatch.setattr(checks, "_places", lambda tensor: pytest.fail("slow"))
    rows = torch.stack(digits(3, 4))
    allreduce([rows[2], rows[0], rows[1]])
    assert rows.tolist() == [[111, 222, 333, 444]] * 3


def test_columns_of_a_matrix_may_be_the_ranks():
    columns = torch.stack(digits(3, 2), dim=1)
    allreduce(list(columns.t()))
    assert columns.tolist() == [[111, 111, 111], [222, 222, 222]]


# what all of them refuse, and then nothing has been written


def refused():
    one, other, base = torch.ones(2), torch.ones(2), torch.arange(6.0)
    rolling = base.as_strided((3, 2), (1, 1))  # overlaps itself, as unfold makes them
    return {
        "empty list": ([], ValueError, "tensor for each rank, got an empty list"),
        "no list": (torch.ones(2, 2), TypeError, "need a list of tensors, got Tensor"),
        "dict": ({0: one}, TypeError, "need a list of tensors, got dict"),
        "twice among three": ([other, one, one.view(2)], ValueError, "two ranks share"),
        "overlapping": ([base[:4], base[2:]], ValueError, "two ranks share memory"),
        "interleaved": ([base[::2], base[2:5]], ValueError, "two ranks share memory"),
        "expanded first": (
            [torch.ones(1).expand(3), torch.ones(3)],
            ValueError,
            "share",
        ),
        "overlaps itself": (
            [torch.ones(3, 2), rolling],
            ValueError,
            "two ranks share memory",
        ),
        "last of three": (
            [one, other, torch.ones(1)],
            ValueError,
            r"rank 2 holds shape \(1,\), rank 0 holds \(2,\)",
        ),
        "int64 and float": (
            [one.long(), other],
            TypeError,
            "rank 1 holds torch.float32, rank 0 holds torch.int64",
        ),
        "uint8": (
            [one.byte(), other.byte()],
            TypeError,
            "rank 0 holds torch.uint8; only floats and int64 are added",
        ),
        "complex64": (
            [one.cfloat(), other.cfloat()],
            TypeError,
            "rank 0 holds torch.complex64; only floats and int64 are added",
        ),
        "list of lists": (
            [[1.0], [2.0]],
            TypeError,
            "rank 0 holds a list, not a tensor",
        ),
        "gradient of None": ([one, None], TypeError, "rank 1 holds a NoneType"),
        "meta": (
            [one, other.to("meta")],
            TypeError,
            "rank 1 holds a tensor without numbers in memory: meta",
        ),
        "sparse": (
            [one, other.to_sparse()],
            TypeError,
            "rank 1 holds a tensor without numbers in memory: .*sparse_coo",
        ),
    }


def refuses_and_writes_nothing(function, arguments, tensors, error, message):
    tensors = [
        tensor
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
        and not tensor.is_meta
        and not tensor.is_sparse
    ]
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(error, match=message):
        function(arguments)
    assert_each_holds(tensors, before, f"refused by {function.__name__}", "tensor")


@pytest.mark.parametrize("case", refused())
def test_refuses_and_writes_nothing(case):
    tensors, error, message = refused()[case]
    refuses_and_writes_nothing(allreduce, tensors, tensors, error, message)


@every_way
def test_every_way_refuses_what_the_star_refuses(way):
    tensors, error, message = refused()["gradient of None"]
    refuses_and_writes_nothing(WAYS[way], tensors, tensors, error, message)


# reduce_scatter and allgather


def test_both_halves_by_hand():
    # Three ranks each hold [1, 10, 100] as three chunks of one element.
    chunks = [list(torch.tensor([1.0, 10.0, 100.0]).split(1)) for _ in range(3)]
    reduce_scatter(chunks)
    assert [chunks[rank][rank].item() for rank in range(3)] == [3, 30, 300]
    chunks = [list(tensor.split(1)) for tensor in digits(3, 3)]
    allgather(chunks)  # copies what it finds on the diagonal
    assert [[chunk.item() for chunk in row] for row in chunks] == [[1, 20, 300]] * 3


def test_chunks_of_any_shapes_and_strides_are_finished_and_copied():
    shapes = [(), (2, 3), (0,), (1,), (5,), (4, 3), (2,)]
    world_size = len(shapes)
    # chunk i of rank r is 10^r (i + 1); where it has two dimensions, it is transposed
    chunks = [
        [
            torch.full(shape, 10.0**rank * (i + 1), dtype=torch.float64)
            for i, shape in enumerate(shapes)
        ]
        for rank in range(world_size)
    ]
    chunks = [
        [(chunk.t() if chunk.dim() == 2 else chunk).requires_grad_() for chunk in row]
        for row in chunks
    ]
    sums = [int("1" * world_size) * (i + 1) for i in range(world_size)]
    assert reduce_scatter(chunks) is None
    expected = [torch.full_like(chunks[0][i], sums[i]) for i in range(world_size)]
    finished = [chunks[rank][rank] for rank in range(world_size)]
    assert_each_holds(finished, expected, "reduce_scatter")
    assert allgather(chunks) is None
    for i in range(world_size):
        copies = [row[i] for row in chunks]
        assert_each_holds(copies, [expected[i]] * world_size, f"allgather, chunk {i}")
        assert all(chunk.is_leaf for chunk in copies)


NAMED = {"E": torch.ones(3), "D": torch.ones(2).double(), "N": None}


@pytest.mark.parametrize("half", [reduce_scatter, allgather])
@pytest.mark.parametrize(
    "rows, error, message",
    [  # a row for each rank, chunks by name
        ("", ValueError, "chunks for each rank, got an empty list"),
        ("ab c", ValueError, "rank 1 holds 1 chunks; 2 ranks need as many chunks each"),
        ("abcd ab", ValueError, "rank 0 holds 4 chunks; 2 ranks"),
        ("ab ab", ValueError, "two ranks share memory"),
        ("aa cd", ValueError, "two chunks share memory"),  # of one rank
        # of two ranks, at other places
        ("ab bd", ValueError, "two chunks share memory"),
        (
            "ab cE",
            ValueError,
            r"chunk 1 of rank 1 holds shape \(3,\), chunk 1 of rank 0 holds \(2,\)",
        ),
        (
            "ab Dd",
            TypeError,
            "chunk 0 of rank 1 holds torch.float64, chunk 0 of rank 0 holds "
            "torch.float32",
        ),
        ("ab cN", TypeError, "chunk 1 of rank 1 holds a NoneType, not a tensor"),
    ],
)
def test_refuses_chunks_and_writes_nothing(half, rows, error, message):
    named = NAMED | {name: torch.full((2,), 10.0**i) for i, name in enumerate("abcd")}
    chunks = [[named[name] for name in row] for row in rows.split()]
    refuses_and_writes_nothing(half, chunks, named.values(), error, message)
