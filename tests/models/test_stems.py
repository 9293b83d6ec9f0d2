import copy

import pytest
import torch
from torch import nn

from manual_dp.models import resnet
from manual_dp.models.stems import build

ONE_PLACE = "Expected more than 1 value per channel when training"


def numbers(net):
    return sum(p.numel() for p in net.parameters())


def test_weights_counted_by_hand():
    # 7x7 against 3x3, over 3 colours and 64 channels
    stem = (49 - 9) * 3 * 64
    assert numbers(build("resnet50")) == 23_528_522
    assert numbers(build("resnet50", "cifar")) == 23_528_522 - stem
    assert numbers(build("resnet18")) == numbers(build("resnet18", "cifar")) + stem
    # the course's own ResNet-18 has the small stem
    assert numbers(build("resnet18", "cifar")) == numbers(resnet.resnet18())


def test_layers_are_those_of_the_name():
    norms = [layer for layer in build().modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(norms) == 53
    assert build("resnet18", num_classes=7).fc.out_features == 7


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_one_row_of_32_pixels_trains_with_the_small_stem_alone(name):
    X = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    small, large = build(name, "cifar"), build(name)
    assert small(X[:1]).shape == large(X).shape[:0] + (1, 10)
    with pytest.raises(ValueError, match=ONE_PLACE):
        large(X[:1])
    assert large.eval()(X[:1]).shape == (1, 10)


def test_the_seed_draws_the_weights_and_no_other_draw_changes():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = build("resnet18"), build("resnet18"), build("resnet18", seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)


def test_the_small_stem_keeps_the_size_and_copies_as_any_network_does():
    net = copy.deepcopy(build("resnet18", "cifar"))
    X = net.maxpool(net.relu(net.bn1(net.conv1(torch.rand(2, 3, 16, 16)))))
    assert X.shape == (2, 64, 16, 16)
    assert 0.05 < net.conv1.weight.std() / (2 / (9 * 64)) ** 0.5 < 1.1


@pytest.mark.parametrize("arguments, message", [
    (("resnet34",), "name must be one of resnet18, resnet50, got 'resnet34'"),
    (("resnet18", "small"), "stem must be one of torchvision, cifar, got 'small'")])
def test_another_name_or_stem_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(*arguments)
