import pytest

from course.lab.network.overlap import CAPS, best, buckets, even, finish

LAYERS = [(0.25, 10), (0.25, 20), (0.5, 5)]


def test_a_bucket_is_sent_when_the_next_layer_does_not_fit():
    assert buckets(LAYERS, 30) == [(0.5, 30), (1.0, 5)]
    assert buckets(LAYERS, 10) == [(0.25, 10), (0.5, 20), (1.0, 5)]
    assert buckets(LAYERS, 1000) == [(1.0, 35)]
    assert buckets([], 10) == []


def test_a_bucket_waits_for_its_gradients_and_for_the_bucket_before():
    # full after 2, 4 and 8 seconds; a byte takes a second: 2 + 10 + 20 + 5
    assert finish(LAYERS, 10, 8, lambda size: size) == 37
    # all at once, after backward
    assert finish(LAYERS, 1000, 8, lambda size: size) == 8 + 35


def test_what_arrives_during_backward_costs_nothing():
    # full after 4 and 8 seconds: the first takes one of the other four
    assert finish([(0.5, 10), (0.5, 5)], 10, 8, lambda size: size / 10) == 8 + 0.5


def test_even_layers_are_the_whole():
    layers = even(1000, 8)
    assert sum(part for part, _ in layers) == pytest.approx(1)
    assert sum(size for _, size in layers) == pytest.approx(1000)


@pytest.mark.parametrize("size", [0.5, 4.0, 5.5])
def test_a_network_of_few_bytes_has_fewer_layers(size):
    layers = even(size)
    assert len(layers) == max(1, int(size))
    assert sum(size for _, size in layers) == pytest.approx(size)


def test_a_dear_message_wants_a_large_bucket_and_a_cheap_one_a_small():
    layers = even(100e6)
    dear = best(layers, 1.0, lambda size: 1.0 + size / 1e9)
    cheap = best(layers, 1.0, lambda size: size / 1e8)
    assert dear[1] > cheap[1] and dear[1] >= 100e6


def test_the_best_is_the_earliest_of_all_caps():
    layers = even(100e6)
    def allreduce(size):
        return 1e-3 + size / 1e9
    seconds, cap = best(layers, 0.1, allreduce)
    assert seconds == min(finish(layers, c, 0.1, allreduce) for c in CAPS)
    assert seconds == finish(layers, cap, 0.1, allreduce)


def test_without_gradients_backward_is_all_there_is():
    assert finish([], 10, 8, lambda size: size) == 8
