"""Wrong answers by name, a file for each problem set, and the hint that each is given.

    apart    the cells and the hints
    begins   is this hint the one that was wanted?

ANSWERS in each file is {exercise: {mistake: (hint, cell)}}. A hint is how the one begins
that a learner is told, None if there is none; a set, where it depends on the numbers.
"""


def apart(answers):
    """Return the cells and the hints, each as {exercise: {mistake: ...}}."""
    return tuple({exercise: {mistake: pair[i] for mistake, pair in wrong.items()}
                  for exercise, wrong in answers.items()} for i in (1, 0))


def begins(hint, wanted):
    """Return whether the hint is the wanted one, or one of a set of them."""
    if isinstance(wanted, set):
        return any(begins(hint, one) for one in wanted)
    return hint == "" if wanted is None else hint.startswith(wanted)
