"""Rows of boxes over one axis, from top to bottom: the frame of half the pictures.

    Lanes       a card with one scale; `y` is how far down it is filled
    .panel      the bold title of what follows
    .label      what a row is;  .box  a box on the scale, in this row
    .axis       an arrow to the right, and what it means
    .legend     colours and their names
    hand        a line that moves from left to right, as time does
    plural      "1 bucket", "2 buckets"
    fitting     the first of some words that fits
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK


class Lanes:
    """A card for rows, the longest of which takes the width from left to right."""

    def __init__(self, height, title, longest=1, left=84, right=16, width=svg.WIDTH):
        self.drawing = svg.card(height, title, width)
        self.left, self.right = left, width - right
        self.scale = (self.right - left) / longest
        self.y = 4

    def at(self, value):
        """Return the x of a value."""
        return self.left + self.scale * value

    def panel(self, words, down=16, x=14, size=14):
        """Write a bold title, its middle `down` below here."""
        svg.heading(self.drawing, words, x, self.y + down, size)

    def words(self, words, x, down, size=12, colour=INK, anchor="start", **style):
        """Write words that begin at x, `down` below here."""
        svg.text(self.drawing, words, x, self.y + down, size, colour, anchor, **style)

    def label(self, words, down, gap=8, size=12):
        """Write in front of a row what it is."""
        self.words(words, self.left - gap, down, size, anchor="end")

    def box(self, start, end, down, high, colour, words="", *, less=0, least=-svg.WIDTH,
            **style):
        """Draw a box from start to end on the scale, `less` pixels short of its end."""
        width = max(self.scale * (end - start) - less, least)
        svg.box(self.drawing, self.at(start), self.y + down, width, high, words, colour,
                **style)

    def axis(self, words, down=15, at=0):
        """Draw the axis `at` below here, and write at its end what it means."""
        svg.arrow(self.drawing, (self.left, self.y + at), (self.right, self.y + at))
        self.words(words, self.right, at + down, 11.5, anchor="end")

    def legend(self, names, down, gap=30):
        """Draw a small square of each colour, and its name: {name: colour}."""
        x = 14
        for name, colour in names.items():
            svg.box(self.drawing, x, self.y + down - 6, 12, 12, colour=colour, rx=0)
            self.words(name, x + 17, down, 11.5)
            x += gap + svg.wide(name, 11.5)


def hand(drawing, left, right, spans, end, seconds, colour="#c2410c"):
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
    drawing.append(line)


def plural(count, word):
    """Say a number of things."""
    return f"{count} {word}{'s' * (count != 1)}"


def fitting(width, size, margin, *words):
    """Return the first of some words that fits into a width, or none."""
    return next((w for w in words if width > svg.wide(w, size) + margin), "")
