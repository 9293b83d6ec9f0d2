"""From what the ranks noted to findings: nothing is computed on weights here.

    judge        (findings, remarks, unchecked) of the evidence
    RULES        functions of an `Evidence`, each returns findings; append your own
    alias set_up drift                  the model: is it one and the same on all ranks?
    moved updates unused                the step: do all ranks take it, and once?
    copies remarks at_rest              what else there is to say

A later rule may look at the findings of those before it. Those about gradients, rows,
the learning rate, clipping, averages of weights, random numbers, what was set up and a
single device's step are in gradient.py, rows.py, rate.py, clipping.py, averaging.py,
draws.py, settings.py, single.py.
"""

import re
from dataclasses import replace

from manual_dp.audit.averaging import averages, later
from manual_dp.audit.catalogue import WORDS, few, finding, ranks, so_many
from manual_dp.audit.clipping import clips
from manual_dp.audit.draws import aims, draws, noise, seeds
from manual_dp.audit.gradient import gradients, no_gradient
from manual_dp.audit.rate import learning_rate
from manual_dp.audit.records import each_step
from manual_dp.audit.rows import ROWS
from manual_dp.audit.schedule import plateaus, schedules
from manual_dp.audit.settings import ask_setups
from manual_dp.audit.single import beside, other_step
from manual_dp.audit.strangers import strangers

# what follows where some rank takes its step later than others
LATER = {"gradient", "rates-differ", "state-differs", "clip", "buffers"}


def judge(evidence):
    """Ask every rule; return (findings, remarks, unchecked), causes first."""
    for rule in RULES:
        evidence.findings += rule(evidence)
    once = {(f.code, f.parameter, f.rank): f for f in reversed(evidence.findings)
            if not _follows(f, evidence)}
    in_order = sorted(once.values(), key=lambda f: _place(f.code, evidence))
    return in_order, evidence.remarks, evidence.unchecked


def _place(code, evidence):
    """Return where a finding stands in a report."""
    places = list(WORDS)
    if code == "gradient" and evidence.watched:  # beside no single device it says less
        return places.index("replicas-differ") + 0.5
    return places.index(code)


def _follows(one, evidence):
    """Return whether a finding is no more than what another one says."""
    late = evidence.stepped_apart
    if late is not None and one.code in LATER and (one.step or 0) >= late:
        return True  # ranks stepped at other times
    # a model that took another step gives others another input
    slower = any(f.code == "learning-rate" and f.step == one.step
                 for f in evidence.findings)
    if evidence.runs[0].several and slower and one.code in ("local", "gradient"):
        return True
    return one.code == "not-in-optimizer" and not one.parameter and any(
        f.code == one.code and f.parameter for f in evidence.findings)


# the model

def alias(evidence):
    """Ask that no parameter is on the memory of another tensor, or of another rank."""
    found, owners = [], {}
    for rank, run in enumerate(evidence.runs):
        whose = [(run.shared[0], run.shared[1])] if run.shared else [
            (name, f"rank {owners[place][0]}'s {owners[place][1]}")
            for name, place in run.common.items() if place in owners]
        found += [finding("alias", 1, f"{name} of rank {rank} is on the memory of "
                          f"{other}", rank, 0, name) for name, other in whose]
        owners.update({place: (rank, name) for name, place in run.common.items()})
    return found[:1]


def set_up(evidence):
    """Ask that models and optimizers are set up alike, and as at world size 1."""
    found, last = [], [note.setup for notes in evidence.steps[-1:] for note in notes]
    for t, notes in enumerate(evidence.steps):
        alone = evidence.alone[t][0].setup if t < len(evidence.alone) else None
        for moment in ("start", "setup"):
            setups = [getattr(note, moment) for note in notes]
            if None not in setups:
                if evidence.local:  # each rank's optimizer has a state of its own
                    setups = [replace(setup, state={}) for setup in setups]
                found += [f for f in ask_setups(
                    setups, alone if moment == "setup" else None, notes[0].t)
                    if f.code not in {other.code for other in found}
                    # an optimizer may be known by its first step only
                    and (f.code != "not-in-optimizer" or not _copied(notes) and any(
                        f.parameter in setup.unheld for setup in last))]
    return found


