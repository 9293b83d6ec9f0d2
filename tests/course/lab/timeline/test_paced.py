"""A real run, made to last whole ticks, is the predicted one: rank by rank, bar by bar."""

import pytest

from course.lab.timeline import paced
from course.lab.timeline.pace import Pace
from course.lab.timeline.paced import run
from course.lab.timeline.predict import predict
from course.lab.timeline.spans import length, totals

TICK = 0.15  # also on a busy machine


@pytest.mark.parametrize("pace, world_size, rows, more", [
    (Pace(1, 1, 1, 1, 4), 1, 2, {}),
    (Pace(1, 1, 1, 1, 4), 2, 1, {"steps": 2}),
    (Pace(0, 1, 2, 1, 4), 2, 2, {"layers": 2}),
    (Pace(0, 1, 1, 1, 2), 3, 1, {"slow": {2: 3}}),
    (Pace(0, 0, 1, 0, 3), 4, 1, {})])
def test_a_real_run_is_the_predicted_one(pace, world_size, rows, more):
    assert run(pace, world_size, rows, tick=TICK, **more) == predict(
        pace, world_size, rows, **more)


@pytest.mark.parametrize("wrong", [Pace(0, 1, 1, 1, 3), Pace(0, 2, 1, 1, 2)])
def test_a_wrong_prediction_does_not_become_the_result(wrong, monkeypatch):
    pace = Pace(0, 1, 1, 1, 2)
    monkeypatch.setattr(paced, "predict", lambda _, *args: predict(wrong, *args))
    assert run(pace, 2, 1, tick=TICK) == predict(pace, 2, 1) != predict(wrong, 2, 1)


def test_a_loader_that_is_slower_than_the_step_is_most_of_it_and_a_worker_hides_it():
    pace = Pace(load=4, forward=1, backward=2, update=1)
    plain, ahead = (run(pace, 2, 1, steps=2, workers=workers, tick=TICK)
                    for workers in (0, 1))
    for rank in (0, 1):
        assert totals(plain, rank)["load"] == 8 and totals(ahead, rank)["load"] == 0
    assert (length(plain), length(ahead)) == (16, 8)


def test_one_rank_sends_nothing():
    assert {span.lane for span in predict(Pace(wire=5), 1, 2)} == {"compute"}
    assert length(predict(Pace(0, 1, 1, 1, 5), 1, 2)) == 5


@pytest.mark.parametrize("args, more, message", [
    ((Pace(load=-1), 1, 1), {}, "pace must be ticks >= 0, got Pace"),
    ((Pace(), 0, 1), {}, "world_size must be a whole number >= 1, got 0"),
    ((Pace(), 1, 1.5), {}, "rows must be a whole number >= 1, got 1.5"),
    ((Pace(), 1, 1), {"steps": 0}, "steps must be a whole number >= 1, got 0"),
    ((Pace(), 1, 1), {"layers": 0}, "layers must be a whole number >= 1, got 0"),
    ((Pace(), 2, 1), {"slow": {2: 3}}, "slow must name ranks from 0 to 1, got 2")])
def test_a_run_that_there_cannot_be_is_refused(args, more, message):
    for function in (run, predict):
        with pytest.raises(ValueError, match=message):
            function(*args, **more)
