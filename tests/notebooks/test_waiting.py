"""notebooks/programs/waiting.py: who waits, and what lets them go on."""

from programs import waiting  # notebooks/programs

# sleeps take no less than they say; a busy machine makes them longer, so one of three counts


def test_a_step_waits_for_a_slow_loader_unless_it_has_enough_workers():
    assert waiting.step(0) > 2.5
    assert min(waiting.step(2) for _ in range(3)) < 2


def test_devices_compute_side_by_side_unless_the_loop_asks_each_at_once():
    assert waiting.loop(4, True) > 3.9
    assert min(waiting.loop(4, False) for _ in range(3)) < 2
