"""What to say of an answer that is no number at all.

    number    a number, also from a tensor or a list that holds just one
    compare   `differ`, with a plain sentence for None, texts, nan and other things
"""

import math

from manual_dp.school.exercise import differ, flat


def number(value):
    """Return the only element of `value` if it is a list of one, else `value`."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def compare(given, got, wanted, hints=(), tolerance=1e-9):
    """Return None or the message; what is no number is told first."""
    return differ(given, got, wanted, [*_formless(got), *hints], tolerance)


def _formless(got):
    """Yield hints for what cannot be compared."""
    parts = flat(got)
    texts = [part for part in parts if isinstance(part, str)]
    floats = [part for part in parts if isinstance(part, float)]
    yield ("nothing is returned: print shows a result, return hands it on",
           None in parts)
    yield (f"{texts[0]} is no number" if texts else "", bool(texts))
    yield ("a dict is no number", any(isinstance(part, dict) for part in parts))
    yield ("True and False are no numbers",
           any(isinstance(part, bool) for part in parts))
    yield ("nan is no number: what was divided by 0, or subtracted from infinity?",
           any(map(math.isnan, floats)))
    yield ("this is infinite: what was divided by 0?", any(map(math.isinf, floats)))
