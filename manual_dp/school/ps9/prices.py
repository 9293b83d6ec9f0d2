"""The price of a link, from measurements, and that of an all-reduce, from counts.

    draw_fit, judge_fit          alpha and beta
    draw_prices, judge_prices    seconds of a star, a ring, a tree, halving-doubling
"""

from math import log2

from manual_dp.school.exercise import flat, shorten
from manual_dp.school.ps9.form import compare, number

WAYS = ("star", "ring", "tree", "halving-doubling")
MICRO = 1e6   # alpha is shown in microseconds
PICO = 1e12   # and beta in picoseconds a byte
FAR = 0.02    # what a mistake changes at least
CLEAR = 5e-3  # what a measurement that is lost or at another size changes at least
NEAR = 1e-3   # what rounding may change


def draw_fit(random):
    """Draw what was measured: two sizes without noise, then many with it."""
    for count, noise in ((2, 0), (7, 0.15), (9, 0.1), (6, 0.2)):
        while True:
            case = _measured(random, count, noise)
            right = _least(case)
            others = [(_least(case, power), FAR) for power in (0, 1, 4)]
            if count == 9:  # one of them was measured twice
                others.append((_least(_once(case)), CLEAR))
            if count == 7:
                others.append((_least({name: sorted(case[name]) for name in case}),
                               CLEAR))
            if not noise or min(right) > 0 and all(
                    max(abs(o / r - 1) for o, r in zip(other, right)) > far
                    for other, far in others):
                break  # another fit would show
        yield case


def _measured(random, count, noise):
    alpha, beta = random.uniform(5e-6, 40e-6), random.uniform(3e-11, 8e-10)
    sizes = [round(2 ** random.uniform(9, 27)) for _ in range(count)]
    sizes = [2 ** random.randint(5, 9), *sizes[1:-1], 2 ** random.randint(25, 27)]
    if count == 9:
        sizes[3] = sizes[4]  # measured twice
    random.shuffle(sizes)
    return {"sizes": sizes, "seconds": [
        (alpha + beta * size) * random.uniform(1 - noise, 1 + noise)
        for size in sizes]}


def _once(case):
    """Return the case as a dict keeps it: one measurement of each size."""
    once = dict(zip(case["sizes"], case["seconds"]))
    return {"sizes": list(once), "seconds": list(once.values())}


def _least(case, power=2):
    """Return the line with the least squares, each divided by seconds ** power."""
    w = [1 / t ** power for t in case["seconds"]]
    s, t = case["sizes"], case["seconds"]
    whole = sum(w)
    x = sum(a * b for a, b in zip(w, s)) / whole
    y = sum(a * b for a, b in zip(w, t)) / whole
    beta = (sum(a * (b - x) * (c - y) for a, b, c in zip(w, s, t))
            / sum(a * (b - x) ** 2 for a, b in zip(w, s)))
    return [y - beta * x, beta]


