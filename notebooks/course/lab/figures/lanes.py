"""Rows of boxes over one axis, from top to bottom: the frame of half the pictures.

Lanes       a card with one scale: its `bar`s, `label`s, `axis`, `legend`
hand        a line that moves from left to right, as time does
plural      "1 bucket", "2 buckets"
listed      what a title says of several things
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK
from course.lab.figures.svg import WIDTH


class Lanes(svg.Card):
    """A card for rows, the longest of which takes the width from left to right."""

    def __init__(self, height, title, longest=1, left=84, right=16, width=WIDTH):
        super().__init__(height, title, width)
        self.left, self.right = left, width - right
        self.scale = (self.right - left) / longest

    def at(self, value):
        """Return the x of a value."""
        return self.left + self.scale * value

    def label(self, words, y, gap=8, size=12):
        """Write in front of a row what it is."""
        self.text(words, self.left - gap, y, size, INK, "end")

    def bar(
        self, start, end, y, high, colour, words="", *, less=0, least=-WIDTH, **style
    ):
        """Draw a box from start to end on the scale, `less` pixels short of its end."""
        width = max(self.scale * (end - start) - less, least)
        self.box(self.at(start), y, width, high, words, colour, **style)

    def axis(self, words, y, below=15):
        """Draw the axis at y, and write at its end what it means."""
        self.arrow((self.left, y), (self.right, y))
        self.text(words, self.right, y + below, 11.5, INK, "end")

    def legend(self, names, y, gap=30):
        """Draw a small square of each colour, and its name: {name: colour}."""
        x = 14
        for name, colour in names.items():
            self.box(x, y - 6, 12, 12, colour=colour, rx=0)
            self.text(name, x + 17, y, 11.5, INK, "start")
            x += gap + svg.wide(name, 11.5)


def hand(card, left, right, spans, end, seconds, colour="#c2410c"):
    """Let a line move from left to right until `end`; spans: its (top, bottom)s."""
    import drawsvg

    style, start = {"stroke": colour, "stroke_width": 2}, f"translate({left} 0)"
    if len(spans) == 1:
        [(top, bottom)] = spans
        line = drawsvg.Line(0, top, 0, bottom, **style, transform=start)
    else:
        line = drawsvg.Path(**style, fill="none", transform=start)
        for top, bottom in spans:
            line.M(0, top).L(0, bottom)
    svg.travel(line, [(0, (left, 0)), (end, (right, 0))], seconds)
    card.append(line)


def plural(count, word):
    """Say a number of things."""
    return f"{count} {word}{'s' * (count != 1)}"


def listed(said, sign=": "):
    """Say {thing: words} in one line."""
    return "; ".join(f"{thing}{sign}{words}" for thing, words in said.items())
