"""Exercises of lessons: the seconds of all-reduces, the hours of a run with deaths."""

from course.school.checks import about, close, exercise, numbers


@exercise("count_price_look/allreduce")
def allreduce(random, allreduce):
    """Ask for the seconds of some rings."""
    drawn = random.randint(1, 99), random.randint(2, 9), 0.5, 4
    for size, n, a, b in (10, 4, 0.5, 4), (1000, 3, 2, 8), (7, 2, 0.25, 10), drawn:
        right, uncut = _ring(size, n, a, b), _ring(size * n, n, a, b)
        whole = size // n, -(-size // n)  # bytes
        rounded = [2 * (n - 1) * (a + chunk / b) for chunk in whole]
        got = numbers(allreduce(size, n, a, b))
        say = about(f"size {size}, ranks {n}, alpha {a}, bandwidth {b}")
        yield say(
            "seconds",
            got,
            right,
            {
                "a round sends one chunk: cut the tensor into `ranks` chunks": uncut,
                "this is one message: a ring sends one in every round": a + size / b,
                "this is half: the sums must reach every rank": right / 2,
                "alpha is paid in every round, not once": a + _ring(size, n, 0, b),
                "a message costs alpha, too": _ring(size, n, 0, b),
                "a ring of N ranks has 2 (N - 1) rounds": 2 * n * (a + size / n / b),
                "in a round all ranks send at the same time: it takes as long as one "
                "message": n * right,
                "a byte takes 1 / bandwidth seconds: divide by it": _ring(
                    size, n, a, 1 / b
                ),
                f"equal chunks of {size} bytes for {n} ranks: do not round their "
                "size": any(close(got, wrong) for wrong in rounded),
            },
        )


@exercise("count_price_look/two_levels")
def two_levels(random, two_levels):
    """Ask for the seconds of nodes, where each link differs."""
    fast, slow = (0.25, 16), (1.5, 2)
    drawn = tuple(random.randint(2, most) for most in (99, 9, 8))
    for size, m, g in (24, 4, 8), (60, 3, 2), (7, 16, 4), drawn:
        inside, between = _ring(size, g, *fast), _ring(size, m, *slow)
        twice = 2 * inside + between
        a, b = slow
        by_turns = inside + g * _ring(size / g, m, *slow)
        uncut = inside + _ring(size, m, a, b / g)
        say = about(f"size {size}, {m} nodes of {g}, inside {fast}, between {slow}")
        yield say(
            "seconds",
            two_levels(size, m, g, fast, slow),
            inside + between,
            {
                "all rings of a node share its link: it carries the bytes of all of "
                "them": inside + _ring(size / g, m, *slow),
                "a ring over all GPUs is one level": _ring(size, m * g, *slow),
                "each ring between nodes has 1 / each of the link, and 1 / each of the "
                "bytes as well: the two cancel": uncut,
                "the rings of a node run at the same time: in a round alpha is paid "
                "once": by_turns,
                "half of the inner ring comes first, half last: pay for it once": twice,
                "the ring inside has a second half: the sums must reach all GPUs of a "
                "node": inside / 2 + between,
                "the links have changed places: `inside` joins the GPUs of a "
                "node": _ring(size, g, *slow) + _ring(size, m, *fast),
            },
        )


def _ring(size, n, alpha, bandwidth):
    """Return the seconds of a ring: 2 (n - 1) rounds, in each a chunk goes on."""
    return 2 * (n - 1) * (alpha + size / n / bandwidth)


@exercise("count_price_look/sends")
def sends(random, sends):
    """Ask on slow wires, with one bucket, on a fast wire, and on one that is drawn."""
    k, b = random.randint(3, 6), random.choice([1, 2, 4])
    f, w, parts = (random.randint(1, most) for most in (9, 30, 4))
    drawn = f, w, parts * k, k, 0.25, b
    for case in (
        (1, 2, 8, 4, 1, 4),
        (2, 3, 9, 1, 1, 2),
        (3, 6, 9, 3, 2, 1),
        (1, 6, 8, 4, 0.25, 4),
        drawn,
    ):
        yield from _sends_on_a_wire(sends, *case)


