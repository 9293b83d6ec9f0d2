"""Rows of boxes over one axis, from top to bottom: `bars` draws on it.

Lanes       a card with one scale, and a `label` for each row
so_many     "1 bucket", "2 buckets"
join_pairs  "star: 2 rounds; ring: 6 rounds", for a picture's title
"""

from course.lab.figures import svg
from course.lab.figures.plot import INK
from course.lab.figures.svg import WIDTH


class Lanes(svg.Card):
    """A card for rows on one scale; the longest row goes from `left` to `right`."""

    def __init__(self, height, title, longest=1, left=84, right=16, width=WIDTH):
        super().__init__(height, title, width)
        self.left, self.scale = left, (width - right - left) / longest

    def at(self, value):
        """Return the x of a value."""
        return self.left + self.scale * value

    def label(self, words, y, gap=8):
        """Write in front of a row what it is."""
        self.text(words, self.left - gap, y, 12, INK, "end")


def so_many(count, noun):
    """Say a number of things: "1 bucket", "2 buckets"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def join_pairs(words, sign=": "):
    """Join a dict {thing: words} into one line, for a picture's title."""
    return "; ".join(f"{thing}{sign}{said}" for thing, said in words.items())
