"""The exercise of lesson 17: the speed-up by Amdahl's law.

    amdahl       run an answer
    EXERCISES    with what is drawn, and what is right
"""

from manual_dp.school.exercise import Exercise, differ
from manual_dp.school.tools.plain import plainly


def amdahl(case, amdahl):
    """Ask for the speed-up of some world sizes; a division by zero is an answer too."""
    def ask(world_size):
        try:
            return plainly(amdahl(case["serial"], world_size))
        except ZeroDivisionError:
            return "ZeroDivisionError"
    return [ask(world_size) for world_size in case["world_sizes"]]


def _draw_amdahl(random):
    for serial in (round(random.uniform(0.05, 0.4), 3), 0.5, 0.0, 1.0):
        yield {"serial": serial, "world_sizes": [1, 2, 4, random.randint(5, 1000)]}


def _judge_amdahl(case, got):
    s, sizes = case["serial"], case["world_sizes"]
    wanted = [1 / (s + (1 - s) / n) for n in sizes]
    yield differ(f"serial {s}, world_size {', '.join(map(str, sizes))}", got, wanted, [
        ("this is the time of a step, as a part of one device's: the speed-up is 1 "
         "divided by it", [1 / value for value in wanted]),
        ("the serial part is divided, too: it takes as long on any number of ranks",
         sizes),
        ("the parts have changed places: `serial` is the one that does not get shorter",
         [1 / (1 - s + s / n) for n in sizes]),
        ("this is the efficiency: the speed-up is not divided by the ranks once more",
         [value / n for value, n in zip(wanted, sizes)]),
        ("what is divided by the ranks is 1 - serial: the serial part counts once",
         [1 / (s + 1 / n) for n in sizes]),
        ("here the work grows with the ranks: Amdahl's law keeps it as it is",
         [s + (1 - s) * n for n in sizes]),
        ("with `serial` 0 nothing is left to divide by: the law has no such case",
         "ZeroDivisionError" in got),
        ("the number of ranks does not matter here: this is the limit for very many",
         [1 / s] * len(sizes) if s else False),
        ("this is a whole number: `//` and int() cut off the rest",
         [int(value) for value in wanted]),
        ("return the speed-up", [None] * len(sizes))])


EXERCISES = [Exercise("17/amdahl", 0, _draw_amdahl, _judge_amdahl)]
