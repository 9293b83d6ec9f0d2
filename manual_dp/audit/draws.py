"""Random numbers: rules about ranks that draw the same ones.

    seeds   masks and noise of a model that are the same on all ranks
    draws   what a script draws between its steps
    noise   what it draws for a model
    aims    what it draws for its losses to reach
"""

from manual_dp.audit.catalogue import few, finding
from manual_dp.audit.records import each_step

MANY = 4  # targets that are equal by no chance


@each_step
def seeds(notes, evidence):
    """Ask that a step that draws does not seed all ranks alike."""
    first, starts = notes[0].seeded, [note.start for note in notes if note.start]
    drops = bool(starts) and starts[0].drops
    alike = drops and len(starts) == len(notes) > 1 and len(
        {start.draws_from for start in starts}) == 1
    if alike:
        fresh = {run.seed for run in evidence.runs}
        if evidence.watched and fresh != {None}:
            yield finding("random-same", len(notes), "every rank was seeded with "
                          f"{few(sorted(fresh))} after the model was made: dropout "
                          "draws the same masks on all")
            return
    if len(notes) > 1 and first and all(note.seeded == first and (
            drops or note.drops or note.masked) for note in notes):
        yield finding("random-same", len(first), "the step seeds every rank with "
                      f"{few(first)}, and draws masks or noise")
        return
    if alike:
        evidence.remark("dropout draws the same masks on every rank: seed + rank once "
                        "the model is made")
    noise = notes[0].inputs
    if len(notes) > 1 and noise and all(
            note.inputs == noise and note.draws for note in notes):
        yield finding("random-same", len(noise), "the ranks draw numbers, and their "
                      "models get the same ones")


def draws(evidence):
    """Say that a script draws the same numbers on all ranks, in every step anew.

    Without a loader they may be places of rows, which each rank takes its part of.
    """
    begins = [[note.start for note in notes] for notes in evidence.steps]
    loaded = evidence.watched and all(run.given for run in evidence.runs)
    if not loaded or len(evidence.runs) < 2 or len(begins) < 3 or any(
            None in starts or starts[0].drops for starts in begins):
        return []
    states = [{start.draws_from for start in starts} for starts in begins]
    if all(len(one) == 1 for one in states) and not any(
            one & other for one, other in zip(states, states[1:])):
        evidence.remark("in every step all ranks draw the same random numbers (noise, "
                        "an augmentation): seed + rank once the model is made")
    return []


def noise(evidence):
    """Ask that what a script draws, and gives to a model, is another on each rank."""
    known = any(f.code == "random-same" for f in evidence.findings)
    for before, notes in zip(evidence.steps, evidence.steps[1:]):
        starts = [[note.start for note in both] for both in (before, notes)]
        shared = [m for m, rows in enumerate(notes[0].all_rows) if rows and all(
            note.all_rows[m:m + 1] == [rows] and not note.dealt[m] for note in notes)]
        # what is the same in every step is no noise, nor is what is made of it
        new = [m for m in shared[:1] if before[0].all_rows[m:m + 1] not in (
            [], [notes[0].all_rows[m]])]
        if known or len(notes) < 2 or not new or len(shared) == len(notes[0].all_rows):
            continue
        says = f"forward {new[0] + 1} of a step gets the same numbers on all ranks"
        states = [{start and start.draws_from for start in both} for both in starts]
        if len(states[1]) == 1 and states[0] != states[1]:  # drawn, from one state
            return [finding("random-same", len(new), says, None, notes[0].t)]
        evidence.skip("whether each rank should have its own", f"{says}, which no "
                      "loader gave, and in each step new ones")
    return []


def aims(evidence):
    """Say where ranks with other rows have the same numbers to reach, real ones.

    As the noise that a diffusion model is to find, drawn from one seed.
    """
    known = {f.code for f in evidence.findings}.union(evidence.ignored) & {
        "rows-same", "random-same"}
    for notes in evidence.steps if len(evidence.runs) > 1 and not known else ():
        rows = [{row for one in note.all_rows for row in one or ()} for note in notes]
        apart = all(rows) and not any(rows[0] & mine for mine in rows[1:])
        for first, *others in zip(*(note.terms for note in notes)) if apart else ():
            if first.real and len({*first.aims}) >= MANY and all(
                    part.aims == first.aims for part in others):
                evidence.skip("whether each rank should have its own", f"{first.place} "
                              f"has the same {len(first.aims)} targets on all ranks, "
                              "and their rows are others: noise of one seed?")
                return []
    return []
