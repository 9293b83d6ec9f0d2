"""The best number of ranks: a step's seconds, strong and weak scaling, a straggler.

    draw      jobs
    judge     the seconds of steps, then the best number of ranks, then the first slower

The arguments of the functions below are mistakes.
"""

from types import SimpleNamespace

from manual_dp.school.exercise import differ
from manual_dp.school.ps9.form import compare, number

MILLI = 1e3
CLEAR = 1e-6  # two steps differ by this part at least, or not at all


def draw(random):
    """Draw jobs: links that cost nothing, little or much, slow ranks, one, few rows."""
    for kind in ("bumps", "free", "slow", "one", "links", "few", "dear", "slowest"):
        while True:
            case = _drawn(random, kind)
            if _clear(case, kind):
                break
        slower = first_slower(SimpleNamespace(**case["job"]), case["most"])
        # `most` itself may be the first slower one
        yield case | {"searched": [case["most"], slower or case["most"]]}


def _drawn(random, kind):
    job = {"rows": random.randint(20, 90), "row": random.uniform(2e-3, 9e-3),
           "serial": random.uniform(2e-3, 2e-2), "alpha": random.uniform(1e-5, 2e-4),
           "beta": random.uniform(1e-10, 1e-9), "slow": 1,
           "size": 4 * random.randint(10 ** 6, 10 ** 7)}
    most = random.randint(12, 40)
    if kind == "bumps":
        job.update(rows=random.randint(10, 14), alpha=random.uniform(1e-4, 3e-4))
        most = job["rows"] + random.randint(1, 9)
    if kind == "free":
        job.update(rows=10, alpha=0, beta=0)
        most = 9
    if kind == "slow":
        job["slow"] = random.choice([1.5, 2.5, 3])
    if kind == "one":
        most = 1
    if kind == "few":
        job.update(rows=3, slow=random.choice([1.25, 2]))
    if kind == "dear":  # one message takes longer than the step of one rank
        job["alpha"] = random.uniform(2, 4) * (job["serial"] + job["rows"] * job["row"])
    if kind == "slowest":  # three ranks get through fewer rows than one
        job["slow"], most = random.choice([4, 5]), 3
        job["serial"] /= 100
    return {"job": job, "most": most, "asked": [
        [n, weak] for n in (1, 2, 3, random.randint(4, 7), random.randint(8, 200))
        for weak in (False, True)]}


def _clear(case, kind):
    job, counts = SimpleNamespace(**case["job"]), range(1, case["most"] + 1)
    for weak in (False, True):
        steps = [step(job, n, weak) for n in counts]
        rates = sorted(rate(job, n, weak) for n in counts)
        for values in (steps, sorted(steps), rates):
            if any(0 < abs(b / a - 1) < CLEAR for a, b in zip(values, values[1:])):
                return False
    if kind == "bumps":  # the step gets longer before it is the shortest
        slower = first_slower(job, case["most"])
        return slower is not None and slower < best(job, case["most"], False) < case[
            "most"]
    return True


