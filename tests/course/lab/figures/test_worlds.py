from xml.etree import ElementTree

import pytest

from course.lab.figures import worlds

SVG = "{http://www.w3.org/2000/svg}"


def parts(picture, kind):
    return [*ElementTree.fromstring(picture.text).iter(SVG + kind)]


def words(picture):
    return [text.text for text in parts(picture, "text")]


@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
def test_every_number_is_drawn_once_in_the_list_and_once_in_its_own_process(world_size):
    numbers = [10.0 * rank for rank in range(world_size)]
    drawn = words(worlds.draw(numbers, numbers))
    for rank in range(world_size):
        assert drawn.count(f"{10 * rank}") == 2
        assert (drawn.count(f"[{rank}]"), drawn.count(f"rank {rank}")) == (1, 1)


@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
def test_the_list_lies_in_one_process_and_the_ranks_in_one_each(world_size):
    numbers = list(range(world_size))
    outlined = [box for box in parts(worlds.draw(numbers, numbers), "rect")
                if box.get("stroke")]
    assert len(outlined) == 1 + world_size


@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
def test_neighbours_are_joined_by_an_arrow_with_two_heads(world_size):
    numbers = list(range(world_size))
    heads = [path.get("d").count("Z") for path in parts(worlds.draw(numbers, numbers),
                                                        "path") if path.get("fill") != "none"]
    assert heads == [2] * (world_size - 1)


def test_a_rank_that_holds_something_else_changes_the_picture():
    assert "7" in words(worlds.draw([0, 1], [0, 7]))
    assert "7" not in words(worlds.draw([0, 1], [0, 1]))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_no_box_leaves_the_card_or_covers_its_neighbour(world_size):
    numbers = list(range(world_size))
    boxes = [[float(box.get(key)) for key in ("x", "y", "width", "height")]
             for box in parts(worlds.draw(numbers, numbers), "rect")[1:]]
    assert all(x >= 0 and x + width <= 480 for x, _, width, _ in boxes)
    ranks = sorted(box for box in boxes if box[1] == worlds.BELOW)
    assert len(ranks) == world_size
    assert all(a[0] + a[2] < b[0] for a, b in zip(ranks, ranks[1:]))


def test_lists_of_two_lengths_are_refused():
    with pytest.raises(ValueError, match="alone has 2 numbers, apart 3"):
        worlds.draw([1, 2], [1, 2, 3])
