"""Matrices, and what they are called: numbers alone, no ranks."""

import pytest
import torch

from manual_dp.audit.mixing import Mixed, by_parameter, by_pieces, read, scaled

G = torch.Generator().manual_seed(0)


def gradients(count, parameters=4):
    return [torch.randn(parameters, 16, dtype=torch.float64, generator=G)
            for _ in range(count)]


def mixed(C, one=None, **more):
    """Return ranks that mix gradients as C says, and one device that does as `one`."""
    came = gradients(len(C))

    def mix(c):
        return sum(x * g for x, g in zip(c, came))
    return Mixed(came, [mix(c) for c in C], [[0, 1, 2, 3]] * len(C),
                 [[g] for g in came], alone=one and mix(one), **more)


def finding(C, one=None, **more):
    m = mixed(C, one, **more)
    found = m.matrix()
    for row, asked in zip(found, C):
        assert row == pytest.approx(asked, abs=1e-9)
    return read(found, one and m.fit(0, m.came, m.alone), m)


HALF, THIRD = [.5, .5], [1 / 3, 1 / 3, 1 / 3]
MATRICES = [
    # right
    ([HALF, HALF], HALF, None, ""),
    ([THIRD] * 3, THIRD, None, ""),
    ([[.6, .4]] * 2, [.6, .4], None, ""),
    ([HALF, HALF], None, None, ""),
    ([[1, 1], [1, 1]], None, None, ""), ([[1.0]], [1.0], None, ""),
    # one gradient too many, or too few
    ([[1, 1], [1, 1]], HALF, "sum", "2 times a single device's: the world size"),
    ([[1, 1, 1]] * 3, THIRD, "sum", "3 times"),
    ([[.25, .25]] * 2, HALF, "averaged-twice", "0.5 times"),
    ([[.05, .05]] * 2, HALF, "gradient", "0.1 times"),
    # ranks that do not count as they should
    ([HALF, HALF], [.6, .4], "uneven-shards", "1.5, 1 times"),
    ([THIRD] * 3, [.4, .4, .2], "uneven-shards", "2, 2, 1 times"),
    ([[1 / 3, 2 / 3, 1 / 3]] * 3, THIRD, "gradient", "1, 2, 1 times"),
    # who is not heard
    ([[1, 0], [0, 1]], HALF, "not-synchronised", "ranks 0 and 1 applied the gradient"),
    ([[1, 0], [0, 1]], None, "not-synchronised", "own rows alone"),
    ([THIRD, [0, 1, 0], [0, 0, 1]], THIRD, "not-synchronised",
     "the sum is on rank 0, and was not sent back"),
    ([[.5, .5, 0], [.5, .5, 0], [0, 0, 1]], THIRD, "not-synchronised", "rank 2 app"),
    ([[.5, .5, 0, 0], [.5, .5, 0, 0], [0, 0, .5, .5], [0, 0, .5, .5]], [.25] * 4,
     "not-synchronised", "rank 0 applied the gradient of ranks 0 and 1 alone"),
    ([[1, 0], [1, 0]], HALF, "rank-left-out", "all ranks apply rank 0's gradient"),
    ([[0, 0, 1]] * 3, THIRD, "rank-left-out", "all ranks apply rank 2's gradient"),
    ([[.5, 0], [.5, 0]], HALF, "rank-left-out", "the sum leaves out rank 1"),
    ([[1 / 3, 1 / 3, 0]] * 3, THIRD, "rank-left-out", "the sum leaves out rank 2"),
    # other rows
    ([HALF, [.25, .25]], HALF, "gradient", "multiples of one gradient: 1, 0.5"),
    ([HALF, [.25, .75]], HALF, "gradient", "different mixtures"),
]


@pytest.mark.parametrize("C, one, code, words", MATRICES)
def test_a_matrix_has_its_name(C, one, code, words):
    found = finding(C, one)
    assert (found and found.code) == code
    assert words in (found.says if found else "")


def test_different_multiples_are_a_clip_where_ranks_clip():
    assert finding([HALF, [.25, .25]], HALF, clipped=True).code == "clip"


def test_a_wrapper_that_was_never_called_is_said():
    assert finding([[1, 0], [0, 1]], past=True).says.endswith("the wrapper that sums")


def test_a_rank_without_gradients_is_not_missed():
    m = mixed([HALF, HALF])
    m = Mixed([m.came[0], 0 * m.came[1]], [m.came[0] / 2] * 2, m.held)
    assert read(m.matrix(), None, m) is None


@pytest.mark.parametrize("times, code", [
    (2, "sum"), (.5, "averaged-twice"), (4, "accumulation"), (1, None),
    (3, "gradient")])
def test_a_multiple_is_called_by_what_it_is(times, code):
    m = mixed([HALF, HALF])
    m.pieces = [gradients(4)] * 2
    found = scaled(times, m)
    assert (found and found.code) == code


# micro-batches

def in_pieces(weights, **more):
    """Return two ranks of three micro-batches; weights[r][k][m]: r counts k's m."""
    pieces = [gradients(3) for _ in range(2)]
    used = [sum(x * g for k in range(2) for x, g in zip(of[k], pieces[k]))
            for of in weights]
    came = [sum(mine) for mine in pieces]
    return Mixed(came, used, [[0, 1, 2, 3]] * 2, pieces, **more)


def test_micro_batches_that_are_not_summed_are_numbered():
    m = in_pieces([[(1, 1, .5), (0, 0, .5)], [(0, 0, .5), (1, 1, .5)]])
    assert m.matrix() == [None, None]
    found = by_pieces(m)
    assert found.code == "not-synchronised" and "micro-batch 1, 2 of 3" in found.says


def test_micro_batches_that_count_more_are_told():
    weights = [(.5, .25, .125)] * 2
    assert by_pieces(in_pieces([weights] * 2)).code == "accumulation"
    assert by_pieces(in_pieces([weights] * 2, clipped=True)).code == "clip"
    assert by_pieces(in_pieces([[(1, 1, 1)] * 2] * 2)) is None


def test_what_no_micro_batches_explain_is_left():
    m = in_pieces([[(1, 1, 1)] * 2] * 2)
    m.used[0] = gradients(1)[0]
    assert by_pieces(m) is None
    assert by_pieces(mixed([HALF, HALF])) is None


# parameters

def test_a_layer_that_is_left_out_is_named():
    m = mixed([HALF, HALF])
    for r in range(2):
        m.used[r][2:] = m.came[r][2:]
    found = by_parameter(m, ["a", "b", "c", "d"])
    assert found.code == "not-synchronised" and found.says.endswith("c and 1 more")


def test_what_is_changed_alike_on_all_ranks_is_no_finding():
    m = mixed([HALF, HALF])
    for r in range(2):
        m.used[r] = m.used[r].clamp(-.1, .1)
    assert None in m.matrix()
    assert by_parameter(m, ["a", "b", "c", "d"]) is None
