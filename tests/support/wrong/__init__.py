"""Wrong answers by name, a file for each problem set, and the hint that each is given.

    apart   the cells and the hints

ANSWERS in each file is {exercise: {mistake: (hint, cell)}}. A hint is how the one begins
that a learner is told, None if there is none; a set, where it depends on the numbers.
"""


def apart(answers):
    """Return the cells and the hints, each as {exercise: {mistake: ...}}."""
    return tuple({exercise: {mistake: pair[i] for mistake, pair in wrong.items()}
                  for exercise, wrong in answers.items()} for i in (1, 0))