def judge_fit(case, got):
    """Compare alpha and beta, each by its relative error."""
    sizes, seconds = case["sizes"], case["seconds"]
    given = f"sizes {sizes}, seconds {shorten(seconds)}"
    yield compare(f"{given}; these lists afterwards", [got["sizes"], got["seconds"]],
                  [sizes, seconds], [
        ("the lists are the caller's: sorted(...) makes a new one", True)], 0)
    alpha, beta = _least(case)
    pair = flat(got["pair"])
    yield compare(f"{given}; what is returned", got["pair"], ["alpha", "beta"], [
        ("return two numbers, alpha and beta", True)]) if len(pair) != 2 else None
    shown = pair
    if all(isinstance(part, (int, float)) for part in pair):
        shown = [pair[0] * MICRO, pair[1] * PICO]
    ends = _line(case, min(range(len(sizes)), key=sizes.__getitem__),
                 max(range(len(sizes)), key=sizes.__getitem__))
    first = _line(case, 0, len(sizes) - 1)
    rates = [t / s for s, t in zip(sizes, seconds)]

    def units(a, b):
        return [a * MICRO, b * PICO]
    yield compare(
        f"{given}; alpha in microseconds, beta in picoseconds a byte", shown,
        units(alpha, beta), [
            ("alpha comes first, then beta", units(beta, alpha)),
            ("beta is the seconds of a byte: this is a bandwidth, bytes in a second",
             units(alpha, 1 / beta)),
            ("every measurement counts by its relative error: here the largest size "
             "decides almost alone, since its seconds are the most",
             units(*_least(case, 0))),
            ("the error is divided by the seconds before it is squared: w = 1 / "
             "seconds for numpy's polyfit, which squares it", units(*_least(case, 1))),
            ("the error is divided by the seconds once, not twice: numpy's polyfit "
             "squares its w", units(*_least(case, 4))),
            ("a size may be there twice, and both measurements count: a dict keeps one",
             units(*_least(_once(case)))),
            ("a size belongs to the seconds beside it: sort them together, or not",
             any(_is(shown, units(*_least({"sizes": s, "seconds": t})))
                 for s, t in ((sorted(sizes), seconds),
                              (sorted(sizes), sorted(seconds))))),
            ("two measurements decide here, the smallest and the largest: all count",
             units(*ends) if ends else False),
            ("two measurements decide here, the first and the last: all count",
             units(*first) if first else False),
            ("the seconds of the smallest size are no alpha: its bytes are in them",
             _is(shown[:1], [min(seconds) * MICRO])),
            ("this beta is the mean of seconds / size: alpha is in each of them",
             _is(shown[1:], [sum(rates) / len(rates) * PICO])),
            ("sizes are bytes: no factor of 8", _is(shown[1:], [beta * PICO / 8])
             or _is(shown[1:], [beta * PICO * 8])),
            ("alpha is in seconds, and so are beta's: no factor of 1000",
             any(_is(shown[:1], [alpha * MICRO * 1000 ** k]) for k in (1, 2))),
            ("the intercept is left out: a message without bytes costs alpha",
             _is(shown[:1], [0]))], NEAR)


def _line(case, i, j):
    s, t = case["sizes"], case["seconds"]
    if s[i] == s[j]:
        return None
    beta = (t[j] - t[i]) / (s[j] - s[i])
    return t[i] - beta * s[i], beta


def _is(got, wanted):
    return len(got) == len(wanted) and all(
        isinstance(g, (int, float)) and abs(g - w) <= NEAR * abs(w)
        for g, w in zip(got, wanted))


def draw_prices(random):
    """Draw a link, and for each way world sizes and tensors."""
    for _ in range(3):
        asked = []
        for way in WAYS:
            counts = [1, 2, 4, 2 ** random.randint(3, 12)]
            if way != "halving-doubling":
                counts += [3, random.randint(5, 7), random.randint(9, 4000)]
            for count in counts:
                asked += [[way, count, 4 * random.randint(10 ** 4, 10 ** 9) + 4],
                          [way, count, 4 * random.randint(1, 50)]]
            asked += [[way, counts[-1], 0],
                      [way, 4, 4 * (4 * random.randint(1, 99) + 1)]]
        yield {"alpha": random.uniform(2e-6, 20e-6),
               "beta": random.uniform(2e-12, 9e-10), "asked": asked}


