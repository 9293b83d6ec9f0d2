"""Buckets that are sent while backward runs: when the last one is there, which is best.

    draw      situations: ready times, sizes, a link and caps
    judge     first `finish`, then `best_cap`

The arguments of the functions below are mistakes.
"""

from manual_dp.school.exercise import close, differ
from manual_dp.school.ps9.form import compare, number

APART = 1e-4  # seconds between the best cap and the next, for other buckets


def draw(random):
    """Draw some situations; each of the first shows a mistake of MISTAKES."""
    several = [_showing(random, how) for _, how in MISTAKES]
    yield {"several": [*several, _one(random, 1), _one(random, 0)]}


def _showing(random, how):
    """Draw until this mistake leads to another cap."""
    while True:
        one = _one(random, random.randint(5, 9))
        if best(one, **how) != best(one):
            return one


def _one(random, count):
    """Draw until there are ties only between caps that make the same buckets."""
    while True:
        one = _drawn(random, count)
        if _clear(one):
            return one


def _drawn(random, count):
    ready = sorted(random.sample(range(1, 60), count))
    sizes = [random.randint(1, 60) for _ in range(count)]
    if count > 5:
        sizes[random.randrange(count)] = 150  # larger than most caps
    whole = sum(sizes)
    exact = [sum(sizes[i:i + 3]) for i in (0, 2, 5)]  # buckets that are just full
    caps = [cap for cap in exact if cap] + [25, 70, whole + 10, whole + 1]
    random.shuffle(caps)
    return {"ready": ready, "sizes": sizes, "caps": list(dict.fromkeys(caps)),
            "link": {"alpha": random.randint(2, 24) / 4,
                     "bandwidth": random.choice([4.0, 5.0, 8.0, 10.0])}}


def _clear(case):
    """Return whether equal times have equal buckets, and mistakes show."""
    times = {}
    for cap in case["caps"]:
        made = buckets(case["ready"], case["sizes"], cap)
        times.setdefault(finish(case, *zip(*made)) if made else 0, set()).add(
            tuple(made))
    ordered = sorted(times)
    apart = all(b - a > APART for a, b in zip(ordered, ordered[1:]))
    return apart and all(len(made) == 1 for made in times.values())


def buckets(ready, sizes, cap, strict=False, begun=False, over=False, drop=False):
    """Return [(ready, size)] of each bucket."""
    full, held = [], []
    for pair in zip(ready, sizes):
        much = sum(size for _, size in held) + (0 if over else pair[1])
        if held and (much >= cap if strict or over else much > cap):
            full.append(held)
            held = []
        held.append(pair)
    if held and not drop:
        full.append(held)
    return [(held[0 if begun else -1][0], sum(size for _, size in held))
            for held in full]


def finish(case, ready=(), sizes=(), queue=True, early=False, late=False, free=False,
           once=False, times=False, longest=False):
    """Return when the last of these buckets is there."""
    link, now = case["link"], 0
    begin = max(ready, default=0) if late else 0
    for place, (start, size) in enumerate(zip(ready, sizes)):
        took = (0 if free or once and place else link["alpha"]) + (
            size * link["bandwidth"] if times else size / link["bandwidth"])
        start = max(start, begin) * (not early)
        now = max(now, start) + took if queue else max(now, start + took)
        if longest:
            now = start + took
    return now


MISTAKES = [(text, how) for text, *hows in [
    ("the largest cap wins each time: is a bucket ready only with its last gradient, "
     "and is the last one sent, too, although it is not full?", {"choose": max}),
    ("of several caps with the same end, the largest is wanted", {"smallest": True},
     {"listed": 1}, {"listed": -1}),
    ("a bucket that holds just `cap` bytes is not too large", {"strict": True}),
    ("a bucket is closed before it would be larger than the cap, not after",
     {"over": True}),
    ("a bucket is ready when its last gradient is, not its first", {"begun": True}),
    ("the last bucket is sent, too, although it is not full", {"drop": True}),
    ("this is the latest end: the earliest is wanted", {"last": True}),
    ("the smallest buckets pay alpha most often", {"choose": min}),
] for how in hows]


def best(case, listed=0, smallest=False, last=False, choose=None, **how):
    """Return the cap with the earliest end."""
    caps = case["caps"][::listed or 1]

    def end(cap):
        made = buckets(case["ready"], case["sizes"], cap, **how)
        return finish(case, *zip(*made)) if made else 0
    if choose:
        return choose(caps)
    if smallest or listed:
        return min(caps, key=lambda cap: (end(cap), cap * smallest))
    return min(caps, key=lambda cap: (end(cap) * (-1 if last else 1), -cap))


def _caps(several, **how):
    """Return the best cap of each situation that has gradients."""
    return [best(one, **how) for one in several if one["ready"]]


def judge(case, got):
    """Compare when the gradients are there without buckets, then the caps."""
    several = case["several"]
    for one, found in zip(several, got, strict=True):
        yield from _judge_end(one, found)
    found = [number(one["cap"]) for one in got if one["ready"]]
    for one, cap in zip([one for one in several if one["ready"]], found, strict=True):
        yield _judge_cap(one, cap, found, several)


def _given(case):
    link = case["link"]
    return (f"ready {case['ready']}, sizes {case['sizes']}, alpha {link['alpha']}, "
            f"bandwidth {link['bandwidth']}")


def _judge_end(case, got):
    """Compare when the last has arrived, if each gradient is a bucket."""
    ready, sizes, given = case["ready"], case["sizes"], _given(case)
    for name in ("ready", "sizes", "caps", "link"):
        yield differ(f"{given}; {name} afterwards", got[name], case[name], [
            (f"{name} is the caller's: leave it as it is", True)])

    def end(**how):
        return finish(case, ready, sizes, **how)
    yield compare(f"{given}; finish", number(got["finish"]), end(), [
        ("buckets share the link: one is sent when the one before it has arrived",
         end(queue=False)),
        ("a bucket leaves when it is ready: it does not wait for the end of backward, "
         "nor for later buckets", end(late=True)),
        ("this is the time of the last bucket alone: it may have to wait for others",
         end(longest=True)),
        ("alpha is left out: each bucket costs it once", end(free=True)),
        ("alpha is paid for each bucket, not once in all", end(once=True)),
        ("alpha is paid for each bucket, not once in all",
         end(free=True) + case["link"]["alpha"]),
        ("bandwidth is bytes a second: divide by it", end(times=True)),
        ("this is when the last bucket is ready: it has to be sent, too",
         max(ready, default=0)),
        ("this is a wait: it counts from the start of backward",
         end() - max(ready, default=0)),
        ("a bucket is sent before it is ready: this is the sum of all sends",
         end(early=True)),
        ("without a bucket it is 0", not ready)])


def _judge_cap(case, got, found, several):
    """Compare a cap; whether it is a mistake shows in the caps of all situations."""
    caps, wanted = case["caps"], best(case)
    if close(got, wanted):
        return None
    made = buckets(case["ready"], case["sizes"], wanted)
    return compare(
        f"{_given(case)}; best_cap of {caps}; {wanted} makes buckets of "
        f"{[size for _, size in made]}", got, wanted, [
            *((text, close(found, _caps(several, **how))) for text, how in MISTAKES),
            ("this is when the last bucket arrives: the cap is wanted",
             finish(case, *zip(*made))),
            ("this is the place of the cap in the list", caps.index(wanted)),
            ("this is none of the caps", not any(close(got, cap) for cap in caps)),
            ("look at each cap: when does its last bucket arrive?", True)])
