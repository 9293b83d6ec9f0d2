import pytest
import torch

from manual_dp.files import cifar10
from manual_dp.models.cifar import image_sets, load_images, stand_in, take


def test_the_stand_in_has_the_shape_and_the_range_of_cifar10():
    train, test = stand_in()
    assert (len(train), len(test)) == (1438, 359)
    X, y = train.tensors
    assert X.shape == (1438, 3, 32, 32) and X.dtype == torch.float32
    assert -1 <= X.min() and X.max() <= 1
    assert sorted(set(y.tolist())) == list(range(10)) and y.dtype == torch.int64


def test_each_digit_has_its_own_bright_colour_on_a_dark_ground():
    X, _ = stand_in()[0].tensors
    ground, ink = X.flatten(2).min(dim=2).values, X.flatten(2).max(dim=2).values
    assert (ground < ink - 0.2).all()  # every digit can be seen in every channel
    assert len({tuple(colour) for colour in ground.tolist()}) == len(X)
    # the brightest pixel of one channel is the brightest of the others: one shape
    first = X.flatten(2).argmax(dim=2)
    assert torch.equal(first[:, 0], first[:, 1]) and torch.equal(first[:, 0], first[:, 2])


def test_the_stand_in_is_always_the_same():
    assert torch.equal(stand_in()[0].tensors[0], stand_in()[0].tensors[0])


def test_a_smaller_set_is_drawn_from_all_classes_and_always_the_same():
    train, test = image_sets("stand-in", rows=200, test_rows=100)
    again, _ = image_sets("stand-in", rows=200)
    assert (len(train), len(test)) == (200, 100)
    X, y = take(train, range(200))
    assert torch.equal(X, take(again, range(200))[0])
    assert y.bincount(minlength=10).min() > 5
    assert len({tuple(image.flatten().tolist()) for image in X}) == 200


def test_minibatches_hold_every_image_once_in_an_order_of_the_seed():
    train_iter, test_iter = load_images(batch_size=100, seed=3, rows=250, test_rows=50,
                                        dtype=torch.float64)
    batches = list(train_iter)
    assert [len(X) for X, _ in batches] == [100, 100, 50]
    seen = torch.cat([X for X, _ in batches])
    whole, _ = take(image_sets("stand-in", rows=250)[0], range(250))
    assert seen.dtype == torch.float64 and not torch.equal(seen, whole.double())
    assert torch.equal(seen.sum((1, 2, 3)).sort().values,
                       whole.double().sum((1, 2, 3)).sort().values)
    again = load_images(batch_size=100, seed=3, rows=250)[0]
    assert torch.equal(next(iter(again))[0].double(), batches[0][0])


@pytest.mark.parametrize("rows", [0, -1, 1439, 2.0, True])
def test_more_images_than_there_are_is_refused(rows):
    with pytest.raises(ValueError, match="rows must be a whole number from 1 to 1438, "
                                         f"the images that are there, got {rows}"):
        image_sets("stand-in", rows=rows)


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="data must be one of stand-in, cifar10, got 'x'"):
        image_sets("x")


def test_cifar10_comes_from_its_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"CIFAR-10 is not in {tmp_path}"):
        load_images("cifar10", root=tmp_path)
    assert cifar10.CLASSES[3] == "cat"
