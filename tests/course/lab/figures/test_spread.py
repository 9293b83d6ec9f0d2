from xml.etree import ElementTree

import pytest

from course.lab.figures import spread

SVG = "{http://www.w3.org/2000/svg}"
TREE = [[1, 2, 4], [3, 5], [6], [7], [], [], [], []]
LINE = [[1], [2], []]
STAR = [[1, 2], [], []]


def words(picture):
    return [text.text for text in ElementTree.fromstring(picture.text).iter(SVG + "text")]


def arrows(picture):
    """Return (from x, to x) of each arrow's line, in the order drawn."""
    lines = [path.get("d") for path in ElementTree.fromstring(picture.text).iter(
        SVG + "path") if path.get("fill") == "none"]
    return [tuple(float(end.split(",")[0]) for end in line.replace("M", "").split(" L"))
            for line in lines]


def test_a_rank_sends_from_the_round_after_it_received_one_message_a_round():
    assert spread.rounds(TREE) == [(1, 0, 1), (2, 0, 2), (2, 1, 3), (3, 0, 4), (3, 1, 5),
                                   (3, 2, 6), (3, 3, 7)]
    assert spread.rounds(LINE) == [(1, 0, 1), (2, 1, 2)]
    assert spread.rounds(STAR) == [(1, 0, 1), (2, 0, 2)]


def test_the_source_may_be_any_rank():
    assert spread.rounds([[], [2, 0], []], src=1) == [(1, 1, 2), (2, 1, 0)]
    assert spread.rounds([[]]) == []


@pytest.mark.parametrize("sends, counts", [
    (TREE, ["1 of 8", "2 of 8", "4 of 8", "8 of 8"]), (LINE, ["1 of 3", "2 of 3", "3 of 3"]),
    ([[]], ["1 of 1"])])
def test_each_round_says_how_many_ranks_have_the_numbers(sends, counts):
    drawn = words(spread.draw(sends))
    assert [word for word in drawn if " of " in word] == counts


def test_there_is_an_arrow_for_every_message_and_it_goes_from_sender_to_receiver():
    drawn = arrows(spread.draw(STAR))
    assert len(arrows(spread.draw(TREE))) == 7
    assert len(drawn) == 2
    assert all(start < end for start, end in drawn)
    assert all(end < start for start, end in arrows(spread.draw([[], [], [1, 0]], src=2)))


def test_ranks_that_have_the_numbers_are_coloured():
    boxes = [box.get("fill") for box in ElementTree.fromstring(
        spread.draw(LINE).text).iter(SVG + "rect")][1:]
    has, not_yet = boxes[0], boxes[1]
    assert has != not_yet
    assert boxes == [has, not_yet, not_yet, has, has, not_yet, has, has, has]


@pytest.mark.parametrize("sends, message", [
    ([[1, 2], [2], []], "rank 2 receives twice, from 1 too"),
    ([[0]], "rank 0 receives twice"), ([[1], [], []], "rank 2 receives nothing")])
def test_messages_that_are_no_spread_are_refused(sends, message):
    with pytest.raises(ValueError, match=message):
        spread.draw(sends)