def step(job, n, weak, shard=None, many=None, serial=None, slow=None, swap=False,
         rounds=None, chunk=None):
    """Return the seconds of a step."""
    rows = job.rows if weak else -(-job.rows // n)
    rows = shard(job, n) if shard else rows
    most = job.slow if n > 1 else 1
    most = slow(job, n) if slow else most
    rest = job.serial if serial is None else serial(job, n)
    alpha, beta = (job.beta, job.alpha) if swap else (job.alpha, job.beta)
    count = 2 * (n - 1) if rounds is None else rounds(n)
    piece = job.size / n if chunk is None else chunk(job, n)
    sent = count * (alpha + beta * piece) if many is None else many(job, n)
    return rest + most * rows * job.row + sent


def rate(job, n, weak):
    """Return the rows that all ranks get through in a second."""
    return job.rows * (n if weak else 1) / step(job, n, weak)


def best(job, most, weak):
    """Return the smallest number of ranks with the most rows a second."""
    return max(range(1, most + 1), key=lambda n: (rate(job, n, weak), -n))


def first_slower(job, most):
    """Return the first number of ranks with a longer step than one rank less."""
    return next((n for n in range(2, most + 1)
                 if step(job, n, False) > step(job, n - 1, False)), None)


def judge(case, got):
    """Compare the seconds of steps, then both answers about them."""
    job, most = SimpleNamespace(**case["job"]), case["most"]
    given = ", ".join(f"{name} {value:.5g}" for name, value in case["job"].items())
    yield _judge_steps(case, given, job, got)
    for weak, found in zip((False, True), map(number, got["best"])):
        yield _judge_best(f"{given}; best_world_size(job, {most}, weak={weak})", job,
                          most, weak, found)
    for most, found in zip(case["searched"], map(number, got["slower"])):
        yield _judge_slower(f"{given}; first_slower(job, {most})", job, most, found)


def _judge_steps(case, given, job, got):
    shown = [_milli(number(value)) for value in got["steps"]]

    def steps(**how):
        return [MILLI * step(job, n, weak, **how) for n, weak in case["asked"]]
    asked = ", ".join(f"({n}, {weak})" for n, weak in case["asked"])
    return compare(
        f"{given}; step_seconds for (world_size, weak) = {asked}; milliseconds", shown,
        steps(), [
            ("weak and strong have changed places: weak scaling keeps the rows of each "
             "rank", [MILLI * step(job, n, not weak) for n, weak in case["asked"]]),
            ("strong scaling keeps the minibatch: each rank has a part of it",
             steps(shard=lambda j, n: j.rows)),
            ("weak scaling keeps the rows of each rank: job.rows",
             steps(shard=lambda j, n: -(-j.rows // n))),
            ("rows are whole: the largest shard has rows / world_size, rounded up",
             [MILLI * step(job, n, weak, shard=None if weak else
                           lambda j, n: j.rows / n) for n, weak in case["asked"]]),
            ("round the rows up, not down: all wait for the largest shard",
             [MILLI * step(job, n, weak, shard=None if weak else
                           lambda j, n: j.rows // n) for n, weak in case["asked"]]),
            ("the serial part is left out", steps(serial=lambda j, n: 0)),
            ("the serial part takes as long on each rank: it is not divided",
             steps(serial=lambda j, n: j.serial / n)),
            ("the slow rank is slow for its rows: its serial part takes as long as the "
             "others'", steps(serial=lambda j, n: j.serial * (j.slow if n > 1 else 1))),
            ("one rank alone is not the slow one", steps(slow=lambda j, n: j.slow)),
            ("all ranks wait for the slow one", steps(slow=lambda j, n: 1)),
            ("all wait for the slowest rank, not for the mean",
             steps(slow=lambda j, n: (n - 1 + j.slow) / n if n > 1 else 1)),
            ("alpha and beta have changed places", steps(swap=True)),
            ("a ring has 2 (N - 1) steps, not 2 N", steps(rounds=lambda n: 2 * n)),
            ("a ring has N - 1 steps in and N - 1 out", steps(rounds=lambda n: n - 1)),
            ("a message of the ring is a chunk: size / world_size bytes",
             steps(chunk=lambda j, n: j.size)),
            ("the all-reduce is left out", steps(many=lambda j, n: 0)),
            ("alpha is paid in each of the 2 (N - 1) steps",
             steps(many=lambda j, n: (n > 1) * j.alpha
                   + 2 * (n - 1) * j.beta * j.size / n)),
            ("beta is the seconds of a byte: multiply by it", steps(
                many=lambda j, n: 2 * (n - 1) * (j.alpha + (
                    j.size / n / j.beta if j.beta else 0)))),
            ("seconds are wanted, not milliseconds", [1e3 * x for x in steps()])])


def _judge_best(given, job, most, weak, got):
    wanted, counts = best(job, most, weak), range(1, most + 1)
    steps = {n: step(job, n, weak) for n in counts}
    slower = next((n for n in counts[1:] if steps[n] > steps[n - 1]), most + 1)
    rates = {n: rate(job, n, weak) for n in counts}
    fewer = next((n for n in counts[1:] if rates[n] < rates[n - 1]), most + 1)
    level = next((n for n in counts[1:] if rates[n] <= rates[n - 1]), most + 1)
    last = max(counts, key=lambda n: (rates[n], n))
    return compare(given, got, wanted, [
        ("the world size is wanted, not its seconds", steps[wanted]),
        ("the world size is wanted, not its rows a second", rates[wanted]),
        ("the last one is never tried: range(1, most + 1)",
         most > 1 and max(counts[:-1], key=lambda n: (rates[n], -n))),
        ("this is one too few: the first world size is 1, not 0", wanted - 1),
        (f"there are at most {most} ranks", isinstance(got, int) and got > most),
        ("of several that are equally good, the smallest is wanted",
         wanted != last and last),
        ("rows count that all ranks get through in a second: with weak scaling the "
         "minibatch grows", weak and min(counts, key=steps.get)),
        ("this is the first that is slower, not the best", slower),
        ("the search ends where a step gets longer: later ones may be shorter, since "
         "rows are whole", slower - 1 if not weak else False),
        ("the search ends where it gets no better: later ones may be",
         {fewer - 1, level - 1} >= {got} if isinstance(got, int) else False),
        ("the best efficiency is that of one rank: rows a second count here", 1),
        ("weak scaling is not always better with more ranks: look at all from 1 to "
         "`most`", weak and most),
        ("this is the worst", min(counts, key=rates.get)),
        ("more ranks are not always better", most)])


def _judge_slower(given, job, most, got):
    wanted, counts = first_slower(job, most), range(1, most + 1)
    steps = {n: step(job, n, False) for n in counts}
    ones = [n for n in counts if steps[n] > steps[1]]
    later = [n for n in counts[1:] if steps[n] > steps[n - 1]]
    hints = [
        ("`most` itself counts, too: range(2, most + 1)",
         got is None and wanted == most),
        ("there is such a number: look at all from 2 to `most`", got is None),
        ("None is wanted if there is no such number", wanted is None and got in (
            0, -1, most, most + 1, False)),
        ("a step that takes as long is not slower", next(
            (n for n in counts[1:] if steps[n] >= steps[n - 1]), False)),
        ("compare with one rank less, not with one rank", ones[0] if ones else False),
        ("this is the last one that is not slower: the first that is slower is wanted",
         wanted is not None and wanted - 1),
        ("this is the last, the first is wanted", later[-1] if later else False)]
    tell = differ if None in (got, wanted) else compare  # None may be right here
    return tell(given, got, wanted, hints)


def _milli(value):
    return value * MILLI if type(value) in (int, float) else value
