from course.lab.timeline import profiler
from course.lab.timeline.pace import Pace
from course.lab.timeline.paced import train
from manual_dp.ranks import run_ranks

TICK = 0.2


def test_the_profiler_sees_each_phase_as_long_as_we_do_and_says_nothing(capfd):
    pace = Pace(load=2, forward=1, backward=2, update=3, wire=4)
    ranks = run_ranks(train, 2, profiler.beside, pace, 1, 2, 1, 0, {}, TICK, timeout=200)
    for seen in ranks:
        assert list(seen) == ["load", "forward", "backward + wait", "update"]
        for least, (ours, theirs) in zip((4, 2, 12, 6), seen.values()):
            assert ours >= 0.99 * least * TICK and theirs >= 0.99 * least * TICK
            assert abs(ours - theirs) < TICK
    assert capfd.readouterr() == ("", "")
