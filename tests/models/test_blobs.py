import pytest
import torch

from manual_dp.models.blobs import blobs, load_blobs


def test_images_are_fractions_and_masks_are_zeros_and_ones():
    X, y = blobs(40)
    assert X.shape == y.shape == (40, 32, 32)
    assert X.dtype == torch.float64 and y.dtype == torch.int64
    assert 0 <= X.min() and X.max() <= 1
    assert y.unique().tolist() == [0, 1]
    assert blobs(2, size=8)[0].shape == (2, 8, 8)


def by_floats(rows, seed, size):
    """Generate the same blobs in Python's floats, a pixel at a time."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.rand(rows, *shape, dtype=torch.float64, generator=generator)
        return values.tolist()

    def scale(value, low, high):
        return low + (high - low) * value

    grounds = [
        (grain, share, draw(size // grain + 1, size // grain + 1))
        for grain, share in ((8, 0.5), (4, 0.2), (1, 0.1))
    ]
    counts = draw()
    ellipses = [[draw() for _ in range(6)] for _ in range(3)]

    def pixel(n, row, column):
        value, inside = 0.0, False
        for grain, share, noise in grounds:
            i, j = column // grain, row // grain
            near, far = (
                here + (there - here) * (row % grain / grain)
                for here, there in (noise[n][i][j : j + 2], noise[n][i + 1][j : j + 2])
            )
            value += share * (near + (far - near) * (column % grain / grain))
        for x, y, tilt, along, across, light in ellipses[: int(1 + 3 * counts[n])]:
            dx = column - scale(x[n], 0.1, 0.9) * size
            dy = row - scale(y[n], 0.1, 0.9) * size
            half = scale(tilt[n], -1, 1)
            cos = (1 - half * half) / (1 + half * half)
            sin = 2 * half / (1 + half * half)
            u = (cos * dx + sin * dy) / (scale(along[n], 0.1, 0.24) * size)
            v = (cos * dy - sin * dx) / (scale(across[n], 0.1, 0.24) * size)
            d = u * u + v * v
            edge = d * d * d * d
            light = scale(light[n], 0.35, 0.7) / (1 + edge * edge)
            value += light * (1 - value)
            inside = inside or d <= 1
        return value, int(inside)

    return [
        [[pixel(n, row, column) for column in range(size)] for row in range(size)]
        for n in range(rows)
    ]


@pytest.mark.parametrize("rows, seed, size", [(3, 5, 16), (2, 0, 32), (1, 1, 8)])
def test_every_bit_is_what_pythons_own_floats_give(rows, seed, size):
    # no sin, no exp, no sum in an order of the processor's choice
    X, y = blobs(rows, seed, size)
    expected = by_floats(rows, seed, size)
    assert torch.stack([X, y.double()], dim=-1).tolist() == [
        [[[value, inside] for value, inside in row] for row in image]
        for image in expected
    ]


def test_only_the_seed_decides():
    before = torch.get_rng_state()
    X, y = blobs(4, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)  # somebody else draws
    again, other = blobs(4, seed=3), blobs(4, seed=4)
    assert torch.equal(again[0], X) and torch.equal(again[1], y)
    assert not torch.equal(other[0], X) and not torch.equal(other[1], y)


def test_a_threshold_finds_the_blobs_badly():
    X, y = blobs(100, seed=1)
    scores = []
    for percent in range(100):
        found, there = X > percent / 100, y == 1
        scores.append((found & there).sum().item() / (found | there).sum().item())
    assert 0.6 < max(scores) < 0.75


@pytest.mark.parametrize(
    "rows, size, message",
    [
        (0, 32, "rows must be an integer >= 1, got 0"),
        (2.0, 32, r"rows must be an integer >= 1, got 2\.0"),
        (True, 32, "rows must be an integer >= 1, got True"),
        (2, 12, "size must be a multiple of 8 pixels, got 12"),
        (2, 0, "size must be a multiple of 8 pixels, got 0"),
        (2, 32.0, r"size must be a multiple of 8 pixels, got 32\.0"),
    ],
)
def test_refuses_to_generate(rows, size, message):
    with pytest.raises(ValueError, match=message):
        blobs(rows, size=size)


# in minibatches


def test_blobs_come_as_images_with_a_label_a_pixel():
    train_iter, test_iter = load_blobs(30, dtype=torch.float64)
    for batches, rows, seed in ((train_iter, 400, 0), (test_iter, 100, 1)):
        X, y = blobs(rows, seed)
        assert torch.equal(batches.X, X.unsqueeze(1)) and torch.equal(batches.y, y)
        assert batches.y.dtype == torch.int64 and batches.batch_size == 30
    X, y = next(iter(train_iter))
    assert X.shape == (30, 1, 32, 32) and y.shape == (30, 32, 32)
    single = load_blobs()[1].X
    assert single.dtype == torch.float32 and torch.equal(single, test_iter.X.float())


def test_the_blobs_are_the_same_for_every_seed_and_only_their_order_differs():
    first, other = (load_blobs(100, seed) for seed in (0, 1))
    assert torch.equal(first[0].X, other[0].X)
    assert not torch.equal(next(iter(first[0]))[0], next(iter(other[0]))[0])
    assert torch.equal(next(iter(first[1]))[0], first[1].X)
