"""Wrong answers, a file for each set: {exercise: (a right cell, its places, wrong ones)}.

A wrong answer is a right one with other words in some places, {place: words}; its name
is how the hint begins that a learner must be told.
"""

import re


def filled(cell, places, changes):
    """Return the cell with its places filled: by `changes`, or with the right words.

    A place may stand in the words for another one.
    """
    unknown = changes.keys() - places.keys()
    lost = [place for place in places
            if not re.search(rf"\b{place}\b", " ".join([cell, *places.values()]))]
    if unknown or lost:
        raise ValueError(f"no such places: {sorted(unknown)}, {lost}")
    words = {**places, **changes}
    found = re.compile(rf"\b({'|'.join(words)})\b")
    for _ in range(3):
        cell = found.sub(lambda match: words[match[1]], cell)
    return cell
