"""Which rank saw which rows: rules about the split of the data.

    samplers  what torch's DistributedSamplers were told
    batches   whether make_batch gave all ranks the same minibatch
    rows      rows that were missed, repeated, or seen by several ranks
    dealt     whether a script's ranks saw all rows that samplers dealt out
    given     whether its loaders give each rank rows of its own
    workers   whether a loader's workers give other rows than one another
    orders    whether samplers of other kinds give ranks places of their own
    unanswered  whether a rank left out a batch, which others did not
    datasets  whether samplers deal out one and the same dataset
    ROWS      these rules, in this order
    same_labels  whether a row has one target, whoever has it
"""

from collections import Counter

from manual_dp.audit.catalogue import few, finding, ranks, so_many
from manual_dp.audit.reads import others, same_rows
from manual_dp.audit.records import each_step
from manual_dp.audit.single import compared


def samplers(evidence):
    """Ask that samplers fit together, and give each epoch another order."""
    lists = [run.samplers for run in evidence.runs]
    shuffled = Counter((one.epoch, one.of, one.rows, one.seed) for one in lists[0]
                       if one.shuffle)
    found = [f for mine in zip(*lists) for f in _settings(mine)]
    found += [finding("sampler-epoch", run.again, f"rank {rank} sees a batch again, "
                      f"and the sampler's epoch is still {run.again}", rank)
              for rank, run in enumerate(evidence.runs) if run.again is not None]
    found += [finding("sampler-epoch", times, f"the sampler was iterated {times} times "
                      f"in epoch {epoch}: the same order each time")
              for (epoch, *_), times in shuffled.items() if times > 1]
    if evidence.watched and not found and any(
            one.shuffle and one.told is False for one in lists[0]):
        evidence.skip("whether each epoch has an order of its own", "set_epoch was not "
                      "called before the first one; right if there is no other")
    return found[:1]


def _settings(mine):
    """Yield findings about one sampler, as it was told on every rank."""
    for name in ("seed", "epoch", "rows", "shuffle", "world_size"):
        values = [getattr(one, name) for one in mine]
        if len(set(values)) > 1 and (mine[0].shuffle or name != "seed"):
            code = {"seed": "sampler-seed", "epoch": "sampler-epoch"}.get(
                name, "sampler-settings")
            yield finding(code, len(set(values)), f"the sampler's {name} is "
                          f"{', '.join(map(str, values))} on ranks 0, 1, ...")
    said = [one.rank for one in mine]
    if said != list(range(len(mine))) or mine[0].world_size != len(mine):
        yield finding("sampler-settings", len(set(said)), f"the sampler was told ranks "
                      f"{said} of {mine[0].world_size}, the group has {len(mine)}")


UNSEEN = "the rows that no rank saw"


@each_step
def batches(notes, evidence):
    """Ask that every rank is given the same minibatch."""
    count = len({note.batch for note in notes})
    if count > 1:
        yield finding("batches-differ", count, "make_batch gives the ranks different "
                      "rows")


