import re

import pytest

from course.lab.figures.plan import LEFT, RIGHT, draw, ms
from course.lab.figures.svg import WIDTH
from manual_dp.lab.network.links import LINKS
from manual_dp.lab.network.plan import Job, Machine, rows


def plan(world_sizes=(1, 8, 512)):
    return rows(Job(25e6, 4e9), Machine(1e13, LINKS["eth25"]), world_sizes)


def test_the_title_says_what_the_bars_say():
    found = plan()
    title = draw(found).title
    for row in found:
        assert f"{row.world_size}: {ms(row.step)}, {row.efficiency:.0%}" in title


def test_the_bars_of_the_longest_step_fill_the_row():
    found = plan()
    text = draw(found)._repr_svg_()
    longest = max(found, key=lambda row: row.step)
    room = WIDTH - LEFT - RIGHT
    for part in (longest.compute, longest.exposed):
        width = round(part / longest.step * room, 1)
        assert f'width="{width:g}"' in text


def test_the_same_plan_is_the_same_picture():
    assert draw(plan())._repr_svg_() == draw(plan())._repr_svg_()
    assert not re.search(r'\bid="', draw(plan())._repr_svg_())


@pytest.mark.parametrize("seconds, said", [
    (3e-6, "3 us"), (0.0125, "12.5 ms"), (2.0, "2 s"), (0.9996, "1 s")])
def test_times_are_said_with_three_digits(seconds, said):
    assert ms(seconds) == said