def _copied(notes):
    """Return whether weights come from others, which an optimizer of torch's holds."""
    return all(note.foreign and not note.rates and note.moved for note in notes)


def drift(evidence):
    """Ask that ranks have the same weights before the first step and after each one."""
    found = [_parted(evidence, *one) for one in evidence.runs[0].drifts]
    for notes in _together(evidence):
        for when in ("before", "after") if not found and notes[0].weights is not None \
                else ():
            lists = [getattr(note, when) for note in notes]
            apart = notes[0].setup.left_out if evidence.watched else ()
            i = next((i for i, name in enumerate(evidence.names) if None not in lists
                      and name not in apart and len({one[i] for one in lists}) > 1),
                     None)
            now = not evidence.local if when == "after" else notes[0].t == 0
            if i is not None and now and not found:
                who = [rank for rank, mine in enumerate(lists)
                       if mine[i] != lists[0][i]]
                stands = [note.weights[i] + (note.step[i] if when == "before" else 0)
                          for note in notes]
                far = max(float((mine - stands[0]).norm()) for mine in stands)
                if far > 10 * evidence.close ** 2 * float(stands[0].norm()):
                    found.append(_parted(evidence, notes[0].t, when, i, who, far))
                else:
                    evidence.remark("weights differ in their last digits from rank to "
                                    "rank, as where each adds up in an order of its "
                                    "own: they drift apart")
    return found


def _together(evidence):
    """Return the steps after which ranks have one model by design."""
    steps = evidence.steps
    if any(note.wraps == "join" for notes in steps for note in notes):
        return steps[:-1]  # at its end, Join sends the weights of the last rank
    return steps if not any("localSGD" in note.wraps for notes in steps
                            for note in notes) else []


def _parted(evidence, t, when, i, who, far):
    if i is None:
        return finding("not-synchronised", far, "some rank has no gradient")
    code, place = {
        "before": ("start-differs", "before the first step "),
        "after": ("replicas-differ", "" if t is None else f"since step {t} "),
        "gradient": ("not-synchronised", "the gradient of ")}[when]
    rank, name = who[0], evidence.names[i]
    notes = [note for run in evidence.runs for note in run.steps if note.t == t]
    stepped = [note.stepped.get(i) for note in notes]
    changed = [rank for rank, note in enumerate(notes)
               if note.after and stepped[rank] != note.after[i]]
    if when == "after" and len(set(stepped)) == 1 and stepped[0] and changed:
        code, rank = "weights-changed", changed[0]
        place = f"{ranks(changed)} wrote the weights after the optimizer's step; "
    forwards = [len(note.all_rows) for note in notes]
    if code == "replicas-differ" and notes and max(forwards) > min(forwards):
        evidence.stepped_apart = t
        place += (f"(taken after {max(forwards)} forwards on "
                  f"{ranks([forwards.index(max(forwards))])}, after {min(forwards)} on "
                  f"{ranks([forwards.index(min(forwards))])}) ")
    return finding(code, far, f"{place}{name} is {far:.1e} from rank 0's on "
                   f"{ranks(who)}", rank, t, name)


# the step

@each_step
def moved(notes, evidence):
    """Ask that the optimizer holds the parameters, and that every rank's move."""
    if no_gradient(notes):
        return  # said by another rule
    still = [rank for rank, note in enumerate(notes) if note.moved is False
             and (any(note.rates.values()) or not note.rates)]
    some = [i for i in range(len(evidence.names)) if _on_some(i, notes)]
    if some and not still:
        names = [evidence.names[i] for i in some]
        who = [rank for rank, note in enumerate(notes) if some[0] not in note.rates]
        yield finding("nothing-moved", len(some), f"{few(names)} did not change on "
                      f"{ranks(who)}: no optimizer took a step there", who[0],
                      parameter=names[0])
    elif notes[0].foreign and not notes[0].rates and not notes[0].moved:
        yield finding("not-in-optimizer", 0, "the optimizer holds none of the model's "
                      "parameters")
    elif still and (len(still) < len(notes) or notes[0].t == 0 and any(
            note.updates or note.own is not None for note in notes)):
        yield finding("nothing-moved", len(still), f"the weights of {ranks(still)} did "
                      "not change", still[0])


