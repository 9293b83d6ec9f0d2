import pytest
import torch

from course.lab.network.cuts import (
    CUTS,
    NETWORKS,
    Device,
    Layer,
    advise,
    best,
    by_data,
    by_layer,
    cut,
    inside_a_layer,
)
from course.lab.network.links import LINKS, Link
from course.lab.weigh import forward_flops
from manual_dp import init_params
from manual_dp.data import ensure_torchvision
from manual_dp.models.lenet import LeNet

FREE = Device(1e12, 0.0, 1e30, Link("", 0.0, 1e30, ""))
FOUR = [Layer(f"layer {i}", 1e9, 10**6, 1000) for i in range(4)]


def test_lenet_has_the_weights_and_operations_of_lenet():
    layers = NETWORKS["LeNet"]
    params = init_params("he", torch.Generator().manual_seed(0))
    assert sum(layer.weights for layer in layers) == sum(p.numel() for p in params)
    assert sum(layer.flops for layer in layers) == forward_flops(LeNet(params),
                                                                 (1, 28, 28))


def test_vgg16_has_the_weights_and_operations_of_torchvisions():
    ensure_torchvision()
    from torchvision.models import vgg16
    with torch.device("meta"):
        net = vgg16(init_weights=False)
    layers = NETWORKS["VGG-16"]
    assert sum(layer.weights for layer in layers) == sum(
        p.numel() for p in net.parameters())
    assert sum(layer.flops for layer in layers) == forward_flops(net, (3, 224, 224))


@pytest.mark.parametrize("way", [by_data, inside_a_layer])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_over_a_free_link_arithmetic_is_divided(way, world_size):
    assert way(FOUR, 8, world_size, FREE).seconds == pytest.approx(
        3 * 4e9 * 8 / 1e12 / world_size)


def test_a_pipeline_is_idle_as_lesson_1_says():
    cost = by_layer(FOUR, 16, 4, FREE)  # 16 micro-batches of a row, 4 stages
    assert cost.idle / cost.seconds == pytest.approx(3 / (16 + 3))


def test_what_each_cut_holds():
    held = {name: way(FOUR, 8, 4, FREE).memory for name, way in CUTS.items()}
    assert held == {"by data": 16 * 4e6 + 2 * 4000 * 4,
                    "by layer": 16 * 1e6 + 8 * 1000 * 4,
                    "inside a layer": 16 * 1e6 + 8 * 4000 * 4}


def test_no_operation_is_shorter_than_its_launch():
    slow = FREE._replace(launch=1.0)
    assert inside_a_layer(FOUR, 8, 4, slow).seconds == pytest.approx(3 * 4 * 1.0)


def test_what_cannot_be_cut_is_none():
    assert by_data(FOUR, 3, 4, FREE) is None
    assert by_layer(FOUR, 8, 5, FREE) is None


def test_the_best_cut_is_the_fastest_that_fits():
    device = Device(1e14, 1e-5, 80e9, LINKS["nvlink4"])
    assert best(NETWORKS["VGG-16"], 64, 8, device)[0] == "by data"
    assert best(NETWORKS["transformer"], 16, 8, device)[0] == "inside a layer"
    slow = device._replace(link=LINKS["eth25"])
    assert best(NETWORKS["transformer"], 16, 8, slow)[0] == "by layer"
    assert best(NETWORKS["transformer"], 16, 1, slow) == (None, None)


def test_a_small_network_over_a_slow_link_had_better_stay():
    device = Device(1e13, 1e-5, 80e9, LINKS["eth25"])
    assert advise(NETWORKS["LeNet"], 256, 2, device) == "stay on 1"
    fast = device._replace(link=LINKS["nvlink4"])
    assert advise(NETWORKS["LeNet"], 256, 2, fast) == "by data"
    assert advise(NETWORKS["transformer"], 128, 2, fast) == "does not fit"


@pytest.mark.parametrize("flops, stages, wanted", [
    ([1, 1, 1, 1], 2, [2, 2]), ([5, 1, 1, 1], 2, [1, 3]), ([1, 1, 1, 5], 3, None),
    ([3, 1, 1], 3, [1, 1, 1]), ([2, 2], 1, [2])])
def test_the_largest_stage_is_as_small_as_it_can_be(flops, stages, wanted):
    found = cut([Layer(str(i), f, 1, 1) for i, f in enumerate(flops)], stages)
    assert len(found) == stages and all(found)
    assert sum(map(len, found)) == len(flops)
    assert max(sum(layer.flops for layer in stage) for stage in found) == max(
        max(flops), -(-sum(flops) // stages))
    if wanted:
        assert [len(stage) for stage in found] == wanted
