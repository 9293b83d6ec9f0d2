from collections import Counter
from xml.etree import ElementTree

import pytest

from course.lab.figures import step
from course.lab.figures.plot import COLOURS, INK

SVG = "{http://www.w3.org/2000/svg}"


def heights(path):
    """Return the heights of the bars of a small chart."""
    return [-float(part.split()[0]) for part in path.get("d").split("v")[1:]]


@pytest.mark.parametrize("world_size", range(2, 9))
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_every_rank_has_its_rows_its_name_twice_and_its_colour(world_size, rows):
    drawn = ElementTree.fromstring(step.draw(world_size, rows).text)
    fills = Counter(rect.get("fill") for rect in drawn.iter(SVG + "rect"))
    words = Counter(text.text for text in drawn.iter(SVG + "text"))
    for rank in range(world_size):
        assert fills[COLOURS[rank]] == rows + 2  # and the replica before and after
        assert words[f"rank {rank}"] == 2
    each = f"{rows} {'row' if rows == 1 else 'rows'} for each rank."
    assert any(text and text.endswith(each) for text in words)


@pytest.mark.parametrize("world_size", range(2, 9))
def test_the_dark_bars_are_the_sum_of_the_coloured_ones(world_size):
    paths = [path for path in ElementTree.fromstring(
        step.draw(world_size, 4).text).iter(SVG + "path")
        if path.get("d").count("v") == 5]
    each = step.gradients(world_size)
    total = [sum(numbers) for numbers in zip(*each)]
    assert len({*map(tuple, each)}) == world_size and any(total)
    dark = [heights(path) for path in paths if path.get("fill") == INK]
    coloured = [heights(path) for path in paths if path.get("fill") != INK]
    for drawn, numbers in ((dark, [total] * world_size), (coloured, each)):
        for bars, values in zip(drawn, numbers, strict=True):
            scale = 20 / max(map(abs, values))
            assert bars == pytest.approx([scale * v for v in values], abs=0.06)
