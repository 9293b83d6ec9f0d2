import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.lab.timeline.pace import Pace
from course.lab.timeline.predict import predict
from course.lab.timeline.spans import Span, idle, length, totals

few = st.integers(0, 5)


def test_a_step_of_one_device_is_its_parts_one_after_the_other():
    assert predict(Pace(1, 2, 3, 4), 1, 2) == [
        Span(0, "compute", "load", 0, 1), Span(0, "compute", "forward", 1, 5),
        Span(0, "compute", "backward", 5, 11), Span(0, "compute", "update", 11, 15)]


@given(few, few, few, few, few, st.integers(1, 6), st.integers(1, 5))
def test_one_message_on_equal_ranks_is_waited_for_in_full(load, forward, backward, update,
                                                          wire, world_size, rows):
    pace = Pace(load, forward, backward + 1, update, wire)
    sent = wire if world_size > 1 else 0
    for rank in range(world_size):
        assert totals(predict(pace, world_size, rows), rank)["wait"] == sent
    assert length(predict(pace, world_size, rows)) == (
        load + (forward + backward + 1) * rows + update + sent)


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))
def test_everybody_is_as_slow_as_the_slowest(world_size, rows, factor):
    slowed = predict(Pace(), world_size, rows, slow={world_size - 1: factor})
    assert length(slowed) == 2 * rows * factor + 1
    assert totals(slowed, 0)["wait"] == 2 * rows * (factor - 1)
    assert idle(slowed) == pytest.approx(
        2 * rows * (factor - 1) * (world_size - 1) / (length(slowed) * world_size))


@pytest.mark.parametrize("wire, wait", [(2, 1), (4, 2), (8, 6)])
def test_two_buckets_hide_what_backward_leaves_time_for(wire, wait):
    # the first is ready after 2 of 4 ticks, the second at the end
    spans = predict(Pace(0, 0, 4, 0, wire), 2, 1, layers=2)
    assert totals(spans)["wait"] == wait


def test_steps_follow_each_other():
    one, three = (predict(Pace(1, 1, 1, 1, 3), 3, 2, steps) for steps in (1, 3))
    assert length(three) == 3 * length(one)
    assert len(three) == 3 * len(one)
