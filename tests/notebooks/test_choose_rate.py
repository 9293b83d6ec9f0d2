"""programs/choose_rate.py: the rates, the schedules, what step 3 takes."""

import pytest
from programs import choose_rate
from programs.choose_rate import choose, rates, schedule


def test_the_rates_double_from_the_old_one_to_k_times_it():
    assert rates(8) == pytest.approx([0.02, 0.04, 0.08, 0.16])
    assert rates(16) == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32])


def test_a_rate_is_constant_or_goes_up_for_half_an_epoch_and_down_to_0():
    assert {schedule(0.16, 8, False)(step) for step in range(60)} == {0.16}
    rate = schedule(0.16, 8, True)
    assert rate(0) == pytest.approx(0.02) and rate(60) == 0
    assert max(range(60), key=rate) == 6 and rate(6) == pytest.approx(0.16)


def test_the_smallest_rate_near_the_best_is_taken_not_a_lower_or_a_higher_one():
    found = {
        0.02: [0.5, 0.6, 0.5],
        0.04: [0.91, 0.87, 0.9],  # below the best by 0, 2 and 0 points: 0.7 +- 0.7
        0.08: [0.91, 0.89, 0.9],
        0.16: [0.91, 0.88, 0.9],
    }
    assert choose(found) == (0.04, 0.08)
    found[0.04] = [0.89, 0.87, 0.89]  # by 2, 2 and 1: 1.7 +- 0.3
    assert choose(found) == (0.08, 0.08)


def test_equal_accuracies_take_the_smallest_rate():
    assert choose({0.08: [0.9, 0.8], 0.04: [0.9, 0.8]})[0] == 0.04


def test_it_says_what_each_set_takes(monkeypatch, capsys):
    def train_at(rate, k, seeds):
        return None, [0.9 if rate(9) == 0.04 else 0.5 for _ in seeds], None

    monkeypatch.setattr(choose_rate, "train_at", train_at)
    monkeypatch.setattr(choose_rate, "STEPS", {8: 12})
    monkeypatch.setattr(choose_rate, "SETS", 2)
    choose_rate.main()
    constant, _, _ = capsys.readouterr().out.partition("8 devices, up and down")
    assert constant.splitlines() == [
        "8 devices, constant rate",
        "  all seeds: 0.02: 50.0% 0.04: 90.0% 0.08: 50.0% 0.16: 50.0%",
        "  seeds from  0: takes 0.04, 0.0 points below 0.04, the best",
        "  seeds from 10: takes 0.04, 0.0 points below 0.04, the best",
    ]
