"""How often a learning rate's schedule moves on: once for a step of its optimizer?

    hooks      count the calls of torch's schedulers
    count      one call more, of a scheduler or of an optimizer's step
    schedules  say where a schedule is faster than its optimizer

A schedule that every rank moves on world_size times, or for every micro-batch, ends its
warm-up and its decay too early. Some make it for so many calls, so it is no finding.
"""

from unittest import mock

from torch.optim import lr_scheduler


def hooks(watch):
    """Yield the patch of torch's schedulers."""
    move = lr_scheduler.LRScheduler.step

    def moved(schedule, *args, **kwargs):
        count(watch.note, (id(schedule), id(schedule.optimizer)))
        return move(schedule, *args, **kwargs)
    yield mock.patch.object(lr_scheduler.LRScheduler, "step", moved)


def count(note, key):
    """Count one more call of a scheduler, or one more step of an optimizer."""
    note.calls[key] = note.calls.get(key, 0) + 1


def schedules(evidence):
    """Say how many times a schedule moves on for a step, if it is more than once."""
    times = [_times(note.calls) for notes in evidence.steps for note in notes]
    if not times or min(times) <= 1:
        return []
    size = len(evidence.runs)
    which = ", the world size" if min(times) == max(times) == size > 1 else ""
    evidence.remark(f"a schedule moves on {min(times):g} times{which}, for one step of "
                    "its optimizer: warm-up and decay end as many times too early, "
                    "unless they were made for so many calls")
    return []


def _times(calls):
    """Return how often the fastest schedule moves on for a step of its optimizer."""
    return max((count / calls[key[1]] for key, count in calls.items()
                if isinstance(key, tuple) and key[1] in calls), default=0)
