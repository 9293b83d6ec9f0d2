"""Which rank saw which rows: findings about the split of the data.

    sampler   what torch's DistributedSamplers were told
    batches   whether make_batch gave all ranks the same minibatch
    samples   rows that were missed, repeated, or seen by several ranks
    some      a few of many, as text
"""

from collections import Counter

from manual_dp.audit.catalogue import finding, ranks


def sampler(lists):
    """Return findings about the samplers that each rank iterated, in their order."""
    for mine in zip(*lists):
        for name in ("seed", "epoch", "rows", "shuffle", "world_size"):
            values = [one[name] for one in mine]
            if len(set(values)) > 1 and (mine[0]["shuffle"] or name != "seed"):
                code = "sampler-seed" if name in ("seed", "epoch") else \
                    "sampler-settings"
                return [finding(code, len(set(values)), f"the sampler's {name} is "
                                f"{', '.join(map(str, values))} on ranks 0, 1, ...")]
        told = [one["rank"] for one in mine]
        if told != list(range(len(lists))) or mine[0]["world_size"] != len(lists):
            return [finding("sampler-settings", len(set(told)), "the sampler was told "
                            f"ranks {told} of {mine[0]['world_size']}, the group has "
                            f"{len(lists)}")]
    shuffled = [tuple(one[name] for name in ("of", "rows", "seed", "epoch"))
                for one in (lists[0] if lists else []) if one["shuffle"]]
    again = [(key, n) for key, n in Counter(shuffled).items() if n > 1]
    if again:
        (*_, epoch), times = again[0]
        return [finding("sampler-epoch", times, f"the sampler was iterated {times} "
                        f"times in epoch {epoch}: the same order each time")]
    return []


def batches(t, notes):
    """Return a finding if make_batch gave the ranks different rows in step t."""
    if len({note["batch"] for note in notes}) > 1:
        return [finding("batches-differ", len({note["batch"] for note in notes}),
                        "make_batch gives the ranks different rows", None, t)]
    return []


def samples(t, notes):
    """Return findings about step t's rows: missed, repeated, on several ranks."""
    if len({note["batch"] for note in notes}) > 1:
        return []
    seen = []
    for note in notes:
        if None in note["all_rows"]:
            return []
        seen.append(Counter(row for rows in note["all_rows"] for row in rows))
    if not any(seen):
        return []
    size, found = notes[0]["size"], []
    often = [(rank, row, n) for rank, mine in enumerate(seen)
             for row, n in mine.items() if n > 1]
    shared = [row for row in range(size) if sum(row in mine for mine in seen) > 1]
    missed = [row for row in range(size) if not any(row in mine for mine in seen)]
    if len(seen) > 1 and all(mine == seen[0] for mine in seen):
        found.append(finding("rows-same", len(seen[0]), f"all ranks see the same "
                             f"{len(seen[0])} rows of {size}", None, t))
    elif shared:
        who = [rank for rank, mine in enumerate(seen) if shared[0] in mine]
        found.append(finding("rows-overlap", len(shared), f"{len(shared)} rows of "
                             f"{size} on several ranks: row {shared[0]} on "
                             f"{ranks(who)}", None, t))
    if often:
        rank, row, n = often[0]
        found.append(finding("rows-repeated", len(often), f"rank {rank} sees row {row} "
                             f"{n} times, and {len(often) - 1} more so", rank, t))
    if missed:
        found.append(finding("rows-missed", len(missed), f"no rank sees {len(missed)} "
                             f"rows of {size}: {some(missed)}", None, t))
    return found


def some(items):
    """Return the first five items as text."""
    return ", ".join(map(str, items[:5])) + (", ..." if len(items) > 5 else "")
