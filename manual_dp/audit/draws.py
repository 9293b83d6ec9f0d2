"""Random numbers: rules about ranks that draw the same ones.

    seeds   masks and noise of a model that are the same on all ranks
    draws   what a script draws between its steps
"""

from manual_dp.audit.catalogue import few, finding
from manual_dp.audit.records import each_step


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
