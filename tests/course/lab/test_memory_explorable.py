"""The bars of a rank's memory: what they say is what lesson 16's Python says."""

import json

import pytest

from tests.course.lab.test_explorables import FILES, chromium  # noqa: F401
from tests.support.browser import watched
from tests.support.lessons import FOLDER, code_cells, source

MEMORY = next(file for file in FILES if file.stem == "memory")
SETTINGS = [  # billions of weights, ranks, stage, precision
    (5, 8, 0, "float32"), (5, 8, 1, "float32"), (5, 8, 2, "16 bits, float32 copy"),
    (7.5, 64, 0, "16 bits, float32 copy"), (7.5, 64, 3, "16 bits, float32 copy"),
    (70, 1024, 3, "16 bits only"), (0.5, 1, 3, "float32"), (1000, 3, 2, "16 bits only"),
    (13, 7, 1, "16 bits, float32 copy"), (400, 2, 3, "float32")]
NAMES = ("weights", "ranks", "stage", "precision")


@pytest.fixture(scope="module")
def zero_bytes():
    """Return the lesson's own function, from the cell in which it stands."""
    lesson = json.loads((FOLDER / "16_keep_only_a_part.ipynb").read_text(encoding="utf-8"))
    [cell] = [cell for cell in code_cells(lesson) if cell["id"] == "zero-bytes"]
    names = {}
    exec(source(cell), names)
    return names["zero_bytes"]


def test_the_script_says_of_a_ranks_memory_what_the_lesson_says(
        chromium, zero_bytes):  # noqa: F811
    with watched(chromium) as (page, faults):
        page.goto(MEMORY.as_uri())
        said = page.evaluate(
            "jobs => jobs.map(document.querySelector('.explorable').price)",
            [dict(zip(NAMES, setting)) for setting in SETTINGS])
        assert faults == []
    assert said == [pytest.approx(zero_bytes(*setting), rel=1e-12) for setting in SETTINGS]


def test_the_bars_are_as_long_as_the_sliders_say(chromium, zero_bytes):  # noqa: F811
    with watched(chromium) as (page, faults):
        page.goto(MEMORY.as_uri())
        for place in range(12):
            for number, name in enumerate(NAMES):
                slider = page.locator(f"[name={name}]")
                most = 8 if name == "weights" else int(slider.get_attribute("max"))
                slider.fill(str((7 * place + 3 * number) % (most + 1)))
            weights, ranks, stage, precision = (
                page.locator(f"[data-is={name}]").inner_text() for name in NAMES)
            parts = zero_bytes(float(weights.split()[0]), int(ranks), int(stage), precision)
            wide = [float(box.get_attribute("width"))
                    for box in page.locator("svg .now rect").all()]
            ticks = {one.text_content(): float(one.get_attribute("x"))
                     for one in page.locator("svg text[y='192']").all()}
            pixels = (ticks["160"] - ticks["0"]) / 160  # of one GB
            assert wide == [pytest.approx(pixels * part, abs=0.21) for part in parts]
            kept = page.locator("[data-is=kept]").inner_text().removesuffix(" GB")
            assert float(kept) == pytest.approx(sum(parts), abs=0.5, rel=0.06)
        assert faults == []
