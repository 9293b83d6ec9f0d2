"""Fits that are made again and again, and what lesson 16 says of those on record."""

import json
from pathlib import Path
from statistics import median

import pytest

from course.lab.network import trials
from course.lab.network.fit import Fit, predict

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


@pytest.fixture
def measured(monkeypatch):
    """Let each size take what an alpha and a beta say; those to predict take longer."""
    asked = []

    def measure(world_size, sizes, repeat, function):
        asked.append((world_size, sizes))
        longer = {size: 1.25 for size in trials.OTHERS}
        return {size: longer.get(size, 1) * predict(Fit(1e-4, 1e-9), world_size, size)
                for size in sizes}
    monkeypatch.setattr(trials.fit, "measure", measure)
    return asked


def test_three_sizes_decide_and_the_others_are_predicted(measured):
    took, found, error = trials.once(4)
    assert measured == [(4, sorted(trials.KNOWN + trials.OTHERS))]
    assert found == pytest.approx(Fit(1e-4, 1e-9)) and error == pytest.approx(0.2)
    assert set(took) == {*trials.KNOWN, *trials.OTHERS}
    assert not set(trials.KNOWN) & set(trials.OTHERS)


def test_the_file_has_the_errors_of_each_time(measured, tmp_path):
    trials.main(["--times", "3", "--out", str(tmp_path / "fits.json")])
    stored = json.loads((tmp_path / "fits.json").read_text())
    assert stored["errors"] == [{"2 ranks": 0.2, "4 ranks": 0.2}] * 3
    assert (stored["known"], stored["others"]) == (trials.KNOWN, trials.OTHERS)


def test_the_lesson_says_what_is_on_record():
    stored = json.loads((NOTEBOOKS / "results/fits.json").read_text())
    lesson = (NOTEBOOKS / "16_predict_before_you_pay.ipynb").read_text()
    assert (stored["known"], stored["others"]) == (trials.KNOWN, trials.OTHERS)
    columns = [[found[f"{n} ranks"] for found in stored["errors"]]
               for n in trials.WORLD_SIZES]
    two, four = (f"{median(column):.0%}".replace("%", " %") for column in columns)
    worst = f"{max(map(max, columns)):.0%}".replace("%", " %")
    said = (f"We made [{len(stored['errors'])} such fits](results/fits.json) for 2 ranks "
            f"and for 4, on a machine with 2 cores. The error was {two} in the median, "
            f"for 2 ranks and also for 4, and {worst} at worst.")
    assert two == four and said in lesson