@each_step
def rows(notes, evidence):
    """Ask that every row of the minibatch is seen by one rank, equally often."""
    lists = [_of_data(note) for note in notes]
    forwards = [rows for mine in lists for rows in mine]
    size, copies = notes[0].size, notes[0].copies
    if len({note.batch for note in notes}) > 1 or not any(forwards) or (
            None in forwards and size == 0):
        return []
    seen = [Counter(row for rows in mine for row in rows or ()) for mine in lists]
    of = f" of {size}" if size else ""  # without a size, rows have no numbers
    homes = Counter(row for mine in seen for row in mine)
    shared = sorted(row for row, times in homes.items() if times > copies.get(row, 1))
    each = [min(mine.values(), default=1) for mine in seen]  # all of them, so often
    often = [(rank, row, times) for rank, mine in enumerate(seen) for row, times in
             mine.items() if times > each[rank] * copies.get(row, 1)]
    missed = [row for row in range(size) if row not in homes
              and None not in forwards and not copies]
    found = []
    if (shared or often) and not missed and compared(
            notes, evidence)[0] and not _equal(notes):
        evidence.remark("ranks share rows, and still take a single device's step")
        return []
    same = len(seen) > 1 and all(mine == seen[0] for mine in seen) and shared
    if not size and notes[0].t is not None and not same and (
            often or len(shared) < len(homes) / 2):
        dealt_out = evidence.watched and not any(note.lost for note in notes)
        if shared and notes[0].t == 0 and not dealt_out:
            evidence.remark(f"rows on several ranks in step 0: {len(shared)}; right if "
                            "some are equal, or drawn with replacement")
        shared = []  # of rows that nobody told us of, some may be equal, or drawn twice
    if same and notes[0].pieces and not _equal(notes) and not any(
            note.draws for note in notes):
        pass  # as of a graph: each rank makes something else of the whole
    elif same:
        found.append(finding("rows-same", len(seen[0]), f"all ranks see the same "
                             f"{len(seen[0])} rows{of}"))
    elif shared:
        who = ranks([rank for rank, mine in enumerate(seen) if shared[0] in mine])
        row = f"row {shared[0]}" if size else "one of them"
        found.append(finding("rows-overlap", len(shared), f"{len(shared)} rows{of} on "
                             f"several ranks: {row} on {who}"))
    if often and (size or notes[0].t is None):
        rank, row, times = often[0]
        row = f"row {row}" if size else "a row"
        found.append(finding("rows-repeated", len(often), f"rank {rank} sees {row} "
                             f"{times} times, and {len(often) - 1} more so", rank))
    return _with_missed(found, missed, size)


def _of_data(note):
    """Return the rows of each forward; of a script's, what a loader gave, if it did."""
    given = [rows for rows, dealt in zip(note.all_rows, note.dealt) if dealt]
    return note.all_rows if note.size else given or note.all_rows


def dealt(evidence):
    """Ask that a script's models saw all that loaders gave; say what samplers pad."""
    known = "rows-missed" in evidence.ignored
    if not evidence.watched or len(evidence.runs) < 2 or known:
        return []
    why = next((note.lost for notes in evidence.steps for note in notes if note.lost),
               "")
    if why:
        evidence.skip(UNSEEN, f"{why}; if you know of none: "
                      "watch(..., ignore=['rows-missed'])")
    for one in evidence.runs[0].samplers if not why else ():
        if over := -one.rows % one.world_size:
            evidence.remark(f"{one.rows} rows over {one.world_size} ranks: the sampler "
                            f"gives {over} of them twice in an epoch, or leaves the "
                            f"last {one.world_size - over} out (drop_last)")
    return []


def given(evidence):
    """Ask that a script's loaders do not give all ranks the same rows.

    That is so behind an augmentation, too, which makes rows look different.
    """
    whole = list(zip(*(run.given for run in evidence.runs)))
    least = _all_seen(evidence, whole)
    if not least or not all(map(_alike, whole)):
        return []
    return [finding("rows-same", least, f"the loader gives all ranks the same rows, "
                    f"{least} in {len(whole) - 1} batches: they only look different by "
                    "what is drawn at random")]


def _all_seen(evidence, whole):
    """Return how many rows loaders gave a rank, 0 unless its models saw as many.

    whole: of all ranks, each batch that loaders gave.
    """
    seen = [[rows for note in run.steps for rows in note.all_rows]
            for run in evidence.runs]
    if not whole or len(evidence.runs) < 2 or None in sum(seen, []) or any(
            finding.code.startswith("rows-") for finding in evidence.findings):
        return 0
    # the last batch may belong to the step that nobody watched
    least = sum(one[0].size for one in whole[:-1])
    return least if all(least <= sum(map(len, mine)) for mine in seen) else 0


def orders(evidence):
    """Ask that samplers which are not torch's deal out places of one dataset, too."""
    if not _all_seen(evidence, list(zip(*(run.given for run in evidence.runs)))):
        return []
    for mine in zip(*(run.orders for run in evidence.runs)):
        if None in mine or any(one.again for one in mine) or not all(
                same_rows(one.parts, mine[0].parts) for one in mine):
            continue  # drawn with replacement, or each rank has rows of its own
        homes = Counter(place for one in mine for place in one.places)
        shared = sum(times > 1 for times in homes.values())
        if shared > max(len(mine), 0.02 * len(homes)):  # more than pads an epoch
            part = shared / len(homes)
            return [finding("rows-overlap", part, f"of the rows that ranks' samplers "
                            f"give in an epoch, {part:.0%} are given by several: each "
                            "should have rows of its own")]
    return []


