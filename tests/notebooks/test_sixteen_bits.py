"""notebooks/programs/sixteen_bits.py: what lesson 15 shows of numbers of 16 bits."""

import matplotlib.pyplot as plt
import pytest
import torch
from programs import sixteen_bits  # notebooks/programs


@pytest.fixture(autouse=True)
def close_pictures():
    yield
    plt.close("all")


def test_weights_in_bfloat16_stay_behind_unless_they_are_rounded_at_random():
    def ends(**keep):
        return sixteen_bits.end(sixteen_bits.train(3, 1e-4, **keep)[0])

    wide = ends(dtype=torch.float32)
    assert ends() == pytest.approx(wide, abs=0.01)
    assert ends(keep=sixteen_bits.at_random) == pytest.approx(wide, abs=0.03)
    assert ends(keep=torch.Tensor.bfloat16) > wide + 0.3
    assert sixteen_bits.end(sixteen_bits.train_all(3, 1e-4)[0]) > wide + 0.3


def test_rounding_at_random_gives_a_neighbour_and_the_right_mean():
    torch.manual_seed(0)
    found = sixteen_bits.at_random(torch.full((100_000,), 0.999))
    assert {*found.tolist()} == {1.0, 1 - 2**-8}
    assert found.double().mean().item() == pytest.approx(0.999, abs=1e-4)
    assert torch.equal(found, found.bfloat16().float())
    powers = sixteen_bits.at_random(torch.rand(100) + 0.1, dropped=23)
    assert torch.equal(powers.log2(), powers.log2().round())


def test_autocast_keeps_more_of_one_row_and_half_of_many():
    ratio = {}
    for rows in (1, 256):
        sizes = (torch.bfloat16, torch.float32)
        half, full = (sixteen_bits.kept(rows, dtype) for dtype in sizes)
        ratio[rows] = half / full
    assert ratio[1] > 3 and 0.5 < ratio[256] < 0.55


def test_float16_loses_the_smallest_gradients_or_the_largest():
    grads = torch.tensor([1e-9, 1e-3, 10.0], dtype=torch.float64)
    assert sixteen_bits.in_half(grads, 0) == pytest.approx([1 / 3, 0])
    assert sixteen_bits.in_half(grads, 10) == pytest.approx([0, 0])
    assert sixteen_bits.in_half(grads, 16) == pytest.approx([0, 1 / 3])


def test_a_long_ring_loses_half_of_a_sum_and_a_tree_does_not():
    ring, tree, once = sixteen_bits.ring(4, 1024)
    assert 0.45 < ring < 0.55 and tree < 0.01 and once < 0.01
    assert sixteen_bits.ring(4, 8)[0] < 0.01
    assert sixteen_bits.ring(4, 1024, mixed=True)[0] < 0.06


def test_a_scaler_is_asked_for_each_step():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    weights, factors = sixteen_bits.in_float16(scaler, 2, steps=12)
    assert weights.isfinite().all()
    assert len(factors) == 12 and factors[0] == 2.0**24 > min(factors)


def test_the_pictures_are_drawn_and_their_numbers_printed(capsys):
    sixteen_bits.table()
    sixteen_bits.draw_factors([4.0, 2.0, 2.0, 4.0])
    assert "float8_e4m3fn  4.5e+02  1 + 0.12 " in capsys.readouterr().out
    assert "on a" in sixteen_bits.slower(times=1)


def test_ten_seeds_in_words():
    assert sixteen_bits.spread([0.123, 0.5, 0.2]) == "0.12 to 0.50"
