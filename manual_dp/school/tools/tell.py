"""How judges tell learners what is not right. Not for answers.

    about     compare numbers in tensors, with a word on what was given
    unequal   are the ranks' numbers not all the same?
"""

from manual_dp.school.exercise import close, differ
from manual_dp.school.tools.plain import numbers


def about(given):
    """Return `differ` for what was given so; it takes tensors, in lists too, as truth.

    Its first argument says which numbers are compared.
    """
    def say(what, got, wanted, hints=(), tolerance=1e-9):
        hints = [(text, numbers(value)) for text, value in hints]
        return differ(f"{given}; {what}", got, numbers(wanted), hints, tolerance)
    return say


def unequal(values):
    """Return whether some of the values, one a rank, is not like the first."""
    return any(not close(value, values[0]) for value in values)
