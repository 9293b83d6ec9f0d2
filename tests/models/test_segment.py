import math

import pytest
import torch
from torch.nn import functional as F

from manual_dp import split_batch, try_devices
from manual_dp.models.segment import dice, dice_loss, iou, overlap, pixel_loss


def example(rows, classes=3, height=4, width=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(rows)
    y_hat = torch.rand(rows, classes, height, width, dtype=dtype, generator=generator)
    y = torch.randint(classes, (rows, height, width), generator=generator)
    return 6 * y_hat - 3, y


def scores(masks, classes=2):
    """Return scores (n, classes, h, w) whose highest is at the class in `masks`."""
    return F.one_hot(masks, classes).movedim(-1, 1).double()


# losses


def test_pixel_loss_by_hand():
    # the scores ln 3 and 0 are odds of 3 to 1: a pixel costs ln(4/3) or ln 4
    y_hat = torch.zeros(2, 2, 1, 2, dtype=torch.float64)
    y_hat[:, 0] = math.log(3)
    y = torch.tensor([[[0, 0]], [[0, 1]]])
    expected = [2 * math.log(4 / 3), math.log(4 / 3) + math.log(4)]
    assert pixel_loss(y_hat, y).tolist() == pytest.approx(expected, abs=1e-15)


def test_dice_loss_by_hand():
    # one example of 1 x 2 pixels: probabilities (3/4, 1/4) in both, true classes 0, 1
    y_hat = torch.zeros(1, 2, 1, 2, dtype=torch.float64)
    y_hat[:, 0] = math.log(3)
    y = torch.tensor([[[0, 1]]])
    zero, one = (2 * 3 / 4 + 1) / (6 / 4 + 1 + 1), (2 * 1 / 4 + 1) / (2 / 4 + 1 + 1)
    assert dice_loss(y_hat, y).item() == pytest.approx(1 - (zero + one) / 2, abs=1e-15)
    zero, one = 2 * 3 / 4 / (6 / 4 + 1), 2 * 1 / 4 / (2 / 4 + 1)
    assert dice_loss(y_hat, y, smooth=0).item() == pytest.approx(
        1 - (zero + one) / 2, abs=1e-15
    )


def test_dice_loss_is_nothing_where_all_is_right_and_a_class_is_missing():
    y = torch.zeros(2, 3, 3, dtype=torch.int64)
    y[1, 0] = 1
    right, wrong = (1e3 * scores(masks) for masks in (y, 1 - y))
    assert dice_loss(right, y).tolist() == [0, 0]
    assert dice_loss(wrong, y, smooth=1e-12).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("loss", [pixel_loss, dice_loss])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_sums_over_shards_are_the_minibatchs_sum(loss, world_size):
    y_hat, y = example(5)
    y_hat.requires_grad_()
    (whole,) = torch.autograd.grad(loss(y_hat, y).sum(), y_hat)
    shards = zip(*split_batch(y_hat, y, try_devices(world_size)))
    sum(loss(*shard).sum() for shard in shards).backward()
    torch.testing.assert_close(y_hat.grad, whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize("loss", [pixel_loss, dice_loss])
def test_a_loss_has_a_value_for_each_example_and_the_gradient_of_its_slope(loss):
    y_hat, y = example(2, height=2, width=2)
    assert loss(y_hat, y).shape == (2,) and loss(y_hat[:0], y[:0]).shape == (0,)
    y_hat.requires_grad_()
    assert torch.autograd.gradcheck(lambda y_hat: loss(y_hat, y), y_hat)


# scores


def test_pixels_are_counted_by_class():
    y = torch.tensor([[[0, 1, 1], [2, 2, 2]]])
    found = torch.tensor([[[0, 0, 1], [2, 1, 1]]])
    counts = overlap(scores(found, 4), y)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [[1, 1, 1, 0], [2, 3, 1, 0], [1, 2, 3, 0]]


def test_scores_by_hand():
    counts = torch.tensor([[1, 1, 1, 0, 0], [2, 3, 1, 0, 4], [1, 2, 3, 0, 0]])
    assert iou(counts).dtype == torch.float64
    assert iou(counts)[[0, 1, 2, 4]].tolist() == [1 / 2, 1 / 4, 1 / 3, 0]
    assert dice(counts)[[0, 1, 2, 4]].tolist() == [2 / 3, 2 / 5, 2 / 4, 0]
    assert iou(counts)[3].isnan() and dice(counts)[3].isnan()  # a class in no mask


def test_dice_follows_from_iou():
    counts = overlap(*example(7))
    torch.testing.assert_close(dice(counts), 2 * iou(counts) / (1 + iou(counts)))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_counts_add_up_over_any_shards(world_size):
    y_hat, y = example(5)
    shards = zip(*split_batch(y_hat, y, try_devices(world_size)))
    total = sum(overlap(*shard) for shard in shards)
    assert torch.equal(total, overlap(y_hat, y))


# what is refused

SCORES, MASKS = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)


@pytest.mark.parametrize("function", [pixel_loss, dice_loss, overlap])
@pytest.mark.parametrize(
    "y_hat, y, error, message",
    [
        ([0.0], MASKS, TypeError, "y_hat must be a tensor, got list"),
        (SCORES, [0], TypeError, "y must be a tensor, got list"),
        (
            SCORES,
            MASKS.float(),
            TypeError,
            r"y must be int64, a class for each pixel, got torch\.float32",
        ),
        (
            SCORES,
            MASKS[:1],
            ValueError,
            r"y_hat \(2, 3, 4, 4\) and y \(1, 4, 4\) must be \(n, classes, h, w\) and",
        ),
        (SCORES, MASKS.unsqueeze(1), ValueError, r"and y \(2, 1, 4, 4\) must be"),
        (SCORES, MASKS[:, 0, 0], ValueError, r"and y \(2,\) must be"),
        (SCORES[0], MASKS, ValueError, r"y_hat \(3, 4, 4\) and y \(2, 4, 4\) must be"),
        (
            SCORES[..., 0],
            MASKS[..., 0],
            ValueError,
            r"y_hat \(2, 3, 4\) and y \(2, 4\) must",
        ),
        (SCORES, MASKS + 3, ValueError, "y has values from 3 to 3, not from 0 to 2"),
        (SCORES, MASKS - 1, ValueError, "y has values from -1 to -1, not from 0 to 2"),
    ],
)
def test_refuses_masks_that_do_not_fit(function, y_hat, y, error, message):
    with pytest.raises(error, match=message):
        function(y_hat, y)


@pytest.mark.parametrize("score", [iou, dice])
@pytest.mark.parametrize(
    "counts, error, message",
    [
        (0.5, TypeError, "counts must be a tensor, got float"),
        (
            torch.zeros(3, 2),
            ValueError,
            r"\(3, classes\) int64, got \(3, 2\) torch\.float32",
        ),
        (MASKS[0, :2], ValueError, r"\(3, classes\) int64, got \(2, 4\) torch\.int64"),
        (MASKS[0, 0, :3], ValueError, r"\(3, classes\) int64, got \(3,\) torch\.int64"),
    ],
)
def test_refuses_counts_that_are_none(score, counts, error, message):
    with pytest.raises(error, match=message):
        score(counts)
