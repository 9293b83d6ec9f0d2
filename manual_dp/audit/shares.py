"""Optimizers that share out the parameters: each rank's applies a share for all.

    leftover   what came back to parameters that no optimizer of this rank applied
    joined     the runs of all ranks, as if each had applied all shares
    put_back   the finding where a share's new weights were lost

So it is with a ZeRO stage 1 that is written by hand; torch's holds all parameters.
"""

from dataclasses import replace

from manual_dp.audit.catalogue import finding


def leftover(watch):
    """Return the sketch of what came in a step, and was not applied on this rank."""
    return watch.sketch.rows({i: sum(rows) for i, rows in watch.came.items()
                              if rows and i not in watch.pieces})


def joined(runs):
    """Return the runs, with the steps of shares as if each rank had applied all."""
    taken = list(zip(*map(_joined, zip(*(run.steps for run in runs)))))
    return [replace(run, steps=[*mine, *run.steps[len(mine):]])
            for run, mine in zip(runs, taken or [()] * len(runs))]


def _joined(notes):
    """Return the notes of a step's ranks."""
    rates = {i: lr for note in notes for i, lr in note.rates.items()}
    shared = len(notes) > 1 and all(note.rates and note.used is not None and
                                    note.pieces for note in notes)
    if not shared or sum(len(note.rates) for note in notes) > len(rates):
        return notes
    used = sum(note.used for note in notes)
    return [replace(note, rates=rates, used=used, cleared=False,
                    pieces=[sum(note.pieces) + note.leftover]) for note in notes]


def put_back(notes, names):
    """Return the finding for weights that one rank stepped, and that stay as they were.

    They were sent by a rank that has another share.
    """
    homes = [i for note in notes for i in note.stepped]
    if len(set(homes)) < len(homes) or any(note.before is None for note in notes):
        return None
    lost = [(rank, i) for rank, note in enumerate(notes) for i, new in
            note.stepped.items() if new != note.before[i] == note.after[i]]
    if not lost:
        return None
    rank, i = lost[0]
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return finding("weights-changed", len(lost), f"{names[i]}{more} is what it was "
                   f"before the step: rank {rank} alone steps it, and got it back from "
                   "another rank", rank, notes[0].t, names[i])
