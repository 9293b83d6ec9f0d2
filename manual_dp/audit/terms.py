"""What does each term of a script's losses count, on all ranks together?

    counted   whether they count as in one mean over all of them; why not; the findings

A single device takes a mean over all rows: each term counts alike, and all together
once. What a rank's terms count is what its losses counted in backward, times what the
rank's gradient counts in the one that the optimizer used.
"""

import math
from collections import defaultdict

from manual_dp.audit.catalogue import few, finding
from manual_dp.audit.hypotheses import mixture

DIVIDED = "whether the loss is divided rightly"


def counted(notes, evidence):
    """Return (right, why, findings); right: None where it cannot be told."""
    if any(note.unheard or not note.terms for note in notes):
        return None, ("there is more in what backward begins with than losses of "
                      "torch.nn.functional; `audit` runs the step on one device"), []
    shares = _shares(notes, evidence.close)
    if notes[0].used is None or shares is None or any(
            part.each is None and part.terms for note in notes for part in note.terms):
        return None, "what the terms of the losses count is not known", []
    losses = defaultdict(list)  # of each place: rank, `Part`, what each term counts
    for rank, (note, share) in enumerate(zip(notes, shares)):
        for part in note.terms:  # micro-batches may stand one below the other
            if part.terms:
                losses[notes[0].terms[0].place if _micro_batches(note) else part.place
                       ].append((rank, part, share * part.each))
    close = evidence.close
    for place, parts in losses.items():
        if not _alike(parts, close):
            found = _means(place, parts, notes, close)
            if found or not _alike_in_each(parts, close):
                return False, f"the terms of {place} do not count alike", found
    # a sum over a row's numbers counts rows
    sums = [sum(part.terms * count for _, part, count in parts)
            for parts in losses.values()]
    rows = [sum(part.terms * count / part.of_row for _, part, count in parts)
            for parts in losses.values()]
    if not all(math.isclose(1, one, rel_tol=close) for one in sums) and not all(
            math.isclose(1, one, rel_tol=close) for one in rows):
        told = few([f"{one:.4g}" for one in sums])
        once = math.isclose(sum(shares), 1, rel_tol=close)  # a mean over the ranks
        return False, (f"losses count {told} times in a step: right if these are "
                       "their weights"), once and _times(sum(sums), notes, close)
    if any(part.mixes for note in notes for part in note.terms):
        return None, "a term of the loss may depend on other rows than its own", []
    return True, "", []


def _shares(notes, close):
    """Return what each rank's gradient counts in the one that was used, or None."""
    came = [note.came for note in notes]
    # alike, if that will do: of gradients that are nearly equal any mixture would
    if alike := mixture(notes[0].applied, [sum(came)], close):
        return alike * len(notes)
    return mixture(notes[0].applied, came, close)


def _micro_batches(note):
    """Return whether no_sync holds back all forwards but some, of one loss each."""
    return 0 < note.synced < len(note.all_rows) == len(note.terms)


def _in_turn(note):
    """Return whether several forwards, of other rows each, have a backward each."""
    rows = [row for one in note.all_rows for row in one or (None,)]
    return len(note.pieces) == len(note.all_rows) == len(note.terms) > 1 and len(
        {*rows}) == len(rows) and None not in rows and len(
            {part.place for part in note.terms}) == 1


def _alike(parts, close):
    """Return whether all terms count alike; parts: rank, `Part`, what each counts."""
    each = [count for *_, count in parts]
    return max(each) - min(each) <= close * max(map(abs, each))


def _grouped(parts, key):
    """Return lists of the parts by key(rank, part)."""
    groups = defaultdict(list)
    for one in parts:
        groups[key(*one[:2])].append(one)
    return groups


def _alike_in_each(parts, close):
    """Return whether terms count alike in each forward, on all ranks together.

    One device that takes these micro-batches would weigh them in the same way.
    """
    forwards = _grouped(parts, lambda rank, part: part.forward)
    return all(_alike(one, close) for one in forwards.values())


def _means(place, parts, notes, close):
    """Return the finding where means of unequally many terms count alike."""
    forwards = _grouped(parts, lambda rank, part: (rank, part.forward))
    if notes[0].wraps == "join" or not all(
            _alike(one, close) for one in forwards.values()):
        return []  # in one forward a loss may weigh its terms as it likes
    shards = _grouped(parts, lambda rank, part: rank)
    whole = all(_alike(one, close) for one in shards.values())
    groups = (shards if whole else forwards).values()
    counts = [sum(part.terms * count for _, part, count in one) for one in groups]
    sizes = [sum(part.terms for _, part, _ in one) for one in groups]
    if min(counts) <= 0 or max(counts) - min(counts) > close * max(counts) or (
            len(set(sizes)) < 2):
        return []
    who = "ranks" if len(groups) == len(shards) else "forwards"
    some = few([f"{one:.6g}" for one in sizes])
    return [finding("uneven-shards", max(sizes) / min(sizes), f"{place} is a mean of "
                    f"{some} terms on {who} 0, 1, ..., and these means count alike: "
                    "each term should")]


def _times(times, notes, close):
    """Return the finding where all terms together do not count once."""
    world_size, forwards = len(notes), len(notes[0].terms)
    if world_size > 1 and math.isclose(times, 1 / world_size, rel_tol=close) and all(
            world_size in note.divided for note in notes):
        return [finding("averaged-twice", times, "the loss is divided by "
                        f"{world_size}, the world size, and gradients are averaged")]
    if (all(map(_micro_batches, notes)) or all(map(_in_turn, notes))) and math.isclose(
            times, forwards, rel_tol=close):
        or_else = (f"; or the loss is multiplied by {world_size}, the world size: with "
                   "another --world-size it can be told" * (forwards == world_size))
        held = f", {forwards - notes[0].synced} of them without an all-reduce" * (
            notes[0].synced < forwards)
        return [finding("accumulation", times, f"the losses of {forwards} forwards add "
                        f"up{held}: they count once each{or_else}")]
    return []
