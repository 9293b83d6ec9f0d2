from fractions import Fraction
from xml.etree import ElementTree

import pytest
import torch

from course.lab.figures import weights
from course.lab.figures.plot import COLOURS

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("sizes", [[3, 3, 3, 1], [2, 2], [1, 5]])
def test_a_share_is_the_gradient_of_the_step_with_respect_to_an_images_loss(sizes):
    losses = torch.ones(sum(sizes), dtype=torch.float64, requires_grad=True)
    means = torch.stack([part.mean() for part in losses.split(sizes)])
    by_means, = torch.autograd.grad(means.mean(), losses)
    by_sum, = torch.autograd.grad(losses.sum() / len(losses), losses)
    for shares, grad in zip(weights.shares(sizes).values(), (by_means, by_sum)):
        flat = [float(share) for ranks in shares for share in ranks]
        assert flat == pytest.approx(grad.tolist(), abs=1e-15)


def test_three_of_ten_images_count_less_than_the_lone_one():
    means, once = weights.shares([3, 3, 3, 1]).values()
    assert means[0] == [Fraction(1, 12)] * 3 and means[3] == [Fraction(1, 4)]
    assert once == [[Fraction(1, 10)] * 3] * 3 + [[Fraction(1, 10)]]


def test_an_empty_rank_takes_its_part_of_the_mean_away():
    means, once = weights.shares([2, 2, 1, 0]).values()
    assert sum(map(sum, means)) == Fraction(3, 4) and sum(map(sum, once)) == 1


@pytest.mark.parametrize("sizes", [[3, 3, 3, 1], [2, 2, 1, 0], [8] * 8])
def test_there_is_a_bar_for_each_image_as_high_as_its_share(sizes):
    bars = [rect for rect in
            ElementTree.fromstring(weights.draw(sizes).text).iter(SVG + "rect")
            if rect.get("fill") in COLOURS]
    assert len(bars) == 2 * sum(sizes)
    shares = [share for way in weights.shares(sizes).values() for ranks in way
              for share in ranks]
    scale = weights.TALL / max(shares)
    assert [float(bar.get("height")) for bar in bars] == pytest.approx(
        [float(share * scale) for share in shares], abs=0.06)
