"""Pictures with sliders: small, alone, and with a still picture where no script runs.

What each says is what its lesson's Python says: of a step, and of a rank's memory.
"""

import re
from pathlib import Path

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter

from course.lab import notebook
from tests.support.browser import open_browser, watched

FILES = sorted(Path(notebook.__file__).with_name("explorables").glob("*.html"))
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
LESSON = FILES[0].parents[3] / "19_overlap_and_decide.ipynb"
STEP = next(file for file in FILES if file.stem == "step")
NAMES = "ranks megabytes latency bandwidth compute buckets".split()


@pytest.fixture(scope="module")
def chromium():
    with open_browser() as browser:
        yield browser


@EACH
def test_a_notebook_gets_a_page_with_an_image_and_the_image_alone(file):
    found, _ = DisplayFormatter().format(notebook.explorable(file.stem))
    assert found["image/svg+xml"].startswith("<svg xmlns=")
    assert found["text/plain"] in found["image/svg+xml"]
    # what is left of the page where scripts, styles and <svg> are taken out
    safe = re.sub(r"<(script|style)>.*?</\1>", "", found["text/html"], flags=re.S)
    assert re.search(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,', safe)
    assert "<svg" not in safe


@EACH
def test_nothing_is_wider_than_a_phone_and_nothing_is_loaded(chromium, file):
    with watched(chromium, viewport={"width": 400, "height": 700}) as (page, faults):
        page.goto(file.as_uri())
        for slider in page.locator("input[type=range]").all():
            slider.fill(slider.get_attribute("max"))
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert faults == []


@EACH
def test_a_step_of_a_slider_changes_what_is_said_and_read_aloud(chromium, file):
    with watched(chromium) as (page, _):
        page.goto(file.as_uri())
        for slider in page.locator("input[type=range]").all():
            said = slider.evaluate("""slider => [...Array(+slider.max + 1).keys()].map(i => {
                slider.value = i;
                slider.dispatchEvent(new Event("input", {bubbles: true}));
                return slider.ariaValueText;
            })""")
            assert len(set(said)) == len(said) > 1


@EACH
def test_without_a_script_there_is_the_picture_that_the_script_draws_first(
    chromium, file
):
    with watched(chromium, java_script_enabled=False) as (page, _):
        page.goto(file.as_uri())
        assert (
            page.locator("svg rect").count() > 3 and page.locator("input").count() == 0
        )
        words = page.locator("svg text").all_inner_texts()
        box = page.locator("svg").get_attribute("viewBox").split()
    size = {"width": int(box[2]) + 42, "height": 700}
    with watched(chromium, viewport=size) as (page, _):
        page.goto(file.as_uri())
        assert page.locator("svg text").all_inner_texts() == words


@EACH
def test_on_paper_the_numbers_stay_and_the_sliders_go(chromium, file):
    with watched(chromium) as (page, _):
        page.goto(file.as_uri())
        page.emulate_media(media="print")
        assert page.locator("svg").is_visible()
        assert not any(one.is_visible() for one in page.locator("input, button").all())


def sends(forward, backward, size, ranks, alpha, bandwidth, buckets):
    """Return what lesson 19 says: its functions stand in two cells."""
    names = {"check": lambda *_: None}
    for cell in nbformat.read(LESSON, 4).cells:
        if cell.id in ("prices", "read-sends"):
            exec(cell.source, names)
    return names["on_wire"](
        forward,
        backward,
        size,
        buckets,
        lambda part: names["ring"](part, ranks, alpha, bandwidth),
    )


SETTINGS = [
    (8, 500, 14, 3.125, 210, 20),
    (1, 500, 14, 3.125, 210, 20),
    (16, 1, 1, 1000, 5000, 7),
    (3, 77, 250, 12.5, 33, 13),
]


def test_the_script_says_of_a_step_what_the_lesson_says(chromium):
    with watched(chromium) as (page, _):
        page.goto(STEP.as_uri())
        said = page.evaluate(
            "jobs => jobs.map(document.querySelector('.explorable').price)",
            [dict(zip(NAMES, setting)) for setting in SETTINGS],
        )
    for setting, found in zip(SETTINGS, said, strict=True):
        ranks, megabytes, latency, bandwidth, compute, buckets = setting
        want = sends(
            compute / 3e3,
            compute / 1.5e3,
            megabytes * 1e6,
            ranks,
            latency * 1e-6,
            bandwidth * 1e9,
            buckets,
        )
        assert found["bars"] == [pytest.approx(pair, rel=1e-12) for pair in want]
        assert found["step"] == pytest.approx(want[-1][1], rel=1e-12)
        assert found["speedup"] == pytest.approx(ranks * compute / 1e3 / want[-1][1])


def test_the_page_shows_a_step_as_its_sliders_say_with_the_last_one_as_a_ghost(
    chromium,
):
    def number(text):
        return float(re.match(r"[\d.e+]+", text)[0])

    def wide(row):
        return sum(
            float(box.get_attribute("width"))
            for box in page.locator(f"svg .{row} rect").all()
        )

    with watched(chromium) as (page, faults):
        page.goto(STEP.as_uri())
        assert wide("before") == 0
        for place, name in enumerate(3 * NAMES):
            slider = page.locator(f"[name={name}]")
            slider.fill(str(7 * (place + 2) % int(slider.get_attribute("max"))))
            said = {
                name: number(page.locator(f"[data-is={name}]").inner_text())
                for name in NAMES
            }
            step = page.locator("[data-is=step]").inner_text()
            found = page.evaluate(
                "job => document.querySelector('.explorable').price(job)", said
            )
            unit = 1e-3 if step.endswith("ms") else 1
            assert number(step) * unit == pytest.approx(found["step"], rel=1e-3)
            assert page.locator("svg .wire rect").count() == said["buckets"]
        page.locator("[name=buckets]").fill("0")
        for before, now in (
            ("25 Gb/s Ethernet", "one bucket"),
            ("NVLink", "one bucket"),
        ):
            seconds = []
            for name in (before, now):
                page.get_by_role("button", name=name).click()
                seconds.append(number(page.locator("[data-is=step]").inner_text()))
            # a bar that is twice as long is twice as wide, now and before
            assert wide("before") / wide("now") == pytest.approx(
                seconds[0] / seconds[1], rel=0.01
            )
        assert faults == []


# a rank's memory

MEMORY = next(file for file in FILES if file.stem == "memory")
OF_MEMORY = [  # billions of weights, ranks, stage, precision
    (5, 8, 0, "float32"),
    (7.5, 64, 1, "16 bits, float32 copy"),
    (1000, 3, 2, "16 bits only"),
    (0.5, 7, 3, "float32"),
]
SLIDERS = ("weights", "ranks", "stage", "precision")


@pytest.fixture(scope="module")
def zero_bytes():
    """Return the lesson's own function, from the cell in which it stands."""
    lesson = nbformat.read(LESSON.with_name("16_keep_only_a_part.ipynb"), 4)
    [cell] = [cell for cell in lesson.cells if cell.id == "zero-bytes"]
    names = {}
    exec(cell.source, names)
    return names["zero_bytes"]


def test_the_script_says_of_a_ranks_memory_what_the_lesson_says(chromium, zero_bytes):
    with watched(chromium) as (page, faults):
        page.goto(MEMORY.as_uri())
        said = page.evaluate(
            "jobs => jobs.map(document.querySelector('.explorable').price)",
            [dict(zip(SLIDERS, setting)) for setting in OF_MEMORY],
        )
        assert faults == []
    assert said == [
        pytest.approx(zero_bytes(*setting), rel=1e-12) for setting in OF_MEMORY
    ]


def test_the_bars_are_as_long_as_the_sliders_say(chromium, zero_bytes):
    with watched(chromium) as (page, faults):
        page.goto(MEMORY.as_uri())
        for place in range(12):
            for number, name in enumerate(SLIDERS):
                slider = page.locator(f"[name={name}]")
                most = 8 if name == "weights" else int(slider.get_attribute("max"))
                slider.fill(str((7 * place + 3 * number) % (most + 1)))
            weights, ranks, stage, precision = (
                page.locator(f"[data-is={name}]").inner_text() for name in SLIDERS
            )
            parts = zero_bytes(
                float(weights.split()[0]), int(ranks), int(stage), precision
            )
            wide = [
                float(box.get_attribute("width"))
                for box in page.locator("svg .now rect").all()
            ]
            ticks = {
                one.text_content(): float(one.get_attribute("x"))
                for one in page.locator("svg text[y='192']").all()
            }
            pixels = (ticks["160"] - ticks["0"]) / 160  # of one GB
            assert wide == [pytest.approx(pixels * part, abs=0.21) for part in parts]
            kept = page.locator("[data-is=kept]").inner_text().removesuffix(" GB")
            assert float(kept) == pytest.approx(sum(parts), abs=0.5, rel=0.06)
        assert faults == []