def _on_some(i, notes):
    """Return whether a parameter was updated, and moved, on some ranks only."""
    return len({i in note.rates for note in notes}) == 2 and len(
        {note.before[i] == note.after[i] for note in notes if note.before}) == 2


@each_step
def updates(notes, evidence):
    """Ask that the optimizer takes one step for a minibatch, not one for each part."""
    times, lists = max(note.updates for note in notes), notes[0].all_rows
    parts = None not in lists and len(lists) == len({
        row for rows in lists for row in rows[:1]}) > 1
    if times > 1 and notes[0].size and parts and notes[0].wraps != "join":
        yield finding("accumulation", times, f"the optimizer steps {times} times for "
                      f"one minibatch, after {len(lists)} forwards")


def unused(evidence):
    """Ask that the loss of some rank depends on every parameter."""
    judged = [set(note.unreached) for notes in evidence.steps for note in notes
              if note.own is not None or note.pieces]
    never = set.intersection(*judged) if judged else ()
    if not never:
        return []
    used = {_kind(name) for i, name in enumerate(evidence.names) if i not in never}
    names = [evidence.names[i] for i in sorted(never)]
    if all(_kind(name) in used for name in names):
        evidence.remark(f"not used by the loss in these steps: {few(names)}; others of "
                        "their kind are")
        return []
    if evidence.runs[0].finds_unused:
        evidence.remark("not used by the loss, as find_unused_parameters says: "
                        f"{', '.join(names)}")
        return []
    return [finding("unused-parameter", len(names), f"no rank's loss depends on "
                    f"{few(names)}", None, 0, names[0])]


def _kind(name):
    """Return the name without numbers, one for all experts, say, of one layer."""
    return re.sub(r"\d+", "#", name)


def copies(evidence):
    """Say where a frozen copy of the model, which nobody named, differs on ranks."""
    for setups in [[note.setup for note in notes] for notes in evidence.steps]:
        for name, one in (setups[0].copies if all(setups) else {}).items():
            if any(setup.copies.get(name, one) != one for setup in setups):
                evidence.skip("a copy of the model that is not trained, as an average "
                              "of weights", f"{name} is not the same on all ranks: "
                              "right if one rank alone uses it")
                return []
    return []


def remarks(evidence):
    """Say what is no mistake, and should be known."""
    if evidence.runs[0].failed:
        evidence.remark(f"`loss` was not asked: {evidence.runs[0].failed}")
    if len(evidence.runs) > 1 and evidence.own_norms:
        layers = so_many(evidence.own_norms, "layer")
        evidence.remark(f"batch norm ({layers}) takes the mean and variance "
                        "of a rank's own rows, not of the minibatch: SyncBatchNorm, or "
                        "group norm, if shards are small")
    if any(note.gathered for notes in evidence.steps for note in notes):
        evidence.remark("dist.all_gather hands no gradient back: in a loss, each rank "
                        "must put its own part in again")
    if evidence.watched and any(note.foreign and note.rates for notes in evidence.steps
                                for note in notes):
        evidence.skip("an optimizer of other tensors", "no model that is watched holds "
                      "them; watch(model, optimizer, ...) takes several")
    wanted = max(evidence.runs[0].trainable, 1)
    for notes in evidence.steps[:1] if len(evidence.runs) > 1 else ():
        # several forwards of one backward are all-reduced once
        times = max(min(note.synced, len(note.pieces)) + note.summed // wanted
                    for note in notes)
        forwards = len(notes[0].all_rows)
        other = evidence.runs[0].several or evidence.split or notes[0].inside
        if times > 1 and forwards and not other and notes[0].moved is not False:
            evidence.remark(f"gradients are all-reduced {times} times in a step of "
                            f"{so_many(forwards, 'forward')}: no_sync, or "
                            "one of the two, would save the rest")
    return []


def at_rest(evidence):
    """Ask that some weights move, or that there is a reason."""
    told = {note.moved for notes in evidence.steps for note in notes}
    return [] if evidence.findings or told != {False} else [
        finding("nothing-moved", len(evidence.runs), "no rank's weights changed")]


RULES = [alias, *ROWS, averages, moved, set_up, updates, unused, seeds, draws, noise,
         aims, drift, strangers, gradients, clips, copies, remarks, plateaus, schedules,
         later, learning_rate, other_step, beside, at_rest]
