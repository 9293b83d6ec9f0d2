"""Pictures of all kinds are what they were, and keep the rules of all pictures.

If you have changed a picture on purpose: `python -m tests.support.pictures` stores what
it is now. Look at it before you commit.
"""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
from PIL import ImageFont

from tests.support.pictures import GOLDEN, hashes, pictures

SVG = "{http://www.w3.org/2000/svg}"
FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
SIDES = {"start": 0, None: 0.5, "end": 1}
TAGS = {
    "svg",
    "title",
    "rect",
    "path",
    "circle",
    "line",
    "text",
    "g",
    "animate",
    "animateTransform",
}


def test_all_pictures_are_drawn_and_stored_as_they_were():
    was, now = json.loads(GOLDEN.read_text()), hashes()
    changed = []
    for kind in ("drawn", "stored"):
        for name in sorted(was[kind].keys() | now[kind].keys()):
            if was[kind].get(name) != now[kind].get(name):
                changed.append(f"{name} ({kind})")
    assert not changed, (
        f"these pictures have changed: {', '.join(changed)}. If that is on purpose, "
        "look at each, run make refresh LESSON=... for the lessons that show them, then: "
        ".venv/bin/python -m tests.support.pictures"
    )


def test_a_picture_is_a_small_white_card_with_a_title_that_loads_and_runs_nothing():
    for name, picture in pictures():
        root = ElementTree.fromstring(picture.text)
        title, card = root[:2]
        assert title.text == picture.title, name
        assert card.get("fill") == "#ffffff", name
        assert [card.get("width"), card.get("height")] == root.get("viewBox").split()[
            2:
        ], name
        assert {e.tag.removeprefix(SVG) for e in root.iter()} <= TAGS, name
        assert not re.search(r"href|url\(|\bon[a-z]+=|\bid=", picture.text), name
        places = re.sub(r'keyTimes="[^"]*"|>[^<]*<', "", picture.text)
        assert not re.search(r"\.\d\d", places), name
        assert len(picture.text) < 50_000, name


def test_all_words_lie_on_the_card_in_a_wide_font_and_can_be_read():
    for name, picture in pictures():
        root = ElementTree.fromstring(picture.text)
        for text in root.iter(SVG + "text"):
            face = "DejaVuSansMono" if text.get("font-family") else "DejaVuSans"
            bold = "-Bold" if text.get("font-weight") == "bold" else ""
            size = float(text.get("font-size"))
            font = ImageFont.truetype(str(FONTS / f"{face}{bold}.ttf"), 100)
            width = font.getlength(text.text) * size / 100
            left = float(text.get("x")) - width * SIDES[text.get("text-anchor")]
            inside = 3 <= left and left + width <= float(root.get("width")) - 3
            assert inside and size >= 10, (
                f"{name}: {text.text!r} begins at {left:.0f} and is {width:.0f} wide, on "
                f"a card of {root.get('width')}: say less, or make the card wider"
            )
