import pytest
import torch.distributed as dist

from course.lab.network.fit import Fit, error, fit, measure, predict

SIZES = [4096, 65_536, 2**20, 2**24]


@pytest.mark.parametrize("way", ["ring", "star", "tree", "halving-doubling"])
@pytest.mark.parametrize("world_size", [2, 4, 5])
def test_alpha_and_beta_are_found_again(way, world_size):
    true = Fit(3e-5, 4e-10)
    seconds = {size: predict(true, world_size, size, way) for size in SIZES}
    found = fit(seconds, world_size, way)
    assert found == pytest.approx(true, rel=1e-6)
    assert error(found, world_size, seconds, way) < 1e-6


def test_a_ring_of_two_by_hand():
    # two steps of half the tensor each
    assert predict(Fit(1.0, 0.5), 2, 400) == 2 * 1.0 + 400 * 0.5


def test_every_size_counts_by_its_relative_error():
    true = Fit(1e-4, 1e-9)
    seconds = {size: predict(true, 2, size) for size in SIZES}
    seconds[SIZES[-1]] *= 1.1  # in seconds far more than all of the smallest
    found = fit(seconds, 2)
    assert abs(predict(found, 2, SIZES[0]) / seconds[SIZES[0]] - 1) < 0.05


def test_no_number_is_below_zero():
    assert fit({4096: 1.0, 2**24: 0.5}, 2).beta == 0
    falling = fit({4096: 1e-9, 2**24: 1.0}, 2)
    assert falling.alpha == 0 and falling.beta > 0


@pytest.mark.parametrize("seconds", [{}, {4096: 1.0}])
def test_two_numbers_need_two_sizes(seconds):
    with pytest.raises(ValueError, match=f"at least 2 sizes.*got {len(seconds)}"):
        fit(seconds, 2)


def test_the_error_is_the_median_of_the_relative_ones():
    took = {size: 1e-3 * factor for size, factor in zip(SIZES, (1, 2, 4))}
    # two steps of half a millisecond are predicted for all: off by 0, 1/2, 3/4
    assert error(Fit(5e-4, 0), 2, took) == pytest.approx(0.5)


@pytest.mark.parametrize("function", [dist.all_reduce, None])
def test_real_ranks_are_timed(function):
    more = {} if function is None else {"function": function}
    seconds = measure(2, [4096, 2**20], repeat=2, **more)
    assert list(seconds) == [4096, 2**20] and min(seconds.values()) > 0
