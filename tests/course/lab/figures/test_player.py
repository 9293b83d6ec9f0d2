from xml.etree import ElementTree

import pytest
import torch

from course.lab.figures import player, svg
from course.lab.figures.places import places
from manual_dp import allreduce, ring_allreduce, tree_allreduce

SVG = "{http://www.w3.org/2000/svg}"
every = pytest.mark.parametrize("world_size", range(2, 9))
functions = pytest.mark.parametrize("function",
                                    [allreduce, ring_allreduce, tree_allreduce])
FULL = svg.shade(1)


def tree(picture):
    return ElementTree.fromstring(picture.text)


def words(picture):
    return [text.text for text in tree(picture).iter(SVG + "text")]


def last(element, attribute):
    """Return what the attribute is at the end of the loop."""
    for motion in element.iter(SVG + "animate"):
        if motion.get("attributeName") == attribute:
            return motion.get("values").split(";")[-1]
    return element.get(attribute)


def squares(picture, world_size):
    """Return the squares of all ranks' boxes: rects of one size, in rows of one y."""
    side = max(10, min(22, 84 // world_size)) - 2
    return [rect for rect in tree(picture).iter(SVG + "rect")
            if rect.get("width") == rect.get("height") == str(side)
            and rect.get("transform") is None]


# states

@functions
@every
def test_the_states_are_the_number_of_ranks_in_each_square(function, world_size):
    states = player.states(function, world_size)
    ones = [torch.ones(world_size, dtype=torch.float64) for _ in range(world_size)]
    function(ones)  # a one a rank: the sum is the number of ranks
    assert states[0] == [[1] * world_size] * world_size
    assert states[-1] == [tensor.tolist() for tensor in ones]


def test_the_states_of_a_ring_of_three_by_hand():
    assert player.states(ring_allreduce, 3) == [
        [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
        [[1, 2, 1], [1, 1, 2], [2, 1, 1]],  # chunk r - 1 of rank r came to rank r + 1
        [[3, 2, 1], [1, 3, 2], [2, 1, 3]],
        [[3, 2, 3], [3, 3, 2], [2, 3, 3]],
        [[3, 3, 3], [3, 3, 3], [3, 3, 3]]]


def test_a_mean_is_not_a_whole_number_of_ranks():
    def third(tensors):
        tensors[0].add_(tensors[1]).div_(4)
    assert player.states(third, 2)[-1][0] == [0.5, 0.5]


# play

@functions
@every
def test_the_player_ends_with_all_squares_full(function, world_size):
    picture = player.play(function, world_size)
    mine = squares(picture, world_size)
    assert len(mine) == world_size**2
    assert {square.get("fill") for square in mine} == {svg.shade(0)}
    assert {last(square, "fill") for square in mine} == {FULL}
    assert f"Every rank holds the sum of all {world_size}." in words(picture)


def test_nothing_is_full_that_the_function_has_not_filled():
    def half(tensors):  # a reduce without its broadcast
        for tensor in tensors[1:]:
            tensors[0].add_(tensor)
    picture = player.play(half, 4)
    assert [last(square, "fill") == FULL for square in squares(picture, 4)] == (
        [True] * 4 + [False] * 12)
    assert "Not every rank holds the sum." in words(picture)


def test_what_is_added_twice_is_red():
    def twice(tensors):
        tensors[0].add_(tensors[1]).add_(tensors[1])
        tensors[1].copy_(tensors[0])
    picture = player.play(twice, 2)
    assert {last(square, "fill") for square in squares(picture, 2)} == {player.RED}
    assert "Not every rank holds the sum." in words(picture)


def test_a_function_that_sends_the_other_way_round_is_another_picture():
    def backwards(tensors):
        ring_allreduce(tensors[::-1])
    backwards.__name__ = "ring_allreduce"
    assert player.play(backwards, 4).text != player.play(ring_allreduce, 4).text


def test_a_function_that_does_nothing_is_drawn_as_such():
    picture = player.play(lambda tensors: None, 3)
    assert "it on 3 ranks: 0 steps" in words(picture)
    assert "Not every rank holds the sum." in words(picture)


@pytest.mark.parametrize("function, phases", [
    (allreduce, {"reduce to one rank": 3, "broadcast": 3}),
    (ring_allreduce, {"reduce-scatter": 3, "all-gather": 3}),
    (tree_allreduce, {"reduce to one rank": 2, "broadcast": 2})])
def test_the_captions_name_every_step_in_order(function, phases):
    shown = [text for text in words(player.play(function, 4)) if ", step " in text]
    assert shown == [f"{phase}, step {i + 1}"
                     for phase, number in phases.items() for i in range(number)]


def test_one_caption_is_seen_at_a_time():
    drawn = tree(player.play(ring_allreduce, 4))
    captions = [text for text in drawn.iter(SVG + "text") if text.get("font-size") == "15"]
    spans = []
    for caption in captions:
        motion = next(caption.iter(SVG + "animate"))
        frames = [*zip(map(float, motion.get("keyTimes").split(";")),
                       motion.get("values").split(";")), (1, "hidden")]
        spans += [(a, b) for (a, now), (b, _) in zip(frames, frames[1:])
                  if now == "visible"]
    assert len(spans) == len(captions)
    assert spans[0][0] == 0 and spans[-1][1] == 1
    assert all(before[1] == after[0] for before, after in zip(spans, spans[1:]))
    assert [c.get("visibility") for c in captions] == ["visible"] + ["hidden"] * 7


@pytest.mark.parametrize("draw", [player.play, player.states])
def test_a_world_size_that_does_not_fit_is_refused(draw):
    with pytest.raises(ValueError, match="world_size must be 2 to 8, got 9"):
        draw(allreduce, 9)


# race

@every
def test_a_race_says_the_ticks_that_the_model_gives(world_size):
    shown = words(player.race([allreduce, ring_allreduce, tree_allreduce], world_size))
    n, up = world_size, (world_size - 1).bit_length()
    assert [text for text in shown if text and text.endswith(" ticks")] == [
        f"{ticks} ticks" for ticks in (2 * (n - 1) * n, 2 * (n - 1), 2 * up * n)]


@every
def test_every_rank_of_a_race_ends_full_and_starts_with_its_own_part(world_size):
    drawn = tree(player.race({"star": allreduce, "ring": ring_allreduce}, world_size))
    bars = [rect for rect in drawn.iter(SVG + "rect")
            if rect.get("height") == "6" and rect.get("fill") == "#30343a"
            and rect.get("transform") is None]
    assert len(bars) == 2 * world_size
    assert {last(bar, "width") for bar in bars} == {"28"}
    assert {float(bar.get("width")) for bar in bars} == {round(28 / world_size, 1)}


def test_a_race_takes_labels_of_its_own():
    shown = words(player.race({"a star": allreduce, "a ring": ring_allreduce}, 3))
    assert shown.count("a star") == shown.count("a ring") == 2


# places

def star(n):
    return {(rank, 0) for rank in range(1, n)} | {(0, rank) for rank in range(1, n)}


def ring(n):
    return {(rank, (rank + 1) % n) for rank in range(n)}


@every
def test_no_two_ranks_stand_in_one_place(world_size):
    for links in (star(world_size), ring(world_size), {(0, 1)}, set()):
        spots = places(links, world_size, 350, 250)
        assert len(spots) == len({(round(x), round(y)) for x, y in spots}) == world_size
        assert all(abs(x) <= 175.01 and abs(y) <= 125.01 for x, y in spots)


def test_rank_0_is_the_middle_of_a_star_and_not_of_a_ring():
    assert places(star(5), 5, 350, 250)[0] == (0, 0)
    assert places(ring(5), 5, 350, 250)[0] == (0, -125)


def test_a_tree_stands_below_rank_0_a_level_a_line():
    links = {(1, 0), (3, 2), (5, 4), (7, 6), (2, 0), (6, 4), (4, 0)}
    heights = [y for _, y in places(links, 8, 350, 240)]
    assert heights == pytest.approx([-120, -40, -40, 40, -40, 40, 40, 120])


@every
@functions
def test_no_box_covers_another(function, world_size):
    side = max(10, min(22, 84 // world_size))
    boxes = [rect for rect in tree(player.play(function, world_size)).iter(SVG + "rect")
             if rect.get("width") == str(side * world_size + 12)]
    assert len(boxes) == world_size
    corners = [(float(b.get("x")), float(b.get("y"))) for b in boxes]
    for i, (x, y) in enumerate(corners):
        for a, b in corners[:i]:
            assert abs(x - a) >= side * world_size + 12 or abs(y - b) >= side + 26
