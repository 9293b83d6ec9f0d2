import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from IPython.core.formatters import DisplayFormatter
from PIL import ImageFont

from course.lab.figures import svg
from tests.support.pictures import pictures

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]
ALL = pictures()
FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
each = pytest.mark.parametrize("picture", [p for _, p in ALL], ids=[n for n, _ in ALL])


def elements(picture, tag):
    return ElementTree.fromstring(picture.text).iter(SVG + tag)


def spans(picture):
    """Yield (words, left, right, size) of each text, in DejaVu Sans, a wide font."""
    for text in elements(picture, "text"):
        bold = "-Bold" if text.get("font-weight") == "bold" else ""
        face = "DejaVuSansMono" if text.get("font-family") else "DejaVuSans"
        size = float(text.get("font-size"))
        font = ImageFont.truetype(str(FONTS / f"{face}{bold}.ttf"), 100)
        width = font.getlength(text.text) * size / 100
        left = float(text.get("x")) - width * {
            "start": 0, None: 0.5, "end": 1}[text.get("text-anchor")]
        yield text.text, left, left + width, size


# all pictures

@each
def test_a_picture_is_one_well_formed_drawing_with_a_title(picture):
    root = ElementTree.fromstring(picture.text)
    assert root.tag == SVG + "svg"
    assert root[0].tag == SVG + "title" and root[0].text == picture.title
    x, y, width, height = map(float, root.get("viewBox").split())
    assert (x, y) == (0, 0)
    assert (float(root.get("width")), float(root.get("height"))) == (width, height)


@each
def test_a_white_card_lies_behind_everything(picture):
    root = ElementTree.fromstring(picture.text)
    card = root[1]
    assert card.tag == SVG + "rect" and card.get("fill") == "#ffffff"
    assert [card.get("width"), card.get("height")] == root.get("viewBox").split()[2:]


@each
def test_nothing_is_run_or_loaded_from_elsewhere(picture):
    assert {tag.rpartition("}")[2] for tag in
            (e.tag for e in ElementTree.fromstring(picture.text).iter())} <= {
        "svg", "title", "rect", "path", "circle", "line", "text", "g", "animate",
        "animateTransform"}
    assert "href" not in picture.text and "url(" not in picture.text
    assert not re.search(r"\bon[a-z]+=|\bid=", picture.text)


@each
def test_every_text_lies_inside_the_picture_and_is_large_enough(picture):
    width = float(ElementTree.fromstring(picture.text).get("width"))
    for words, left, right, size in spans(picture):
        assert left >= 3 and right <= width - 3, words
        assert size >= 10, words


@each
def test_coordinates_are_rounded_to_a_tenth(picture):
    numbers = re.sub(r'keyTimes="[^"]*"|>[^<]*<', "", picture.text)  # nor in words
    assert not re.search(r"\.\d\d", numbers)


@each
def test_key_times_run_from_0_to_at_most_1_one_for_each_value(picture):
    for tag in ("animate", "animateTransform"):
        for motion in elements(picture, tag):
            times = [float(time) for time in motion.get("keyTimes").split(";")]
            assert times == sorted(times) and times[0] == 0 and times[-1] <= 1
            assert len(times) == len(motion.get("values").split(";"))
            if motion.get("calcMode") != "discrete":
                assert times[-1] == 1


@each
def test_a_picture_is_small(picture):
    assert len(picture.text) < 40_000


def test_the_same_bytes_come_out_twice_and_in_another_process():
    assert [p.text for _, p in pictures()] == [p.text for _, p in ALL]
    other = subprocess.run(
        [sys.executable, "-m", "tests.support.pictures"], cwd=ROOT, check=True,
        capture_output=True, text=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}).stdout
    mine = [f"{name} {hashlib.sha256(p.text.encode()).hexdigest()}" for name, p in ALL]
    assert other.splitlines() == mine


def test_a_notebook_stores_the_svg_and_a_plain_text_that_never_changes():
    _, picture = ALL[0]
    data, _ = DisplayFormatter().format(picture)
    assert data == {"image/svg+xml": picture.text,
                    "text/plain": f"picture: {picture.title}"}


# what they are made of

@pytest.mark.parametrize("words", ["rank 0", "all-reduce: add up", "MMMM", "illi", ""])
def test_wide_is_never_less_than_a_wide_font_takes(words):
    font = ImageFont.truetype(str(FONTS / "DejaVuSans.ttf"), 100)
    width = font.getlength(words) * 12 / 100
    assert width * (0.75 if "M" in words else 0.95) <= svg.wide(words, 12)


def test_marks_that_xml_uses_are_only_text():
    drawing = svg.card(50, 'a < b & "c"')
    svg.text(drawing, "<b> & c", 20, 20)
    picture = svg.picture(drawing)
    assert picture.title == 'a < b & "c"'
    assert [text.text for text in elements(picture, "text")] == ["<b> & c"]


@pytest.mark.parametrize("part, grey", [(0, "#e6eaee"), (1, "#30343a"), (7, "#30343a")])
def test_a_shade_runs_from_nearly_white_to_ink(part, grey):
    assert svg.shade(part) == grey
