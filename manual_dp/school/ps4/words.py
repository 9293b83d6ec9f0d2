"""How problem set 4 tells a learner what its ranks have done.

    some      the message for a few of many numbers, from the first that is wrong
    failed    the message where ranks did not come back
"""

from manual_dp.school.exercise import close, differ, shorten, so_many
from manual_dp.school.tools.plain import numbers


def some(who, got, wanted, hints):
    """Compare lists of numbers, one a rank; show three of each, hint from them all."""
    wanted = numbers(wanted)
    if close(got, wanted):
        return None
    hints = [("these agree to five digits: was something rounded to float32?",
              close(got, wanted, 1e-5)),
             *((text, value is True or close(got, numbers(value)))
               for text, value in hints)]
    if [len(part) for part in got] != [len(part) for part in wanted]:
        return differ(who, got, wanted, hints) or "got     other shapes"
    first = min(i for mine, right in zip(got, wanted) for i in range(len(right))
                if not close(mine[i], right[i]))
    cut = slice(first, first + 3)
    where = f", from its number {first + 1} of {len(wanted[0])} on" if first else ""
    return differ(who + where, [part[cut] for part in got],
                  [part[cut] for part in wanted], hints)


def failed(case, got):
    """Return None, or the message where `got` holds an error instead of numbers."""
    if "error" not in got:
        return None
    text = " ".join(str(got["error"]).split())
    said = shorten(text, 200) + shorten(got["place"], 100)
    waited = case["world_size"] > 1 and (got["kind"] != "raised" or "gloo" in text)
    ranks, steps = so_many(case["world_size"], "rank"), len(case["steps"])
    return differ(f"{ranks}, {steps} steps of SGD", f"no result: {said}",
                  "weights from every rank", [
        ("a parameter has gradient None on a rank whose rows did not use it: that "
         "counts as zero", "'NoneType'" in text),
        ("what is frozen wants no gradient, and so takes no hook",
         "hook on a tensor that doesn't require grad" in text),
        ("all ranks must call the same collectives in the same order: those who "
         "receive call broadcast, too, and a gradient may be None on one of them",
         waited)])
