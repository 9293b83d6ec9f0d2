"""A script beside itself: do its ranks take the steps that it takes on one device?

    compare   let a report know, if both can be run
    add       let it know what was seen

Both are run as in `doubled`. If one device asks for as many rows as a
rank, its loaders give it those of all ranks; then lr may be another one, by a rule.
"""

from manual_dp.audit.gradient import MEAN
from manual_dp.audit.heard import DOUBTED
from manual_dp.audit.records import Evidence
from manual_dp.audit.rows import UNSEEN
from manual_dp.audit.rules import judge
from manual_dp.audit.shares import joined
from manual_dp.audit.single import DRAWN, compared
from manual_dp.audit.terms import DIVIDED

BESIDE = "beside one device in float64"
EXACT = 1e-7  # a script that has other weights than float64 is not
OTHERS = "in float64, without dropout, a batch's statistics or random numbers"
SETTINGS = "settings", "learning-rate", "clip", "state-differs"
OF_LOSSES = "sum", "averaged-twice", "factor", "uneven-shards", "accumulation"


def compare(report, run, world_size):
    """Add to the report on a script what is seen beside one device.

    run(world_size, times, fixes, by_rows): the runs of as many ranks, as `take_again`.
    """
    known = report.evidence
    doubted = [f for f in report.findings if DOUBTED in f.says]
    if known.local or known.split or world_size < 2:
        return
    if len(doubted) < len(report.findings):
        return
    evidence = _both(run, world_size, False)
    if not evidence:
        return
    if DRAWN in compared(evidence.steps[0], evidence)[1]:
        # equal with fixed numbers may be no more than the numbers' doing
        fixed = _both(run, world_size, True)
        if fixed and compared(fixed.steps[0], fixed)[0] is False:
            evidence = fixed
    found, _, _ = judge(evidence)
    add(report, found, evidence, BESIDE, OTHERS)
    if BESIDE in report.precision or len(report.findings) > len(doubted):
        report.findings = [f for f in report.findings if f not in doubted]


def _both(run, world_size, fixes):
    """Return the evidence on ranks and one device; None if it is not to be had."""
    runs = run(world_size, 1, fixes)
    alone = runs and run(1, 1, fixes)
    fixed = bool(alone) and _numbers(runs) == world_size * _numbers(alone)
    times = world_size if fixed else 1
    if fixed:
        alone = run(1, times, fixes)
    if alone and (more := _norms(alone) - _norms(runs)):
        if more != _norms(alone):
            return None
        # theirs alone are torch's: so on ranks they all-reduce, by a code of their own
        alone = run(1, times, fixes, True)
    if not alone or alone[0].names != runs[0].names:
        return None
    evidence = Evidence(joined(runs), alone[0])
    evidence.fixed, evidence.norms = fixed, evidence.norms - evidence.own_norms
    evidence.own_norms = 0  # torch's own take running statistics
    return evidence if evidence.close <= EXACT else None


def _numbers(runs):
    """Return how many numbers went into the models in the first step."""
    return sum(run.steps[0].numbers for run in runs)


def _norms(runs):
    """Return how often a forward of the first step took a batch's statistics."""
    return runs[0].steps[0].norms / max(1, len(runs[0].steps[0].all_rows))


def add(report, found, evidence, words, others):
    """Add what is found beside one device; or that nothing is, if it was compared.

    words: how it was compared. others: what was left out for that.
    """
    told = {notes[0].t: compared(notes, evidence) for notes in evidence.steps}
    found = [f for f in found if told.get(f.step, (True, ""))[0] is False
             or f.code in SETTINGS]
    report.findings += found
    if found:
        report.remarks.insert(0, f"seen beside one device, {others}")
    if any(f.code in OF_LOSSES for f in found):
        report.unchecked = [words for words in report.unchecked
                            if not words.startswith(DIVIDED)]
    same, why = told[0]
    still = not float(evidence.alone[0][0].step.norm())  # a step that tells nothing
    if same and not found and not still:
        once = all(len(note.pieces) == 1 for notes in evidence.steps for note in notes)
        report.unchecked = [words for words in report.unchecked if not words.startswith(
            (MEAN, UNSEEN, DIVIDED)[:2 + once])]
        report.precision += f"; {words}"
    elif not found:
        report.unchecked = [f"{words}; not beside one device: {why}"
                            if words.startswith((MEAN, UNSEEN, DIVIDED)) else words
                            for words in report.unchecked]
