"""Who is who: a student is a folder, and has a name that no other student has."""

import hashlib
from collections import Counter

from manual_dp.school.grader.sheet import plain


class Students:
    """The students whose folders, whole paths, are given.

    names: {folder: name}. A name is the folder's own; two students of one name get as
    much of their paths as tells them apart: group1/anna, group2/anna.
    """

    def __init__(self, folders):
        self.folders = sorted(set(folders),
                              key=lambda home: (plain(home.name).lower(), str(home)))
        ends = {folder: _ends(folder) for folder in self.folders}
        often = Counter(end for found in ends.values() for end in set(found))
        self.names = {folder: next((end for end in found if often[end] == 1),
                                   f"{found[0]}-{_digest(folder)}")
                      for folder, found in ends.items()}
        self.called = {}
        for folder, found in ends.items():
            for name in {*found, self.names[folder], folder.name}:
                self.called.setdefault(name, []).append(folder)

    def find(self, name):
        """Return the folder of the one student called `name`.

        Raises ValueError if there is none, or more than one.
        """
        found = self.called.get(name) or self.called.get(name.strip(), [])
        if not found:
            raise ValueError(f"no student is called {name[:60]!r}")
        if len(found) > 1:
            names = " or ".join(repr(self.names[folder]) for folder in found)
            raise ValueError(f"more than one student is called {name[:60]!r}: "
                             f"say {names}")
        return found[0]


def _ends(folder):
    """Return the ends of a path, the shortest first, as they may stand in a table."""
    parts = folder.parts
    return [plain("/".join(parts[-n:])) for n in range(1, len(parts))]


def _digest(folder):
    return hashlib.sha256(str(folder).encode(errors="surrogatepass")).hexdigest()[:6]