def workers(evidence):
    """Ask that the copies of an IterableDataset give rows of their own."""
    for rank, run in enumerate(evidence.runs):
        for i, first in enumerate(run.given):
            count = first.workers
            turn = run.given[i:i + count]
            # then each copy goes on to its next batch
            if 1 < count < len(run.given) - i and first.rows and all(
                    one.rows == first.rows for one in turn) and (
                    run.given[i + count].rows != first.rows):
                return [finding("rows-repeated", count, f"the {count} workers of a "
                                "loader give the same rows: each has a copy of the "
                                "IterableDataset; see get_worker_info", rank)]
    return []


def datasets(evidence):
    """Ask that a DistributedSampler's places mean the same rows on all ranks."""
    lists = [run.sets for run in evidence.runs]
    for rank, sets in enumerate(lists):
        for mine, its in zip(sets, lists[0]):
            asked, count, common = others(mine or [], its or [])
            says = (f"of {asked} places in the dataset {count} have another row on "
                    f"rank {rank} than on rank 0")
            if count and common is not False:
                return [finding("dataset-differs", count, says, rank)]
            if count:
                evidence.skip("whether a row is dealt out once", f"{says}: right if "
                              "each draws or holds data of its own")
    return []


def unanswered(evidence):
    """Say where a rank takes more forwards than others, and none goes back for them."""
    for notes in evidence.steps if not evidence.runs[0].several else ():
        forwards = [len(note.all_rows) for note in notes]
        for rank, note in enumerate(notes):
            if forwards[rank] > max(min(forwards), len(note.pieces)) > 0:
                evidence.skip(
                    "rows that took no part", f"in step {note.t} rank {rank} took "
                    f"{so_many(forwards[rank], 'forward')} and "
                    f"{so_many(len(note.pieces), 'backward')}, another rank "
                    f"{so_many(min(forwards), 'forward')}: was its batch left out?")
                return []
    return []


def _alike(batches):
    """Return whether all ranks were given the same rows in a batch."""
    return not any(one.sampled for one in batches) and any(
        len(set(told)) == 1 and told[0] is not None
        for told in zip(*((one.rows, one.read) for one in batches)))


def _equal(notes):
    """Return whether the ranks' own gradients are the same, if they are known."""
    came = [note.came for note in notes if note.pieces]
    return len(came) < len(notes) or all(
        float((one - came[0]).norm()) <= 1e-9 * float(came[0].norm()) for one in came)


def _with_missed(found, missed, size):
    """Add the rows that no rank sees, to the finding on rows that took their place.

    Its cause is theirs. Only where no row is seen twice, the missed ones are a finding
    of their own.
    """
    if not missed:
        return found
    says = f"no rank sees {len(missed)} rows of {size}: {few(missed)}"
    if found:
        return [found[0]._replace(says=f"{found[0].says}; {says}"), *found[1:]]
    return [finding("rows-missed", len(missed), says)]


def same_labels(lists):
    """Ask that a row of X that several ranks have, has the same y on them."""
    homes, wrong = {}, []
    if None in lists:
        return []
    first = lists[0]
    if len(lists) > 1 and all(mine.y == first.y and mine.real and mine.labels and len(
            {*mine.y}) == len(mine.y) > 3 for mine in lists) and not any(
            {*mine.X} & {*first.X} for mine in lists[1:]):
        return [finding("labels", len(first.y), "all ranks have the same numbers in y, "
                        f"{len(first.y)} of them, and other rows of X", 1)]
    same = all(set(mine.X) == set(lists[0].X) and len(set(mine.X)) == len(mine.X)
               and mine.labels is not None for mine in lists)
    for rank, mine in enumerate(lists):
        for x, y in zip(mine.X, mine.y):
            other, right = homes.setdefault(x, (rank, y))
            if other != rank and y != right and (same or mine.labels):
                wrong.append((rank, other))
    return [finding("labels", len(wrong), f"{len(wrong)} rows of X have another y on "
                    f"rank {rank} than on rank {other}", rank)
            for rank, other in wrong[:1]]


ROWS = [samplers, datasets, batches, rows, dealt, given, orders, workers, unanswered]