def judge_prices(case, got):
    """Compare the seconds of each way, in microseconds."""
    alpha, beta = case["alpha"], case["beta"]
    for way in WAYS:
        places = [i for i, (other, *_) in enumerate(case["asked"]) if other == way]
        asked = [case["asked"][i][1:] for i in places]
        shown = [_micro(number(got[i])) for i in places]

        def priced(steps, row, a=alpha, b=beta, asked=asked):
            """Return prices: steps(N) alphas, row(N, numbers) numbers of 4 bytes."""
            return [MICRO * (steps(n) * a + 4 * row(n, size // 4) * b)
                    for n, size in asked]

        def steps(n, way=way):
            return 2 * len(_messages(way, n, 0))

        def row(n, numbers, way=way):
            return 2 * sum(_messages(way, n, numbers))
        right = priced(steps, row)
        given = (f"alpha {alpha:.4g} s, beta {beta:.4g} s a byte, way {way!r}, "
                 f"(world_size, size) {', '.join(f'({n}, {s})' for n, s in asked)}; "
                 "microseconds")
        yield compare(given, shown, right, [
            *((text, priced(*counts)) for text, counts in _mistakes(way, steps, row)),
            ("alpha and beta have changed places", priced(steps, row, beta, alpha)),
            ("beta is the seconds of a byte: multiply by it",
             priced(steps, row, alpha, 1 / beta)),
            ("sizes are bytes: no factor of 8", priced(steps, row, alpha, 8 * beta)),
            ("beta is for a byte, and a number has 4 of them",
             priced(steps, row, alpha, beta / 4)),
            ("`size` is in bytes already: no factor of 4",
             priced(steps, row, alpha, 4 * beta)),
            ("alpha is paid in each step, not once",
             priced(lambda n: n > 1, row)),
            ("alpha is left out", priced(steps, row, 0)),
            ("the bytes are left out", priced(steps, row, alpha, 0)),
            ("seconds are wanted, not milliseconds", [1e3 * x for x in right]),
            ("seconds are wanted, not microseconds", [1e6 * x for x in right]),
            ("one rank sends nothing: 0", any(
                n == 1 and x != 0 for (n, _), x in zip(asked, shown))),
            ("an empty tensor is sent like any other: its messages cost alpha",
             any(s == 0 and x == 0 for (_, s), x in zip(asked, shown)))])


def _messages(way, n, numbers):
    """Return the numbers in the longest message of each step of one half."""
    if way == "halving-doubling":
        return [_up(numbers, 2 ** i) for i in range(1, _log(n) + 1)]
    longest = _up(numbers, n) if way == "ring" else numbers
    return [longest] * (_log(n) if way == "tree" else n - 1)


def _micro(value):
    return value * MICRO if type(value) in (int, float) else value


def _up(n, d):
    return -(-n // d)


def _log(n):
    return (n - 1).bit_length()


def _mistakes(way, steps, row):
    """Yield (what it looks like, (steps, numbers in a row))."""
    yield ("only one half is priced: sums come in, and go out again",
           (lambda n: steps(n) / 2, lambda n, m: row(n, m) / 2))
    if way == "star":
        yield ("rank 0 has one wire: one message after another comes in, N - 1 of them",
               (lambda n: 2 * (n > 1), lambda n, m: 2 * m * (n > 1)))
        for least in (0, 1):  # with a case of its own for one rank, or without
            yield "rank 0 sends itself nothing: N - 1, not N", (
                lambda n, least=least: 2 * n * (n > least),
                lambda n, m, least=least: 2 * n * m * (n > least))
    if way == "ring":
        for least in (0, 1):
            yield "a ring has 2 (N - 1) steps, not 2 N", (
                lambda n, least=least: 2 * n * (n > least),
                lambda n, m, least=least: 2 * n * _up(m, n) * (n > least))
        yield ("a chunk has whole numbers: some have one more, and each step waits for "
               "the longest", (steps, lambda n, m: 2 * (n - 1) * m / n))
        yield ("some chunks have one number more: round up, not down",
               (steps, lambda n, m: 2 * (n - 1) * (m // n)))
        yield ("round up to whole numbers, of 4 bytes, not to whole bytes",
               (steps, lambda n, m: 2 * (n - 1) * _up(4 * m, n) / 4))
        yield ("a message of the ring is a chunk, not the whole tensor",
               (steps, lambda n, m: 2 * (n - 1) * m))
    if way == "tree":
        yield ("the levels of a tree are whole: ceil(log2 N)",
               (lambda n: 2 * log2(n), lambda n, m: 2 * log2(n) * m))
        yield ("with 5 ranks a tree has 3 levels: round log2 N up, not down",
               (lambda n: 2 * (n.bit_length() - 1),
                lambda n, m: 2 * (n.bit_length() - 1) * m))
        yield ("a message of the tree is the whole tensor, not a chunk",
               (steps, lambda n, m: 2 * _log(n) * _up(m, n)))
        yield "a tree has as many steps as levels, not as ranks", (
            lambda n: 2 * (n - 1), lambda n, m: 2 * (n - 1) * m)
    if way == "halving-doubling":
        yield ("each step halves what is sent: the whole tensor is never sent",
               (steps, lambda n, m: 2 * _log(n) * m))
        yield ("of an odd number, one half is larger: round up, then halve that",
               (steps, lambda n, m: 2 * m * (n - 1) / n))
        yield ("the first message is a half, not the whole",
               (steps, lambda n, m: 2 * sum(_up(m, 2 ** i) for i in range(_log(n)))))
        yield ("round up, not down: the larger half is waited for",
               (steps, lambda n, m: 2 * sum(m // 2 ** (i + 1) for i in range(_log(n)))))
        yield ("every message has a chunk here: halves come first, then quarters",
               (steps, lambda n, m: 2 * _log(n) * _up(m, n)))