def _sends_on_a_wire(sends, f, w, size, k, a, b):
    """Ask when each of k buckets travels."""

    def price(part):
        return a + part / b

    # what has a default is a mistake
    def times(long, first=1, late=False, one=True, waits=True, f=f):
        free, bars = 0, []
        for i in range(k):
            full = f + w * (1 if late else (i + first) / k)
            start = full
            if one and bars:
                start = max(full, free) if waits else free
            free = start + long
            bars.append([start, free])
        return bars

    long = price(size / k)
    bars = [list(bar) for bar in sends(f, w, size, k, price)]
    say = about(f"forward {f}, backward {w}, size {size} in {k}, {a} + bytes / {b}")
    yield say(
        "start and end of each",
        numbers(bars),
        times(long),
        {
            "all wait for the end of backward: a bucket leaves when it is full": k > 1
            and times(long, late=True),
            "these travel at the same time: there is one wire": times(long, one=False),
            "a bucket leaves before it is full: it starts at the later of two times, "
            "when it is full, and when the wire is free": times(long, waits=False),
            "the first is full after 1 / B of backward": times(long, first=0),
            "the clock starts with forward": times(long, f=0),
            "every bucket sends all bytes: divide the size": times(price(size)),
            "divide the bytes, not the price": times(price(size) / k),
            "the second number is when it ends, not how long it takes": [
                [start, end - start] for start, end in times(long)
            ],
        },
    )


SLIPS = {  # in many_machines/finish: {hint: slips of `_hours` that it is meant for}
    "a save that is not finished does not count": ["goes on", "begun"],
    "nothing is saved at the very end": ["last"],
    "a save takes time, too": ["free"],
    "a death costs the work since the last save": ["none"],
    "what was saved before a death is kept": ["all"],
    "there is more than one death": ["first"],
    "a part may die again when it is done again": ["once"],
    "at a death the run goes on at once, not later": ["late"],
}


@exercise("many_machines/finish")
def finish(random, finish):
    """Give it no deaths, two in one part, one in a save, and some that are drawn."""
    drawn = sorted(random.randint(1, 40) + random.random() / 3 for _ in range(5))
    cases = [
        (10, 4, 0.5, []),
        (12, 5, 1, [3.3, 9.4, 10.2, 99.5]),
        (9, 3, 1, [2, 5.5]),
        (random.randint(20, 30), random.randint(2, 4), 0.25, drawn),
    ]
    found = numbers([finish(*case[:3], [*case[3]]) for case in cases])
    hints = {}
    for hint, slips in SLIPS.items():
        hints[hint] = any(
            close(found, [_hours(*case, slip) for case in cases]) for slip in slips
        )
    hints[
        "without deaths this is right. At a death, the clock shows its hour, and what "
        "was done since the last finished save is done again"
    ] = close(found[0], _hours(*cases[0]))
    for case, hours in zip(cases, found):
        say = about("work {}, every {}, cost {}, deaths {}".format(*case))
        yield say("hours", hours, _hours(*case), hints)


def _hours(work, every, cost, deaths, slip=None):
    """Return when a run is done; `slip`: what somebody does not do as it is asked."""
    clock, done, again = 0, 0, False
    deaths = deaths[: {"none": 0, "first": 1}.get(slip)]
    while done < work:
        part = min(every, work - done)
        saves = (done + part < work or slip == "last") and slip != "free"
        end = clock + part + cost * saves
        deaths = [death for death in deaths if death >= clock]
        worked = clock + part
        dies = deaths and deaths[0] < (worked if slip == "goes on" else end)
        if dies and not (slip == "once" and again):
            again = True
            clock = end if slip == "late" else deaths.pop(0)
            done *= slip != "all"
            if slip == "begun" and clock >= worked:
                done += part
        else:
            clock, done, again = end, done + part, False
    return clock
