"""notebooks/programs/on_the_wire.py: a recorded backward takes the ticks it must."""

import sys

import cloudpickle
import matplotlib.pyplot as plt
import pytest
from programs import on_the_wire  # notebooks/programs
from torch import nn

from course.lab.timeline import Event
from manual_dp import largest_difference
from manual_dp.ranks import DDP, run_ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_each_backward_of_two_layers_takes_its_ticks_also_beside_others_in_one_start():
    # some seconds: a tick is a tenth of one, and only real messages take their time
    cases = [  # overlap, message, start, in_bucket, wanted
        (False, 1, 0, 1, 2 * 2 + 2 * 1),
        (True, 3, 0, 1, 2 + 2 * 3),
        (True, 1, 0, 1, 2 * 2 + 1),  # all messages but the last beside backward
        (True, 1, 2, 2, 2 * 2 + 2 + 2 * 1),  # one bucket: one start
    ]
    found = on_the_wire.record(*[(overlap, 2, 2, *wire) for overlap, *wire, _ in cases])
    assert [events[-1].time for events in found] == [wanted for *_, wanted in cases]
    starts = [sum(event.what == "start" for event in events) for events in found]
    assert starts == [2, 2, 2, 1]


def test_a_run_that_is_late_is_run_again_until_two_agree(monkeypatch):
    late, good = [Event(0.07, "end", "", None)], [Event(0.101, "end", "", None)]
    runs = [[late], [good], [good]]
    monkeypatch.setattr(on_the_wire, "run_ranks", lambda *_: [runs.pop(0)])
    monkeypatch.setattr(on_the_wire.os, "getloadavg", lambda: (0, 0, 0))
    [events] = on_the_wire.record((True, 2, 2, 1))
    assert events[0].time == 1 and not runs


@pytest.fixture
def panel(monkeypatch):
    """Return a function that draws events, and returns the first panel."""

    def draw(events, start=0):
        on_the_wire.draw({"one": events, "again": events}, start)
        return plt.gcf().axes[0]

    monkeypatch.setattr(plt, "show", lambda: None)
    yield draw
    plt.close("all")


def test_the_panel_shows_each_layer_each_wait_and_each_message(panel):
    events = [
        Event(1, "ready", "module.layer 2.weight", 0),
        Event(1, "start", "", 0),
        Event(2, "ready", "module.layer 1.weight", 1),
        Event(2, "start", "", 1),
        Event(3, "arrive", "", 0),
        Event(5, "arrive", "", 1),
        Event(5, "end", "", None),
    ]
    ax = panel(events, start=1)
    bars = sorted(
        (round(bar.get_y() + 0.36), bar.get_x(), bar.get_width()) for bar in ax.patches
    )
    computes, waits = [(0, 0, 1), (0, 1, 1), (0, 2, 3)], [(1, 2, 1)]
    assert bars == [*computes, *waits, (2, 1, 1), (2, 2, 1), (2, 3, 1), (2, 4, 1)]
    assert ax.get_title(loc="left") == "one: 5 ticks"


def test_a_picture_in_which_no_message_waits_has_no_row_for_it(panel):
    events = [
        Event(1, "ready", "module.layer 1.weight", 0),
        Event(1, "start", "", 0),
        Event(2, "arrive", "", 0),
        Event(2, "end", "", None),
    ]
    ax = panel(events)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [
        "computes layer",
        "on the wire",
    ]
    rows = sorted(round(bar.get_y() + 0.36) for bar in ax.patches)
    assert rows == [0, 0, 1]


@pytest.mark.parametrize("wrap, same", [(DDP, True), (nn.Sequential, False)])
def test_three_steps_on_ranks_end_where_one_process_ends_if_wrapped(wrap, same):
    [one] = run_ranks(on_the_wire.three_steps, 1, nn.Sequential)
    for params in run_ranks(on_the_wire.three_steps, 2, wrap):
        assert (largest_difference(params, one) < 1e-12) is same
