"""The machines of exercise 7.7: two programs with recorded timings, and a fake clock.

    RIGHT, BUGS   {what it is: function of a random generator}

Each draws {"a", "b", "speed", "tick"}. A program is {"seconds": of each of its calls,
"launch": how long a call takes to return if it only starts the work, else None}.
speed: factors by which the machine is slower at each call of either, in order.
tick: what the clock counts in. When calls run out, the last one repeats for ever. In
RIGHT b really is faster: a fifth or more. In BUGS it is as fast as a, or slower.
"""

CALLS = 600


def _program(random, seconds, noise=0.02, launch=None, first=(), every=()):
    """Draw a program: usual seconds, then what its first calls and every n-th take."""
    times = [seconds * (1 + random.uniform(-noise, noise)) for _ in range(CALLS)]
    times[:len(first)] = [seconds * factor for factor in first]
    for n, factor in every:
        for i in range(random.randrange(n), CALLS, n):
            times[i] *= factor
    return {"seconds": times, "launch": launch}


def _machine(a, b, speed=(1.0,), tick=1e-9):
    return {"a": a, "b": b, "speed": list(speed), "tick": tick}


def _pair(a, b, speed=(1.0,), tick=1e-9):
    """Return what draws a machine with programs of the options `a` and `b`."""
    return lambda random: _machine(_program(random, **a), _program(random, **b), speed,
                                   tick)


WARM = [60, 40, 20, 8, 3]
SLOWER = [1 + i / 100 for i in range(400)]
RIGHT = {
    "b takes four fifths": _pair({"seconds": 1e-2}, {"seconds": 8e-3}),
    "both only start their work, and b's is shorter": _pair(
        {"seconds": 1e-2, "launch": 1e-4}, {"seconds": 7e-3, "launch": 2e-4}),
    "b has first calls that are slow, then takes four fifths": _pair(
        {"seconds": 1e-2}, {"seconds": 8e-3, "first": WARM}),
    "b is interrupted now and then, and else takes two thirds": _pair(
        {"seconds": 1e-2}, {"seconds": 6.5e-3, "every": [(9, 20)]}),
    "b takes half, on a machine with much noise": _pair(
        {"seconds": 1e-2, "noise": 0.2}, {"seconds": 5e-3, "noise": 0.2}),
    "b takes two thirds, on a machine that gets slower": _pair(
        {"seconds": 1e-2}, {"seconds": 6.5e-3}, SLOWER),
    "b takes two thirds, and the clock is coarse": _pair(
        {"seconds": 3e-2}, {"seconds": 2e-2}, tick=1e-3),
}
BUGS = {
    "b only starts its work": _pair(
        {"seconds": 1e-2}, {"seconds": 1e-2, "launch": 1e-4}),
    "both only start their work, and b is quicker at starting": _pair(
        {"seconds": 1e-2, "launch": 4e-4}, {"seconds": 1e-2, "launch": 1e-4}),
    "a has slow first calls": _pair(
        {"seconds": 1e-2, "first": WARM}, {"seconds": 1e-2}),
    "the machine is slow at first": _pair(
        {"seconds": 1e-2}, {"seconds": 1e-2}, WARM),
    "a is interrupted now and then": _pair(
        {"seconds": 1e-2, "every": [(9, 20)]}, {"seconds": 1e-2}),
    "b was lucky now and then": _pair(
        {"seconds": 1e-2}, {"seconds": 1.1e-2, "every": [(9, 0.3)]}),
    "nothing but noise": _pair(
        {"seconds": 1e-2, "noise": 0.3}, {"seconds": 1e-2, "noise": 0.3}),
    "the machine gets faster while it is watched": _pair(
        {"seconds": 1e-2}, {"seconds": 1e-2}, SLOWER[::-1]),
    "b's first calls are the fast ones": _pair(
        {"seconds": 1e-2}, {"seconds": 1e-2, "first": [0.2] * 3}),
    "every second call of b leaves its work to the next": _pair(
        {"seconds": 1e-2}, {"seconds": 1.9e-2, "every": [(2, 0.1)]}),
    "b is slower": _pair({"seconds": 1e-2}, {"seconds": 1.2e-2}),
    "b is slower and only starts its work": _pair(
        {"seconds": 1e-2, "launch": 1e-3}, {"seconds": 1.3e-2, "launch": 1e-4}),
}
