from xml.etree import ElementTree

import pytest

from course.lab.figures import hosts, svg

SVG = "{http://www.w3.org/2000/svg}"
TWO = [[(0, 0), (1, 1)], [(0, 2), (1, 3)]]


def parts(picture, kind):
    return [*ElementTree.fromstring(picture.text).iter(SVG + kind)]


def words(picture):
    return [text.text for text in parts(picture, "text")]


def test_each_host_has_one_torchrun_and_names_its_own_ranks():
    assert words(hosts.draw(TWO)) == [
        "rendezvous: one host's address",
        "host 0", "torchrun", "local rank 0: rank 0", "local rank 1: rank 1",
        "host 1", "torchrun", "local rank 0: rank 2", "local rank 1: rank 3"]


def test_what_the_ranks_said_is_drawn_whatever_it_was():
    assert "local rank 1: rank 7" in words(hosts.draw([[(0, 0)], [(1, 7)]]))


@pytest.mark.parametrize("count, ranks", [(1, 1), (2, 3), (3, 2)])
def test_no_box_leaves_the_card(count, ranks):
    picture = hosts.draw([[(local, host * ranks + local) for local in range(ranks)]
                          for host in range(count)])
    height = float(ElementTree.fromstring(picture.text).get("height"))
    for box in parts(picture, "rect"):
        x, y, wide, tall = (float(box.get(key, 0)) for key in
                            ("x", "y", "width", "height"))
        assert x >= 0 and x + wide <= svg.WIDTH and y + tall <= height


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_words_fit_into_their_box(ranks):
    drawn = hosts.draw([[(i, host * ranks + i) for i in range(ranks)]
                        for host in range(3)])
    assert max(svg.wide(text, hosts.SMALL) for text in words(drawn) if "local" in text) < min(
        float(box.get("width")) for box in parts(drawn, "rect")
        if float(box.get("height", 0)) == hosts.ROW - 6)


@pytest.mark.parametrize("none", [[], [[(0, 0)], []]])
def test_a_host_without_a_rank_is_refused(none):
    with pytest.raises(ValueError, match="every host needs a rank"):
        hosts.draw(none)
