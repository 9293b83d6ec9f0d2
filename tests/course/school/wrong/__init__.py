"""Wrong answers, a file for each set: {exercise: (a right cell with places, wrong ones)}.

A place stands in a right cell as <<NAME: words>>, once; where the same words come again,
as NAME. A wrong answer has other words in some places, {NAME: words}; its name is how the
hint begins that a learner must be told.
"""

import importlib
import pkgutil
import re

PLACE = re.compile(r"<<([A-Z]+): ?((?:(?!<<|>>).)*)>>", re.DOTALL)  # the innermost one


def tables(folder, name):
    """Return the tables called `name` in all files of a folder, as one."""
    files = [
        importlib.import_module(f"{folder.__name__}.{info.name}")
        for info in pkgutil.iter_modules(folder.__path__)
    ]
    return {key: value for file in files for key, value in getattr(file, name).items()}


def filled(name, cell, changes):
    """Return an exercise's cell with its places filled: by `changes`, or right words.

    A place may stand in the words for another one.
    """
    words = {}
    while place := PLACE.search(cell):
        if place[1] in words:
            raise ValueError(
                f"{name}: two places are called {place[1]}: call one something else"
            )
        words[place[1]] = place[2]
        cell = PLACE.sub(r"\1", cell, count=1)
    if lost := changes.keys() - words.keys():
        raise ValueError(
            f"{name}: its cell has no place {', '.join(sorted(lost))}, it has "
            f"{', '.join(sorted(words))}. Name one of these, or write "
            "<<NAME: right words>> around the words of a new one"
        )
    words.update(changes)
    found = re.compile(rf"\b({'|'.join(words)})\b")
    for _ in range(3):
        cell = found.sub(lambda match: words[match[1]], cell)
    return cell
