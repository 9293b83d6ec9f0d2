"""The report on a script that was watched, from what its ranks left.

    judged   of the runs of all ranks
    unmet    with the finding on ranks of which not all left their runs
"""

from dataclasses import replace

from manual_dp.audit.apart import SLICED, own_parts, without
from manual_dp.audit.catalogue import few, finding, ranks, so_many
from manual_dp.audit.failure import steps_of, uneven
from manual_dp.audit.records import Evidence
from manual_dp.audit.report import Report
from manual_dp.audit.rules import judge
from manual_dp.audit.shares import joined

NO_STEP = "the steps: watch follows torch's optimizers, and none of them took one"


def judged(runs, ignore=(), asked=None, diaries=None):
    """Return the report on the runs of all ranks; ignore: more codes than theirs.

    asked: how many steps; diaries: what the ranks say of themselves. Both are None for
    a script that did not end well: then others say why it took no more steps.
    """
    ignored = {*ignore, *runs[0].ignored}
    steps = [len(run.steps) for run in runs]
    if asked and min(steps) >= asked:  # a rank may have been watched for longer
        runs = [replace(run, steps=run.steps[:min(steps)]) for run in runs]
        steps = [min(steps)]
    runs = joined(runs)
    own, why = own_parts(runs)
    ignored |= {"rows-same", "random-same"} if why == SLICED else set()
    evidence = Evidence(without(runs, own), watched=True, ignored=ignored)
    if own:
        evidence.split = True
        evidence.skip(few(own), why)
    findings, remarks, unchecked = judge(evidence)
    if diaries and (early := uneven(diaries) or _fewer(runs, steps)):
        findings = [early, *(f for f in findings if f.code != early.code)]
    elif asked and max(steps) < asked:
        end = f"the script ended after {so_many(max(steps), 'step')}"
        unchecked.append(f"{asked - max(steps)} of {asked} steps: {end}"
                         if max(steps) else NO_STEP)
    report = Report(findings, remarks, len(runs), max(steps), unchecked,
                    evidence=evidence, precision=_precision(evidence.close))
    report.set_aside(ignored)
    return report


def unmet(found, diaries, world_size, runs):
    """Return the report with a finding on ranks of which not all left their notes."""
    close = [note.close for run in runs for note in run.steps]
    taken = [steps_of(diaries.get(rank, {})) for rank in range(world_size)]
    return Report([found], [], world_size, min(taken),
                  precision=_precision(max(close)) if close else "its own precision")


def _precision(close):
    return "float64" if close <= 1e-7 else (
        f"in the script's precision: what is below {close:g} is not seen")


def _fewer(runs, steps):
    """Return the finding for ranks that took fewer steps until they ended, or None."""
    joins = any(note.wraps == "join" for run in runs for note in run.steps)
    if len(set(steps)) == 1 or joins:
        return None
    who = [rank for rank, count in enumerate(steps) if count == min(steps)]
    return finding("unequal-batches", max(steps) - min(steps), f"{ranks(who)} took "
                   f"{so_many(min(steps), 'step')}, {ranks([steps.index(max(steps))])} "
                   f"{max(steps)}", who[0])
