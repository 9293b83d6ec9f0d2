import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.lab.scaling.laws import (
    amdahl,
    break_even,
    efficiency,
    fit_amdahl,
    speedup,
)

parts = st.floats(0, 1)
sizes = st.integers(1, 10_000)


def test_speedup_and_efficiency_by_hand():
    assert speedup(18, 6) == 3 and efficiency(18, 6, 4) == 0.75
    assert speedup(10, 11) < 1


@pytest.mark.parametrize("serial, world_size, expected", [
    (0, 8, 8), (1, 8, 1), (0.5, 2, 4 / 3), (1 / 9, 4, 3), (0.25, 1, 1)])
def test_amdahls_law_by_hand(serial, world_size, expected):
    assert amdahl(serial, world_size) == pytest.approx(expected, rel=1e-12)


@given(parts, sizes)
def test_no_number_of_ranks_brings_more_than_itself_or_than_the_serial_part_allows(
        serial, world_size):
    found = amdahl(serial, world_size)
    assert 1 - 1e-9 <= found <= world_size * (1 + 1e-9)
    assert found * serial <= 1 + 1e-9


@given(st.floats(0.001, 1000), st.floats(0, 1000))
def test_the_fit_finds_the_serial_part_of_exact_times(one, serial):
    times = {n: one * (serial + 1 / n) for n in (1, 2, 4)}
    assert fit_amdahl(times) == pytest.approx(serial / (serial + 1), abs=1e-6)


def test_the_fit_lies_between_times_that_are_off_by_a_little():
    times = {1: 18.1, 2: 9.9, 4: 6.05, 8: 3.98}
    assert 0.10 < fit_amdahl(times) < 0.12


@pytest.mark.parametrize("times, message", [
    ({1: 10}, "times must have two world sizes or more"),
    ({1: 10, 2: 11}, "no serial part from 0 to 1 fits {1: 10, 2: 11}, the best is 1.2"),
    ({1: 10, 2: 4}, "no serial part from 0 to 1 fits {1: 10, 2: 4}, the best is -0.2")])
def test_times_that_follow_no_such_law_are_refused(times, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_amdahl(times)


@given(st.integers(1, 20), st.integers(0, 200), st.integers(2, 8))
def test_break_even_is_the_smallest_number_of_rows_that_is_faster(row, sending, n):
    def faster(rows):
        return row * rows + sending < n * row * rows
    rows = break_even(row, sending, n)
    assert faster(rows) and (rows == 1 or not faster(rows - 1))


@pytest.mark.parametrize("call, message", [
    (lambda: amdahl(-0.1, 2), "serial must be a part from 0 to 1, got -0.1"),
    (lambda: amdahl(1.5, 2), "serial must be a part from 0 to 1, got 1.5"),
    (lambda: amdahl(0.5, 0), "world_size must be >= 1, got 0"),
    (lambda: break_even(0, 1), "row must be > 0 and sending >= 0, got 0 and 1"),
    (lambda: break_even(1, -1), "row must be > 0 and sending >= 0, got 1 and -1"),
    (lambda: break_even(1, 1, 0), "world_size must be >= 1, got 0"),
    (lambda: break_even(1, 1, 1), "world_size must be 2 or more")])
def test_what_is_no_part_or_number_of_ranks_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
