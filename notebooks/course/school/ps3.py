"""Problem set 3, what more devices change: batch, schedule, warm-up, score."""

import copy
import math
from itertools import product
from statistics import fmean

import torch

from course.school.checks import about, close, exercise, numbers, remember, so_many
from course.school.draws import forms, tensors

KEYS = ["batch_size", "lr", "rows", "steps"]
FACTORS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
START = 0.1  # of the full rate, where a warm-up begins


@exercise("ps3/plan", points=3)
def plan(random, plan):
    """Ask for both ways: with minibatches that are all full, and that are not."""
    sizes = [
        (3, 64),
        (2, 2 * random.randint(4, 20) + 1),
        (1, random.randint(8, 40)),
        (4, 4 * random.randint(2, 10) + 1),
        (4, 5),
        (4, 3),
    ]
    for k, b in sizes:
        for keep in ("batch", "shard"):
            # all minibatches are full, or one device's would be, or there is a rest
            rest = {3: 0, 64: b}.get(b, random.randint(1, b * k - 1))
            n = b * k * random.randint(3, 30) + rest
            lr = round(random.uniform(0.01, 0.5), 4)
            got = numbers(plan(n, b, k, lr, keep))
            say = about(
                f"{n} examples, batch_size {b} and lr {lr} on one device; "
                f"{so_many(k, 'device')}, keep={keep!r}"
            )
            if not isinstance(got, dict) or sorted(got) != KEYS:
                yield say("the plan", got, f"a dict with the keys {', '.join(KEYS)}")
            stays, size = keep == "batch", -(-b // k)
            cut = [max(0, min(size, b - rank * size)) for rank in range(k)]
            right, other = (cut, [b] * k) if stays else ([b] * k, cut)
            floor = stays and [b // k] * k
            yield say(
                "rows",
                got["rows"],
                right,
                {
                    "batch_size // world_size loses rows: 64 over 3 would be 63": floor,
                    "keep='batch' shares batch_size out, keep='shard' gives each so "
                    "many": other,
                    "cut them as split_batch does: shards of ceil(batch_size / "
                    "world_size) rows until they run out, then empty ones": stays,
                },
            )
            whole = b if stays else k * b
            yield say("batch_size", got["batch_size"], whole)
            yield say(
                "lr",
                got["lr"],
                lr if stays else k * lr,
                {
                    "the minibatch is the one of a single device, so is its mean "
                    "gradient: leave the rate": stays,
                    "one step takes the place of world_size steps: the linear rule "
                    "multiplies the rate": lr,
                    "the square root is a rule for Adam; this is SGD": lr * k**0.5,
                },
                1e-6,  # it may be a float32
            )
            as_alone = not stays and -(-n // b)
            yield say(
                "steps",
                got["steps"],
                -(-n // whole),
                {
                    "the minibatch is larger now: fewer steps": as_alone,
                    "the last minibatch may be short, and is a step too": n // whole,
                },
            )


@exercise(
    "ps3/translate",
    points=4,
    cases=[
        (1000, 64, 192),  # first a short last minibatch: it shows plain division
        (1200, 100, 300),
        (1438, 64, 256),
        (1000, 256, 64),
        (1000, 256, 192),
        (50, 20, 80),
    ],
)
def translate(random, translate, *, examples, before, after):
    """Ask for milestones at an epoch's start and end, and for two close together."""
    old, new = -(-examples // before), -(-examples // after)
    first, second, third = sorted(random.sample(range(2, 40), 3))
    places = [(0, 0), (first, 0), (second, 1), (second, 2), (second, old - 1)]
    places.append((third, random.randrange(old)))
    steps = {epoch * old + rest for epoch, rest in places if rest < old}
    milestones = list(zip(sorted(steps), FACTORS))
    say = about(
        f"milestones {milestones}, {examples} examples; {before} rows in a minibatch "
        f"before, {after} after"
    )
    handed = list(milestones)
    same = remember(milestones=handed)
    got = numbers(translate(handed, examples, before, after))

    def move(place, **kwargs):
        return list({place(step, **kwargs): f for step, f in milestones}.items())

    def right(step, rounded=math.ceil, old=old, new=new):
        epochs, rest = divmod(step, old)
        return epochs * new + rounded(rest * before / after)

    def by_seen(step, rounded):  # the new run's short minibatches taken for full ones
        return rounded((step // old * examples + step % old * before) / after)

    def by_steps(step, rounded):  # the old run's
        epochs, left = divmod(step * before, examples)
        return epochs * new + rounded(left / after)

    def divided(step, rounded):
        return rounded(step * before / after)

    def without_rest(step, rounded):
        return right(step, rounded, examples // before, examples // after)

    def any_of(places, ways):
        for place, way in product(places, ways):
            both = [(place(step, way), factor) for step, factor in milestones]
            if close(got, both) or close(got, move(place, rounded=way)):
                return True
        return False

    pairs = [(right(step), factor) for step, factor in milestones]
    yield say(
        "the new milestones",
        got,
        move(right),
        {
            "a list of pairs is asked, as the old milestones are: list() makes one, of "
            "a dict's items() or of a generator": not isinstance(got, list),
            "these steps are the old ones; the new minibatches have other sizes, so "
            "the same step comes after other examples": milestones,
            "two milestones came to one step: the later one counts, the earlier one "
            "goes": pairs,
            "the rate may not change early: where the new step does not begin at the "
            "same example, take the next one": any_of([right], [math.floor, round]),
            "compare with the examples seen before the new step, not after it": move(
                lambda step: max(0, right(step) - 1)
            ),
            "an epoch's last minibatch may be short, and is a step of its own: count "
            "whole epochs first, then the steps since the last of them": any_of(
                [by_seen, by_steps, divided, without_rest],
                [math.ceil, math.floor, round],
            ),
            "the earlier of two milestones at one step stayed; the later one "
            "counts": list(dict(pairs[::-1]).items())[::-1],
            "the factors stay: they are shares of the full rate, and only that one "
            "depends on the minibatch": [
                (step, factor * after / before) for step, factor in move(right)
            ],
        },
    )
    yield from same(say)


@exercise(
    "ps3/warmup",
    points=4,
    cases=[
        # of each run: base_lr, devices, warm-up in minibatches of one device
        [(0.1, 3, 36), (0.1, 2, 36), (0.1, 5, 36)],
        [(0.05, 2, 6), (0.05, 4, 6)],
        [(0.08, 1, 9), (0.08, 3, 9), (0.08, 2, 9)],
        [(0.1, 4, 0), (0.1, 2, 0)],
        # the first run has passed its warm-up, the second has a longer one
        [(0.1, 2, 3), (0.1, 2, 60)],
        [(0.1, 2, 0), (0.1, 2, 40)],
        [(0.06, 2, 40), (0.03, 4, 60)],
    ],
)
def warmup(random, Warmup, *, settings):
    """Let a run be stopped and resumed with other settings, perhaps twice."""
    rows, short = random.randint(8, 32), random.randint(1, 7)
    runs = []  # (base_lr, devices, warm-up, the rows of each step)
    for base_lr, k, full in settings:
        runs.append((base_lr, k, full * rows, [k * rows, k * rows, short, k * rows]))
    state = None
    for now, (base_lr, k, w, sizes) in enumerate(runs):
        run = Warmup(base_lr, k, w)
        given = f"base_lr {base_lr}, {so_many(k, 'device')}, warmup {w}"
        loaded = copy.deepcopy(state)
        same = remember(loaded_state=loaded)
        if now:
            run.load_state_dict(loaded)
            seen = sum(sum(sizes) for *_, sizes in runs[:now])
            given += f", resumed after {seen} examples"
        say = about(f"{given}; steps of {', '.join(map(str, sizes))} rows")
        yield _rates(say, [numbers(run.step(size)) for size in sizes], runs, now)
        state = run.state_dict()
        if not isinstance(state, dict):
            yield say("state_dict()", state, "a dict")
        saved = copy.deepcopy(state)
        run.step(k * rows)  # what a run does after its last checkpoint is lost
        yield from same(say)
        yield say(
            "what state_dict() returned, after one more step",
            state,
            numbers(saved),
            {
                "the dict goes on with the run: return a new one, with the numbers of "
                "now": True
            },
        )
        state = saved
    yield about(f"base_lr {base_lr}, {so_many(k, 'device')}, warmup {w}")(
        "the first rate of a new Warmup, made after others had counted",
        numbers(Warmup(base_lr, k, w).step(sizes[0])),
        k * base_lr * (START if w else 1),
        {
            "a new run begins at 0 examples: is something counted in the class, or in "
            "a global variable, which all of them share?": True
        },
        1e-6,
    )


def _rates(say, got, runs, now):
    """Compare the rates of the run number `now`."""
    base_lr, k, w, sizes = runs[now]
    earlier = [size for *_, sizes in runs[:now] for size in sizes]

    before = sum(earlier)  # examples
    mine = base_lr, k, w

    def ramp(start=START, settings=mine, end=1, seen=before, early=0, times=1):
        rates, (base_lr, k, w) = [], settings
        for size in sizes:
            way = (seen + early * size) / w if w else 1
            rates.append(k * base_lr * (start + (1 - start) * min(end, way)))
            seen += size * times
        return rates

    by_steps = []
    for rows in (sizes, [sizes[0]] * len(sizes)):
        steps = range(len(earlier), len(earlier) + len(sizes))
        by_steps.append([ramp(seen=i * n)[0] for i, n in zip(steps, rows)])
    stopped = clamped = 0  # what is seen, if nothing is counted after the warm-up
    for _, _, full, sizes_then in runs[:now]:
        for size in sizes_then:
            stopped += size if stopped < full else 0
            clamped = min(clamped + size, full)
    *its, _ = runs[now - 1]  # the old run's settings, of which all or one came back
    old = [its, (base_lr, its[1], w), (base_lr, k, its[2])]
    return say(
        "the rates",
        got,
        ramp(),
        {
            "go on counting after the warm-up: a resumed run may have a longer "
            "one": any(_near(got, ramp(seen=seen)) for seen in (stopped, clamped)),
            "the warm-up begins again: load_state_dict has to bring back how many "
            "examples were seen": now > 0 and ramp(seen=0),
            "the old run's settings came back with its state; those of the new object "
            "count": now > 0 and any(_near(got, ramp(settings=one)) for one in old),
            "this counts steps, and a step does not always have as many rows: count "
            "examples": any(_near(got, rates) for rates in by_steps),
            "this is one step ahead: what counts is how many examples were seen "
            "before the step": ramp(early=1),
            "`rows` are those of all devices together: here they count once for "
            "each device": ramp(times=k),
            "there is no warm-up": ramp(start=1),
            "the warm-up begins at a tenth of the full rate; this begins at 0": ramp(0),
            "the warm-up begins at a tenth of the full rate; base_lr is another share "
            "of it for each number of devices": ramp(1 / k),
            "it goes on growing after the warm-up": ramp(end=math.inf),
        },
        1e-6,
    )


@exercise(
    "ps3/f1",
    points=4,
    cases=[
        # rows of each rank, classes, how many of the classes are odd: see _draw
        ((9, 14), 3, 0),
        ((8, 11, 0), 6, 3),
        ((12, 12, 12, 12), 7, 3),
        ((10,), 5, 3),
        ((0, 30), 6, 3),
        # more than 255 rows of a class: on a rank, and only on all ranks together
        ((1200, 20), 4, 0),
        ((200, 200, 200, 200, 225), 4, 0),
    ],
)
def f1(random, count, f1, *, sizes, classes, odd):
    """Let each rank count, sum the counts, ask for the score."""
    guesses, labels = _draw(random, sum(sizes), classes, odd)
    shards = list(zip(guesses.split(sizes), labels.split(sizes)))
    k = len(sizes)
    given = f"{so_many(k, 'rank')} with {', '.join(map(str, sizes))} rows"
    if sum(sizes) < 100:  # else too many to read
        given += f", guesses {guesses.tolist()}, labels {labels.tolist()}"
    say = about(f"{given}; {classes} classes")
    counts = []
    for one, other in shards:
        same = remember(guesses=one, labels=other)
        counts.append(count(one, other, classes))
        yield from same(say)
    kinds = forms(tensors(counts, k, "on all ranks together, count"))
    rows = [n in part.shape for n, part in zip(sizes, counts)]
    yield say(
        "what count returned on each rank",
        kinds,
        [kinds[-1]] * k,
        {
            "these are rows; what is summed over ranks must be counts": all(rows),
            "only tensors of one shape and dtype can be summed over ranks: "
            "torch.bincount needs minlength=classes, and a rank without rows counts "
            "zeros": True,
        },
    )
    counts = torch.stack([part.detach() for part in counts])
    total = counts.sum(0, dtype=counts.dtype)  # as an all-reduce sums
    same = remember(counts=total)
    got = numbers(f1(total))
    yield _score(say, got, guesses, labels, classes, sizes)
    yield from same(say)


def _draw(random, rows, classes, odd):
    """Draw guesses and labels. Of the last three classes, if they are odd, one is
    guessed and no row's, one is a row's and never guessed, and one is nowhere.
    """
    plain = list(range(classes - odd))
    labels = plain + random.choices(plain, k=rows - len(plain))
    guesses = labels
    # where a class is guessed as often as it is there, its precision is its recall
    while any(guesses.count(one) == labels.count(one) for one in plain):
        guesses = [
            label if i == 0 or random.random() < 0.5 else random.choice(plain)
            for i, label in enumerate(labels)
        ]
    if odd:
        guesses[-1], labels[-2] = classes - 3, classes - 2
    order = random.sample(range(rows), rows)
    return (torch.tensor([part[i] for i in order]) for part in (guesses, labels))


def _share(part, whole):
    return part / whole if whole else None


def _mean(values):
    """Return the mean of those that are there."""
    return fmean(value for value in values if value is not None)


def _of_class(guesses, labels, classes):
    """Return hits, guesses and rows of each class."""
    found = []
    for one in range(classes):
        hits = int(((guesses == one) & (labels == one)).sum())
        found.append((hits, int((guesses == one).sum()), int((labels == one).sum())))
    return found


def _f1(guesses, labels, classes):
    """Return the score, None without rows."""
    found = _of_class(guesses, labels, classes)
    return _mean([_share(2 * h, g + n) for h, g, n in found]) if len(labels) else None


def _score(say, got, guesses, labels, classes, sizes):
    found, rows = _of_class(guesses, labels, classes), len(labels)
    of_ranks = [
        _f1(*shard, classes) for shard in zip(guesses.split(sizes), labels.split(sizes))
    ]
    filled = [value or 0 for value in of_ranks]
    scores = [_share(2 * h, g + n) for h, g, n in found]
    there = [(h, g, n) for h, g, n in found if g + n]
    means = [_mean(of_ranks), fmean(filled)]
    means.append(sum(n * value for n, value in zip(sizes, filled)) / rows)
    some = [  # of the classes that are guessed, that rows have, both, that are hit
        _mean([value for value, (h, g, n) in zip(scores, found) if kept(h, g, n)])
        for kept in (
            lambda h, g, n: g,
            lambda h, g, n: n,
            lambda h, g, n: g and n,
            lambda h, g, n: h,
        )
    ]
    halves = []  # the means of precision and of recall
    for column in (1, 2):
        shares = [_share(part[0], part[column]) for part in there]
        halves.append([_mean(shares), fmean(share or 0 for share in shares)])
    of_halves = [2 * p * r / (p + r) for p, r in zip(*halves)]

    def any_of(values):
        return any(_near(got, value) for value in values)

    return say(
        "the score",
        got,
        _mean(scores),
        {
            "with fewer rows this was right: are the counts larger than their dtype "
            "can hold? uint8 ends at 255": rows > 1000,
            "a class that is neither guessed nor any row's is 0 / 0: leave it out": got
            != got,
            "this is the accuracy; every class counts as much as every other": sum(
                h for h, _, _ in found
            )
            / rows,
            "this is a mean of the ranks' scores; F1 is no mean over rows or ranks: "
            "sum counts, then divide": any_of(means),
            "a class that is neither guessed nor any row's counts as 0 here: leave it "
            "out": sum(value or 0 for value in scores) / classes,
            "only a class that is neither guessed nor any row's is left out; one that "
            "is never hit has an F1 of 0, and counts": any_of(some),
            "this is the F1 of two means; take the F1 of each class, then the "
            "mean": any_of(of_halves),
            "this is precision or recall alone": any_of(sum(halves, [])),
            "each class counts once, however many rows it has": sum(
                n * (value or 0) for value, (_, _, n) in zip(scores, found)
            )
            / rows,
        },
        1e-6,
    )


def _near(got, wanted):
    return close(got, wanted, 1e-6)  # it may be in float32
