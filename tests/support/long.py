"""Tests that take long, and which of their cases `make test` runs all the same.

    LONG    of a test or a file: one of so many cases is run, 0 for none; from long.txt
    left    the tests of a run that are left to `make test-all`
    choose  what to write into long.txt, from the times of a run of all tests

    python -m pytest tests -n 3 --dist loadgroup --junitxml=all.xml
    python -m tests.support.long all.xml > long.txt; mv long.txt tests/support
    python -m pytest tests -n 3 --dist loadgroup --quick --junitxml=quick.xml
    python -m tests.support.long all.xml quick.xml > long.txt; mv long.txt tests/support

The second run finds the tests that took over what another one had made for them.
"""

import math
import sys
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree

SLOW, MUCH = 0.3, 4.0  # seconds: a case, in the mean; all cases of a test
FAMILY = 8             # cases, from which on some speak for the others
# the first test of each, whichever it is, makes what all of them look at
SHARED = """lab/ledger/test_compare notebooks/test_lab notebooks/test_nbgrader
    notebooks/test_programs""".split()
WHOLE = ["test_equivalence::test_a_planted_bug_is_seen"]  # what the course stands on
LISTED = Path(__file__).with_suffix(".txt")
LONG = {name: int(every) for name, every in
        (line.split() for line in LISTED.read_text().splitlines())}


def name_of(nodeid):
    """Return `audit/test_rows::test_a` for tests/audit/test_rows.py::test_a[case]."""
    return nodeid.removeprefix("tests/").replace(".py::", "::").partition("[")[0]


def left(items):
    """Return those of the tests that are not run: of a family, the first stays."""
    seen, out = Counter(), []
    for item in items:
        name = name_of(item.nodeid)
        every = LONG.get(name, LONG.get(name.partition("::")[0]))
        if every == 0 or every and seen[name] % every:
            out.append(item)
        seen[name] += 1
    return out


def choose(times):
    """Return {name: every} for {name: seconds of each case}.

    Of quick cases that are many, every fourth is enough; of slow ones, the first.
    Each file keeps a test, but for those of SHARED, which are listed as a whole.
    """
    chosen, files = dict.fromkeys(SHARED, 0), defaultdict(list)
    for name, each in times.items():
        file = name.partition("::")[0]
        if file in SHARED:
            continue
        files[file].append(name)
        family = len(each) >= FAMILY
        if name in WHOLE:
            continue
        if sum(each) > SLOW * len(each):
            chosen[name] = len(each) if family else 0
        elif family and sum(each) > MUCH:
            chosen[name] = min(4, math.ceil(sum(each) / MUCH))
    for names in files.values():
        if all(chosen.get(name) == 0 for name in names):
            first = min(names, key=lambda name: max(times[name]))
            chosen[first] = len(times[first])
    return {name: every for name, every in sorted(chosen.items()) if every != 1}


def read(report):
    """Return {name: seconds of each case} of a report in JUnit's form."""
    times = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname").removeprefix("tests.").replace(".", "/")
        times[f"{file}::{case.get('name').partition('[')[0]}"].append(
            float(case.get("time")))
    return times


if __name__ == "__main__":
    longest = {}
    for report in sys.argv[1:]:
        for name, each in read(report).items():
            kept = longest.get(name, [])
            # fewer cases, of which one had more to make: as many as there are
            longest[name] = max(kept, each, key=sum) if len(each) >= len(kept) else (
                kept if sum(kept) >= sum(each) else [sum(each) / len(kept)] * len(kept))
    for name, every in choose(longest).items():
        print(name, every)
