"""What to teach again: which exercises were not solved, why, and how often."""

import re
from collections import Counter
from dataclasses import dataclass

NOT_WRITTEN = "Not written yet"
UNKNOWN = "Other numbers, for a reason that the checks do not know."


@dataclass
class Trouble:
    """An exercise that `wrong` of `tried` did not solve; reasons: {words: how many}."""

    name: str
    wrong: int
    tried: int
    reasons: dict


def troubles(book):
    """Return the exercises that somebody did not solve, the least solved first."""
    reasons, tried, said = {}, Counter(), {}
    for works in book.works.values():
        for work in works.values():
            if not work.record["note"]:  # else nothing of it was tried
                for name, (_, message) in work.record["exercises"].items():
                    tried[name] += 1
                    if message:
                        text = reason(message)
                        kind = re.sub(r"\d+", "N", text)  # rank 2, rank 3: one reason
                        said.setdefault((name, kind), text)
                        reasons.setdefault(name, Counter())[kind] += 1
    found = [Trouble(name, count.total(), tried[name], {
                said[name, kind]: often for kind, often in count.most_common()})
             for name, count in reasons.items()]
    return sorted(found, key=lambda one: (-one.wrong / one.tried, -one.wrong))


def reason(message):
    """Return what is the same in the messages of all who made this mistake.

    The hint if there is one: the numbers of a message are drawn anew for each answer.
    """
    lines = message.splitlines() or [""]
    for line in lines:
        if line.startswith("perhaps "):
            return line.removeprefix("perhaps ")
    if lines[0].startswith(NOT_WRITTEN):
        return f"{NOT_WRITTEN}."
    if lines[0].startswith("given "):
        return UNKNOWN
    return lines[0][:200]
