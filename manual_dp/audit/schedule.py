"""How often a learning rate's schedule moves on: once for a step of its optimizer?

    hooks      count the calls of torch's schedulers
    count      one call more, of a scheduler or of an optimizer's step
    plateaus   the finding where a schedule waits for other numbers on ranks
    schedules  the finding where a schedule is faster than its optimizer

A schedule that every rank moves on world_size times, or for every micro-batch, ends its
warm-up and its decay too early; unless it was made for so many calls, as by accelerate.
"""

import math
import sys
from unittest import mock

from torch.optim import lr_scheduler

from manual_dp.audit.catalogue import finding
from manual_dp.audit.records import each_step

MEANT = "accelerate."  # its modules: they move world_size times on, by design


def hooks(watch):
    """Yield the patch of torch's schedulers."""
    move = lr_scheduler.LRScheduler.step

    def moved(schedule, *args, **kwargs):
        if not sys._getframe(1).f_globals.get("__name__", "").startswith(MEANT):
            count(watch.note, (id(schedule), id(schedule.optimizer)))
        return move(schedule, *args, **kwargs)
    yield mock.patch.object(lr_scheduler.LRScheduler, "step", moved)
    plateau = lr_scheduler.ReduceLROnPlateau
    wait = plateau.step

    def waited(schedule, metrics, *args, **kwargs):
        watch.note.metrics.append(float(metrics))
        return wait(schedule, metrics, *args, **kwargs)
    yield mock.patch.object(plateau, "step", waited)


def count(note, key):
    """Count one more call of a scheduler, or one more step of an optimizer."""
    note.calls[key] = note.calls.get(key, 0) + 1


@each_step
def plateaus(notes, evidence):
    """Ask that a schedule which goes by a metric is given the same one on all ranks."""
    for numbers in zip(*(note.metrics for note in notes)):
        for rank, number in enumerate(numbers):
            if not math.isclose(number, numbers[0], rel_tol=1e-6):
                yield finding("rates-differ", number / (numbers[0] or 1), "a plateau's "
                              f"schedule is given {number:.6g} on rank {rank}, "
                              f"{numbers[0]:.6g} on rank 0", rank)
                return


def schedules(evidence):
    """Ask that a schedule moves on once for a step of its optimizer, or less often."""
    times = [_times(note.calls) for notes in evidence.steps for note in notes]
    if not times or min(times) <= 1:
        return []
    size = len(evidence.runs)
    which = ", the world size" if min(times) == max(times) == size > 1 else ""
    return [finding("schedule", min(times), f"a schedule moves on {min(times):g} times"
                    f"{which}, for one step of its optimizer")]


def _times(calls):
    """Return how often the fastest schedule moves on for a step of its optimizer."""
    return max((count / calls[key[1]] for key, count in calls.items()
                if isinstance(key, tuple) and key[1] in calls), default=0)
