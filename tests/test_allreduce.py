import importlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manual_dp import (
    allgather,
    allreduce,
    reduce_scatter,
    ring_allreduce,
    tree_allreduce,
)
from manual_dp.allreduce import WAYS

ALLREDUCES = [*WAYS.values()]
ANY_LAYOUT = [allreduce, tree_allreduce]
WORLD_SIZES = [1, 2, 3, 4, 7]


def ranks(world_size, *shape, dtype=torch.float64, seed=0):
    """Return one random tensor per rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, dtype=torch.float64, generator=generator).to(dtype)
            for _ in range(world_size)]


def digits(world_size, *shape):
    """Return int64 tensors: element j of rank r is (j + 1) * 10^r, its own digit."""
    ones = torch.arange(1, torch.Size(shape).numel() + 1).view(shape)
    return [ones * 10**rank for rank in range(world_size)]


def cut(tensors):
    return [list(tensor.tensor_split(len(tensors))) for tensor in tensors]


# what all of them do

@pytest.mark.parametrize("allreduce", ALLREDUCES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 3), (0,)])
def test_every_rank_ends_with_the_sum(allreduce, world_size, shape):
    tensors = ranks(world_size, *shape)
    expected = torch.stack(tensors).sum(dim=0)
    allreduce(tensors)
    for tensor in tensors:
        torch.testing.assert_close(tensor, expected)


@pytest.mark.parametrize("allreduce", ALLREDUCES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_counts_once(allreduce, world_size):
    # the sum spells who took part: 3 on rank 0, 30 on rank 1, 300 on rank 2 make 333
    tensors = digits(world_size, 9)
    allreduce(tensors)
    ones = int("1" * world_size)
    for tensor in tensors:
        assert tensor.tolist() == [(j + 1) * ones for j in range(9)]


@pytest.mark.parametrize("allreduce", ALLREDUCES)
@given(world_size=st.integers(1, 9), shape=st.lists(st.integers(0, 5), max_size=3),
       seed=st.integers(0, 99))
def test_any_world_size_and_shape_are_exact(allreduce, world_size, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(-10**9, 10**9, shape, generator=generator)
               for _ in range(world_size)]
    expected = torch.stack(tensors).sum(dim=0)
    allreduce(tensors)
    assert all(torch.equal(tensor, expected) for tensor in tensors)


@pytest.mark.parametrize("allreduce", ALLREDUCES)
def test_the_books_example(allreduce):
    # d2l.ai 12.5.4: [[1, 1]] and [[2, 2]] become [[3, 3]] on both devices.
    data = [torch.ones(1, 2) * (rank + 1) for rank in range(2)]
    allreduce(data)
    assert [tensor.tolist() for tensor in data] == [[[3, 3]], [[3, 3]]]


@pytest.mark.parametrize("allreduce", ALLREDUCES)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_agree_bit_for_bit(allreduce, world_size, dtype):
    tensors = ranks(world_size, 1000, dtype=dtype)
    allreduce(tensors)
    assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)


@pytest.mark.parametrize("allreduce, sums", [
    (allreduce, [0, 0, 0]),       # (2^24 + 1) - 2^24, and the 1 is rounded away
    (tree_allreduce, [0, 0, 0]),  # the same pairs
    # chunk i starts on rank i + 1, goes round, and is finished by rank i:
    # (1 - 2^24) + 2^24, then (-2^24 + 2^24) + 1, then (2^24 + 1) - 2^24
    (ring_allreduce, [1, 1, 0]),
])
def test_the_order_of_the_additions_is_fixed(allreduce, sums):
    tensors = [torch.full((3,), value) for value in (2.0**24, 1.0, -2.0**24)]
    allreduce(tensors)
    assert [tensor.tolist() for tensor in tensors] == [sums] * 3


@pytest.mark.parametrize("allreduce", ALLREDUCES)
def test_works_in_place_and_returns_nothing(allreduce):
    tensors = ranks(3, 4)
    before = [(id(tensor), tensor.data_ptr()) for tensor in tensors]
    assert allreduce(tensors) is None
    assert [(id(tensor), tensor.data_ptr()) for tensor in tensors] == before


@pytest.mark.parametrize("allreduce", ALLREDUCES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32,
                                   torch.float64, torch.int64])
def test_sums_floats_and_int64(allreduce, dtype):
    tensors = [torch.tensor([1, 2, 3]).to(dtype) * 2**rank for rank in range(3)]
    allreduce(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[7, 14, 21]] * 3


@pytest.mark.parametrize("allreduce", ALLREDUCES)
def test_takes_a_tuple(allreduce):
    tensors = tuple(digits(2, 2))
    allreduce(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[11, 22]] * 2


@pytest.mark.parametrize("allreduce", ALLREDUCES)
def test_a_leaf_that_wants_a_gradient_is_summed_outside_the_graph(allreduce):
    tensors = [tensor.requires_grad_() for tensor in ranks(3, 4)]
    expected = torch.stack(tensors).detach().sum(dim=0)
    allreduce(tensors)
    for tensor in tensors:
        assert tensor.is_leaf and tensor.requires_grad
        torch.testing.assert_close(tensor.detach(), expected)


# layouts

@pytest.mark.parametrize("allreduce", ALLREDUCES)
def test_views_that_do_not_overlap_may_share_a_storage(allreduce):
    rows = torch.stack(digits(3, 4))
    allreduce(list(rows))
    assert rows.tolist() == [[111, 222, 333, 444]] * 3


def test_rows_of_a_matrix_are_told_apart_without_listing_every_place(monkeypatch):
    module = importlib.import_module("manual_dp.allreduce")
    monkeypatch.setattr(module, "_places", lambda tensor: pytest.fail("slow"))
    rows = torch.stack(digits(3, 4))
    allreduce(list(rows.flip(0)))
    allreduce([rows[2], rows[0], rows[1]])


def test_columns_of_a_matrix_may_be_the_ranks():
    columns = torch.stack(digits(3, 2), dim=1)
    allreduce(list(columns.t()))
    assert columns.tolist() == [[111, 111, 111], [222, 222, 222]]


@pytest.mark.parametrize("allreduce", ALLREDUCES)
def test_nothing_outside_a_view_is_touched(allreduce):
    bases = digits(3, 9)
    allreduce([base[3:6] for base in bases])
    for rank, base in enumerate(bases):
        assert base[3:6].tolist() == [444, 555, 666]
        outside = torch.tensor([1, 2, 3, 7, 8, 9]) * 10**rank
        assert torch.equal(base[[0, 1, 2, 6, 7, 8]], outside)


LAYOUTS = {
    "transposed": lambda base: base.t(),
    "every second column": lambda base: base[:, ::2],
    "every second row": lambda base: base[::2],
    "one column": lambda base: base[:, 1],
    "permuted": lambda base: base.view(2, 2, 4).permute(2, 0, 1),
}


@pytest.mark.parametrize("allreduce", ANY_LAYOUT)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_strides_do_not_matter(allreduce, layout):
    bases = digits(3, 4, 4)
    expected = [base.clone() for base in bases]
    for base in expected:
        layout(base).copy_(layout(torch.arange(1, 17).view(4, 4)) * 111)
    allreduce([layout(base) for base in bases])
    assert all(torch.equal(base, wanted) for base, wanted in zip(bases, expected))


@pytest.mark.parametrize("allreduce", ANY_LAYOUT)
def test_every_rank_may_have_strides_of_its_own(allreduce):
    tensors = [digits(1, 2, 3)[0], digits(1, 2, 3)[0].t().contiguous().t() * 10,
               torch.zeros(2, 6).long()[:, ::2] + digits(1, 2, 3)[0] * 100]
    allreduce(tensors)
    assert [tensor.tolist() for tensor in tensors] == [[[111, 222, 333],
                                                        [444, 555, 666]]] * 3


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_ring_refuses_strides_and_writes_nothing(layout):
    bases = digits(3, 4, 4)
    with pytest.raises(ValueError, match=r"contiguous .* rank 0's has strides \("):
        ring_allreduce([layout(base) for base in bases])
    assert all(torch.equal(base, old) for base, old in zip(bases, digits(3, 4, 4)))


def test_the_ring_names_the_rank_that_has_strides():
    tensors = [torch.zeros(2, 3), torch.zeros(3, 2).t()]
    with pytest.raises(ValueError, match=r"rank 1's has strides \(1, 2\)"):
        ring_allreduce(tensors)


# what all of them refuse, and then nothing has been written

def refused():
    one = torch.ones(2)
    base, array = torch.arange(6.0), torch.arange(6.0).numpy()
    return {
        "empty list": ([], ValueError, "tensor for each rank, got an empty list"),
        "no list": (torch.ones(2, 2), TypeError, "need a list of tensors, got Tensor"),
        "dict": ({0: one}, TypeError, "need a list of tensors, got dict"),
        "same tensor twice": ([one, one], ValueError, "two ranks share memory"),
        "three ranks, two the same": ([torch.ones(2), one, one], ValueError,
                                      "two ranks share memory"),
        "view of the same tensor": ([one, one.view(2)], ValueError, "share memory"),
        "overlapping views": ([base[:4], base[2:]], ValueError, "share memory"),
        "overlapping views of numpy's": (
            [torch.from_numpy(array[:4]), torch.from_numpy(array[2:])], ValueError,
            "share memory"),
        "interleaved views": ([base[::2], base[2:5]], ValueError, "share memory"),
        "expanded first": ([torch.ones(1).expand(3), torch.ones(3)], ValueError,
                           "share memory"),
        "expanded last": ([torch.ones(3), torch.ones(1).expand(3)], ValueError,
                          "share memory"),
        "(2, 3) and (3,)": ([torch.ones(2, 3), torch.ones(3)], ValueError,
                            r"rank 1 holds shape \(3,\), rank 0 holds \(2, 3\)"),
        "(3,) and (2, 3)": ([torch.ones(3), torch.ones(2, 3)], ValueError,
                            r"rank 1 holds shape \(2, 3\), rank 0 holds \(3,\)"),
        "(2, 3) and (1,)": ([torch.ones(2, 3), torch.ones(1)], ValueError,
                            r"rank 1 holds shape \(1,\), rank 0 holds \(2, 3\)"),
        "last of three": ([torch.ones(2), torch.ones(2), torch.ones(3)], ValueError,
                          r"rank 2 holds shape \(3,\)"),
        "int64 and float": ([one.long(), torch.ones(2)], TypeError,
                            "rank 1 holds torch.float32, rank 0 holds torch.int64"),
        "float and int64": ([one, torch.ones(2).long()], TypeError,
                            "rank 1 holds torch.int64, rank 0 holds torch.float32"),
        "float16 and float32": ([one.half(), torch.ones(2)], TypeError,
                                "rank 1 holds .*float32, rank 0 holds .*float16"),
        "float64 and float32": ([one.double(), torch.ones(2)], TypeError,
                                "rank 1 holds .*float32, rank 0 holds .*float64"),
        "uint8": ([one.byte(), torch.ones(2).byte()], TypeError,
                  "rank 0 holds torch.uint8; only floats and int64 are added"),
        "bool": ([one.bool(), torch.ones(2).bool()], TypeError,
                 "rank 0 holds torch.bool; only floats and int64 are added"),
        "complex64": ([one.cfloat(), torch.ones(2).cfloat()], TypeError,
                      "rank 0 holds torch.complex64; only floats and int64 are added"),
        "list of lists": ([[1.0], [2.0]], TypeError,
                          "rank 0 holds a list, not a tensor"),
        "numpy": ([one, torch.ones(2).numpy()], TypeError, "rank 1 holds a ndarray"),
        "gradient of None": ([one, None], TypeError, "rank 1 holds a NoneType"),
        "meta": ([one, torch.ones(2, device="meta")], TypeError,
                 "rank 1 holds a tensor without numbers in memory: meta"),
        "sparse": ([one, torch.ones(2).to_sparse()], TypeError,
                   "rank 1 holds a tensor without numbers in memory: .*sparse_coo"),
    }


def readable(tensors):
    return [t for t in tensors if isinstance(t, torch.Tensor)
            and not t.is_meta and not t.is_sparse]


@pytest.mark.parametrize("allreduce", ALLREDUCES)
@pytest.mark.parametrize("case", refused())
def test_refuses_and_writes_nothing(allreduce, case):
    tensors, error, message = refused()[case]
    kept = readable(tensors)
    before = [tensor.clone() for tensor in kept]
    with pytest.raises(error, match=message):
        allreduce(tensors)
    assert all(torch.equal(tensor, old) for tensor, old in zip(kept, before))


# reduce_scatter and allgather

def test_reduce_scatter_by_hand():
    # Three ranks each hold [1, 10, 100] as three chunks of one element.
    chunks = [list(torch.tensor([1., 10., 100.]).split(1)) for _ in range(3)]
    assert reduce_scatter(chunks) is None
    assert [chunks[rank][rank].item() for rank in range(3)] == [3, 30, 300]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_scatter_finishes_every_ranks_own_chunk(world_size):
    chunks = cut(digits(world_size, 9))
    expected = (torch.arange(1, 10) * int("1" * world_size)).tensor_split(world_size)
    reduce_scatter(chunks)
    for rank in range(world_size):
        assert torch.equal(chunks[rank][rank], expected[rank])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_allgather_copies_every_ranks_own_chunk_to_all(world_size):
    chunks = cut(digits(world_size, 9))
    expected = [chunks[rank][rank].tolist() for rank in range(world_size)]
    assert allgather(chunks) is None
    for row in chunks:
        assert [chunk.tolist() for chunk in row] == expected


def test_chunks_of_one_rank_may_have_different_shapes():
    shapes = [(2, 3), (), (0,)]
    chunks = [[torch.full(shape, 10.0**rank) for shape in shapes] for rank in range(3)]
    reduce_scatter(chunks)
    allgather(chunks)
    for row in chunks:
        assert [chunk.tolist() for chunk in row] == [[[111.0] * 3] * 2, 111.0, []]


def test_chunks_that_want_a_gradient_are_summed_outside_the_graph():
    chunks = [[torch.ones(2, requires_grad=True) for _ in range(2)] for _ in range(2)]
    reduce_scatter(chunks)
    allgather(chunks)
    assert all(chunk.is_leaf and chunk.tolist() == [2, 2]
               for row in chunks for chunk in row)


def test_chunks_may_be_strided_views():
    bases = digits(2, 2, 2)
    chunks = [list(base.t()) for base in bases]
    reduce_scatter(chunks)
    allgather(chunks)
    assert [base.tolist() for base in bases] == [[[11, 22], [33, 44]]] * 2


def refused_chunks():
    row = [torch.ones(2), torch.ones(2)]
    return {
        "empty": ([], ValueError, "chunks for each rank, got an empty list"),
        "too few": ([row, [torch.ones(2)]], ValueError,
                    "rank 1 holds 1 chunks; 2 ranks need as many chunks each"),
        "too many": ([row * 2, row], ValueError, "rank 0 holds 4 chunks; 2 ranks"),
        "same row twice": ([row, row], ValueError, "two ranks share memory"),
        "shape": ([row, [torch.ones(2), torch.ones(3)]], ValueError,
                  r"chunk 1 of rank 1 holds .*\(3,\), chunk 1 of rank 0 holds \(2,\)"),
        "dtype": ([row, [torch.ones(2).double(), torch.ones(2)]], TypeError,
                  "chunk 0 of rank 1 holds torch.float64, chunk 0 of rank 0 holds "
                  "torch.float32"),
        "no tensor": ([row, [torch.ones(2), None]], TypeError,
                      "chunk 1 of rank 1 holds a NoneType, not a tensor"),
    }


@pytest.mark.parametrize("function", [reduce_scatter, allgather])
@pytest.mark.parametrize("case", refused_chunks())
def test_refuses_chunks_and_writes_nothing(function, case):
    chunks, error, message = refused_chunks()[case]
    kept = readable([chunk for row in chunks for chunk in row])
    with pytest.raises(error, match=message):
        function(chunks)
    assert all((tensor == 1).all() for tensor in kept)


@pytest.mark.parametrize("function", [reduce_scatter, allgather])
@pytest.mark.parametrize("share", [
    lambda a, b, c, d: [[a, a], [c, d]],            # of one rank
    lambda a, b, c, d: [[a, b], [b, d]],            # of two ranks, at other places
    lambda a, b, c, d: [[a[:1], a], [c[:1], d]],    # in part
])
def test_chunks_that_share_memory_are_refused(function, share):
    tensors = [torch.full((2,), 10.0**i) for i in range(4)]
    with pytest.raises(ValueError, match="two chunks share memory"):
        function(share(*tensors))
    assert [t.tolist() for t in tensors] == [[10.0**i] * 2 for i in range(4)]


@pytest.mark.parametrize("function", [allreduce, tree_allreduce])
def test_a_tensor_whose_own_places_overlap_is_refused(function):
    rolling = torch.arange(4.0).as_strided((3, 2), (1, 1))  # as unfold makes them
    tensors = [torch.ones(3, 2), rolling]
    with pytest.raises(ValueError, match="share memory"):
        function(tensors)
    assert tensors[0].tolist() == [[1, 1]] * 3
    assert rolling.tolist() == [[0, 1], [1, 2], [2, 3]]
