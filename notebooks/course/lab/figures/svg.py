"""One look for every picture that is drawn as SVG: a white card, boxes, arrows, text.

    Card            what is drawn on: text, headings, boxes, arrows, lines, tiles
    Picture         what a notebook shows of a finished card
    wide            how wide a line of text may get
    jumps, travel   let an attribute change at some times; let an element move

Motion is SVG's own: no script. No element has an id, so that two pictures on one page
cannot be mixed up. drawsvg is imported where it is needed.
"""

from contextlib import contextmanager

from course.lab.figures.plot import COLOURS, FAINT, INK

WIDTH = 480  # pixels of most pictures: on a phone three quarters of it are left
SOFT, PALE = "#8a93a0", "#f4f6f8"
AWAY = (-999, -999)  # outside of the card: an element waits there until it is seen


class Picture:
    """A finished picture: `text`, the SVG, and `title`. A notebook displays it."""

    def __init__(self, text, title):
        self.text, self.title = text, title

    def __repr__(self):
        return f"picture: {self.title}"

    def _repr_svg_(self):
        return self.text


class Card:
    """A white card, and what is drawn on it; all y are counted from `y` on.

    (x, y) of a text is the middle of its height; of a box, its upper left corner.
    """

    def __init__(self, height, title, width=WIDTH):
        import drawsvg

        self.y, self.title = 0, title
        self.parent = self.drawing = drawsvg.Drawing(
            width,
            height,
            font_family="sans-serif",
            role="img",
            text_anchor="middle",
            fill=INK,  # what texts inherit
            style="max-width:100%;height:auto",
        )
        self.drawing.append_title(title)
        self.append(drawsvg.Rectangle(0, 0, width, height, rx=10, fill="#ffffff"))

    def picture(self):
        """Return the finished drawing as a `Picture`: the same bytes everywhere."""
        drawn = self.drawing.as_svg(header="").replace("<defs>\n</defs>\n", "")
        return Picture(drawn.replace("\n    ", " ").replace(" />", "/>"), self.title)

    def append(self, element):
        """Put an element of drawsvg on top of all others; return it."""
        self.parent.append(element)
        return element

    @contextmanager
    def group(self, **style):
        """Let what is drawn inside be one element."""
        import drawsvg

        outer, self.parent = self.parent, drawsvg.Group(**style)
        yield self.parent
        outer.append(self.parent)
        self.parent = outer

    def text(self, words, x, y, size=12, colour=INK, anchor="middle", **style):
        """Write words at (x, y); return the element."""
        import drawsvg

        style |= {"fill": colour} if colour != INK else {}
        style |= {"text_anchor": anchor} if anchor != "middle" else {}
        return self.append(
            drawsvg.Text(
                str(words), size, short(x), short(self.y + y + 0.35 * size), **style
            )
        )

    def heading(self, words, x, y, size=14, **style):
        """Write bold words that begin at x."""
        self.text(words, x, y, size, INK, "start", **style, font_weight="bold")

    def box(
        self,
        x,
        y,
        width,
        height,
        words="",
        colour=FAINT,
        ink="#ffffff",
        size=12,
        **style,
    ):
        """Draw a rounded box, and words in its middle."""
        import drawsvg

        style.setdefault("rx", 5)
        self.append(
            drawsvg.Rectangle(
                short(x),
                short(self.y + y),
                short(width),
                short(height),
                fill=colour,
                **style,
            )
        )
        if words != "":
            self.text(words, x + width / 2, y + height / 2, size, ink)

    def line(self, x0, y0, x1, y1, **style):
        """Draw a line without a head."""
        import drawsvg

        self.append(
            drawsvg.Line(
                short(x0), short(self.y + y0), short(x1), short(self.y + y1), **style
            )
        )

    def arrow(self, start, end, colour=SOFT, width=1.6, both=False):
        """Draw an arrow from start to end; with `both`, a head at each end."""
        import drawsvg

        x0, y0 = start[0], self.y + start[1]
        x1, y1 = end[0], self.y + end[1]
        length = max(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5, 1e-9)
        u, v = (x1 - x0) / length, (y1 - y0) / length
        head = 5 + 1.2 * width
        tail = head if both else 0
        line = drawsvg.Path(stroke=colour, stroke_width=short(width), fill="none")
        line.M(short(x0 + tail * u), short(y0 + tail * v))
        line.L(short(x1 - head * u), short(y1 - head * v))
        self.append(line)
        shape = drawsvg.Path(fill=colour)
        heads = [(x1, y1, head)]
        if both:
            heads.append((x0, y0, -head))  # it points the other way
        # (u, v) is the direction, (-v, u) is sideways
        for x, y, size in heads:
            shape.M(short(x), short(y))
            for side in (1, -1):
                shape.L(
                    short(x - size * u - side * size * 0.5 * v),
                    short(y - size * v + side * size * 0.5 * u),
                )
            shape.Z()
        self.append(shape)

    def tiles(self, places, width, height, colour, **style):
        """Draw a box with sharp corners at each place, all as one element."""
        import drawsvg

        path = self.append(drawsvg.Path(fill=colour, **style))
        for x, y in places:
            path.M(short(x), short(self.y + y))
            path.h(short(width))
            path.v(short(height))
            path.h(short(-width))
            path.Z()


def wide(words, size=12):
    """Return how many pixels words may take in any common sans-serif font."""
    narrow = sum(letter in "iljt.,:;|'!()[] " for letter in words)
    return size * (0.38 * narrow + 0.66 * (len(words) - narrow))


def jumps(element, attribute, frames, seconds):
    """Let an attribute take each value from its time on: frames is [(time, value)]."""
    import drawsvg

    kept = frames[:1]  # and each frame that changes the value
    for before, frame in zip(frames, frames[1:]):
        if frame[1] != before[1]:
            kept.append(frame)
    if len(kept) > 1:
        element.append_anim(
            drawsvg.Animate(
                attribute,
                f"{short(seconds)}s",
                ";".join(str(value) for _, value in kept),
                keyTimes=_times([time for time, _ in kept], seconds),
                calcMode="discrete",
                repeatCount="indefinite",
            )
        )


def travel(element, frames, seconds):
    """Let an element be moved by each (x, y) at its time: frames is [(time, (x, y))].

    Between two frames it goes straight; two frames of one time are a jump.
    """
    import drawsvg

    frames = list(frames)
    if frames[0][0] > 0:
        frames.insert(0, (0, frames[0][1]))
    if frames[-1][0] < seconds:
        frames.append((seconds, frames[-1][1]))
    element.append_anim(
        drawsvg.AnimateTransform(
            "translate",
            f"{short(seconds)}s",
            ";".join(f"{short(x)} {short(y)}" for _, (x, y) in frames),
            keyTimes=_times([time for time, _ in frames], seconds),
            repeatCount="indefinite",
        )
    )


def short(number):
    """Round to a tenth of a pixel, without a useless `.0`."""
    number = round(float(number), 1)
    return int(number) if number == int(number) else number


def shade(part):
    """Return the grey for a part of a whole: 0 is nearly white, 1 the ink itself."""
    light, dark = (0xE6, 0xEA, 0xEE), bytes.fromhex(INK[1:])
    part = min(max(part, 0), 1)
    mixed = [round(a + (b - a) * part) for a, b in zip(light, dark)]
    return "#" + bytes(mixed).hex()


def rank_colour(rank):
    """Return the colour that a rank has in every picture."""
    return COLOURS[rank % len(COLOURS)]


def _times(times, seconds):
    return ";".join(f"{time / seconds:.3f}".rstrip("0").rstrip(".") for time in times)
