"""Matrices, and what they are called: numbers alone, no ranks."""

import pytest
import torch

from manual_dp.audit.matrix import Gradients, by_microbatch, diagnose, scaled
from manual_dp.audit.notes import Update

G = torch.Generator()


@pytest.fixture(autouse=True)
def same_draws():
    """Let each test draw the same numbers, whichever ran before it."""
    G.manual_seed(0)


def gradients(count, parameters=4):
    return [
        torch.randn(parameters, 16, dtype=torch.float64, generator=G)
        for _ in range(count)
    ]


def update(used, pieces, **more):
    return Update(used=used, pieces=pieces, held=[0, 1, 2, 3], **more)


def mixed(C, one=None, **more):
    """Return ranks that mix gradients as C says, and one device that does as `one`."""
    came = gradients(len(C))

    def mix(c, pieces):
        return update(sum(x * g for x, g in zip(c, came)), pieces, **more)

    return Gradients([mix(c, [g]) for c, g in zip(C, came)], one and mix(one, []))


def finding(C, one=None, **more):
    m = mixed(C, one, **more)
    found = m.matrix()
    for row, asked in zip(found, C):
        assert row == pytest.approx(asked, abs=1e-9)
    return diagnose(found, m)


HALF, THIRD = [0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]
MATRICES = [
    # right
    ([HALF, HALF], HALF, None, ""),
    ([THIRD] * 3, THIRD, None, ""),
    ([[0.6, 0.4]] * 2, [0.6, 0.4], None, ""),
    ([HALF, HALF], None, None, ""),
    ([[1, 1], [1, 1]], None, None, ""),
    ([[1.0]], [1.0], None, ""),
    # one gradient too many, or too few
    ([[1, 1], [1, 1]], HALF, "sum", "2 times a single device's: the world size"),
    ([[1, 1, 1]] * 3, THIRD, "sum", "3 times"),
    ([[0.25, 0.25]] * 2, HALF, "averaged-twice", "0.5 times"),
    ([[0.05, 0.05]] * 2, HALF, "gradient", "0.1 times"),
    # ranks that do not count as they should
    ([HALF, HALF], [0.6, 0.4], "uneven-shards", "1.5, 1 times"),
    ([THIRD] * 3, [0.4, 0.4, 0.2], "uneven-shards", "2, 2, 1 times"),
    ([[1 / 3, 2 / 3, 1 / 3]] * 3, THIRD, "gradient", "1, 2, 1 times"),
    # who is not heard
    ([[1, 0], [0, 1]], HALF, "not-synchronised", "ranks 0 and 1 applied the gradient"),
    ([[1, 0], [0, 1]], None, "not-synchronised", "own rows alone"),
    ([THIRD, [0, 1, 0], [0, 0, 1]], THIRD, "not-synchronised", "ranks 1 and 2 app"),
    (
        [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]],
        THIRD,
        "not-synchronised",
        "rank 2 app",
    ),
    (
        [[1, 0], [1, 0]],
        HALF,
        "not-synchronised",
        "no rank applies the gradient of rank 1",
    ),
    ([[0, 0, 1]] * 3, None, "not-synchronised", "of ranks 0 and 1"),
    ([[1 / 3, 1 / 3, 0]] * 3, THIRD, "not-synchronised", "of rank 2"),
    # other rows
    (
        [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]],
        [0.25] * 4,
        "not-synchronised",
        "gradients 0.5, 0.5, 0, 0 times, rank 2 0, 0, 0.5, 0.5",
    ),
    (
        [HALF, [0.25, 0.75]],
        HALF,
        "not-synchronised",
        "0.5, 0.5 times, rank 1 0.25, 0.75",
    ),
]


@pytest.mark.parametrize("C, one, code, words", MATRICES)
def test_a_matrix_has_its_name(C, one, code, words):
    found = finding(C, one)
    assert (found and found.code) == code
    assert words in (found.says if found else "")


def test_different_multiples_are_a_clip_where_ranks_clip():
    assert finding([HALF, [0.25, 0.25]], HALF, clips=[(1.0, 2.0)]).code == "clip"


def test_a_rank_without_gradients_is_not_missed():
    [g] = gradients(1)
    m = Gradients([update(g / 2, [g]), update(g / 2, [0 * g])])
    assert diagnose(m.matrix(), m) is None


@pytest.mark.parametrize(
    "times, code", [(2, "sum"), (0.5, "averaged-twice"), (1, None), (4, "gradient")]
)
def test_a_multiple_is_called_by_what_it_is(times, code):
    found = scaled(times, mixed([HALF, HALF]))
    assert (found and found.code) == code


# micro-batches


def in_pieces(weights):
    """Return two ranks of three micro-batches; weights[r][k][m]: r counts k's m."""
    pieces = [gradients(3) for _ in range(2)]
    return Gradients(
        [
            update(
                sum(x * g for c, mine in zip(of, pieces) for x, g in zip(c, mine)), own
            )
            for of, own in zip(weights, pieces)
        ]
    )


def test_micro_batches_that_are_not_summed_are_numbered():
    m = in_pieces([[(1, 1, 0.5), (0, 0, 0.5)], [(0, 0, 0.5), (1, 1, 0.5)]])
    assert m.matrix() == [None, None]
    found = by_microbatch(m)
    assert found.code == "not-synchronised" and "micro-batch 1, 2 of 3" in found.says


def test_what_no_micro_batches_explain_is_left():
    m = in_pieces([[(1, 1, 1)] * 2] * 2)
    assert by_microbatch(m) is None
    m.used[0] = gradients(1)[0]
    assert by_microbatch(m) is None
    assert by_microbatch(mixed([HALF, HALF])) is None


@pytest.mark.parametrize(
    "way, cause",
    [
        ("past", "a forward went past DDP"),
        ("off", "DDP's sync was off when a forward began"),
        ("on", "not seen: DDP was called, with its sync on"),
        ("", "no sum over ranks before the step"),
    ],
)
def test_who_applies_its_own_gradient_is_told_why_by_how_its_forwards_began(way, cause):
    assert finding([[1, 0], [0, 1]], way=way).cause.startswith(cause)
