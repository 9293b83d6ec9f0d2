"""From what the ranks noted to findings: nothing is computed on weights here.

    judge        (findings, remarks) of the evidence
    RULES        functions of an `Evidence`, each returns findings; append your own
    set_up alias drift            the model: is it one and the same on all ranks?
    moved updates unused syncs    the step: do all ranks take it, and once?
    batch_norm learning_rate at_rest   is it the step that a single device takes?

A later rule may look at the findings of those before it. Those about gradients and
about rows are in gradient.py and rows.py.
"""

import math

from manual_dp.audit.catalogue import WORDS, few, finding, ranks
from manual_dp.audit.gradient import gradients
from manual_dp.audit.records import each_step
from manual_dp.audit.rows import batches, rows, samplers
from manual_dp.audit.settings import ask_setups


def judge(evidence):
    """Ask every rule; return (findings, remarks), causes first."""
    for rule in RULES:
        evidence.findings += rule(evidence)
    in_order = sorted(evidence.findings, key=lambda f: list(WORDS).index(f.code))
    return in_order, evidence.remarks


# the model

def set_up(evidence):
    """Ask that every rank has set up the same; the first moment of each code counts."""
    found = []
    for step, setups, alone in evidence.setups:
        known = {f.code for f in found}
        if None not in setups:
            found += [f for f in ask_setups(setups, alone, step) if f.code not in known]
    return found


def alias(evidence):
    """Ask that no parameter is on the memory of another tensor."""
    return [finding("alias", 1, f"{run.shared[0]} of rank {rank} is on the memory of "
                    f"{run.shared[1]}", rank, 0, run.shared[0])
            for rank, run in enumerate(evidence.runs) if run.shared][:1]


def drift(evidence):
    """Ask that ranks have the same weights and, where noted, gradients."""
    return [_parted(evidence, *one) for one in evidence.runs[0].drifts]


def _parted(evidence, t, when, i, who, far):
    if i is None:
        return finding("not-synchronised", far, "some rank has no gradient")
    code, place = {
        "before": ("start-differs", "before the first step "),
        "after": ("replicas-differ", "" if t is None else f"since step {t} "),
        "gradient": ("not-synchronised", "the gradient of ")}[when]
    changed = [rank for rank, run in enumerate(evidence.runs) for note in run.steps
               if note.t == t and note.changed and when == "after"]
    rank, name = who[0], evidence.names[i]
    if 0 < len(changed) < len(evidence.runs) and not evidence.findings:
        code, rank = "weights-changed", changed[0]
        place = f"{ranks(changed)} wrote the weights after the optimizer's step; "
    return finding(code, far, f"{place}{name} is {far:.1e} from rank 0's on "
                   f"{ranks(who)}", rank, t, name)


# the step

@each_step
def moved(notes, evidence):
    """Ask that the optimizer holds the parameters, and that every rank's move."""
    if all(note.own is not None and not note.own.any() for note in notes):
        return  # said as no-gradient
    still = [rank for rank, note in enumerate(notes) if note.moved is False]
    if notes[0].foreign and not notes[0].rates:
        yield finding("not-in-optimizer", 0, "the optimizer holds none of the model's "
                      "parameters")
    elif still and (len(still) < len(notes) or notes[0].t == 0 and any(
            note.updates or note.own is not None for note in notes)):
        yield finding("nothing-moved", len(still), f"the weights of {ranks(still)} did "
                      "not change", still[0])


@each_step
def updates(notes, evidence):
    """Ask that the optimizer takes one step for a minibatch."""
    times = max(note.updates for note in notes)
    if times > 1:
        yield finding("accumulation", times, f"the optimizer steps {times} times for "
                      f"one minibatch, after {len(notes[0].all_rows)} forwards")


def unused(evidence):
    """Ask that the loss of some rank depends on every parameter."""
    judged = [set(note.unreached) for notes in evidence.steps for note in notes
              if note.own is not None]
    never = set.intersection(*judged) if judged else ()
    if not never:
        return []
    names = [evidence.names[i] for i in sorted(never)]
    if evidence.runs[0].finds_unused:
        evidence.remark("not used by the loss, as find_unused_parameters says: "
                        f"{', '.join(names)}")
        return []
    return [finding("unused-parameter", len(names), f"no rank's loss depends on "
                    f"{few(names)}", None, 0, names[0])]


@each_step
def syncs(notes, evidence):
    """Ask that gradients are all-reduced once a step."""
    wanted = max(evidence.runs[0].trainable, 1)
    times = max(note.synced + note.summed // wanted for note in notes)
    if times > 1 and len(notes) > 1:
        yield finding("syncs", times, f"gradients are all-reduced {times} times in a "
                      f"step of {len(notes[0].all_rows)} forwards")


def batch_norm(evidence):
    """Ask that the minibatch has the same gradient in one forward as in shards."""
    if any(f.code.startswith(("rows", "start", "batches")) for f in evidence.findings):
        return []  # then it is another minibatch, or another model
    notes = evidence.steps[0] if evidence.steps else []
    if len(notes) < 2 or any(note.whole is None for note in notes):
        return []
    whole = sum(note.whole for note in notes)
    right = sum(note.own for note in notes) / sum(note.weight for note in notes)
    far = float((whole - right).norm() / max(float(whole.norm()), 1e-300))
    return [] if far <= 1e-6 else [
        finding("batch-norm", far, "with the minibatch in one forward the gradient is "
                f"another one, by {far:.1e} of it", None, 0)]


def learning_rate(evidence):
    """Ask that lr fits the rows of a step, compared with world size 1; say how.

    Same rows a step: nothing changes. World size times the rows, as with fixed rows a
    rank: lr grows too, linearly for SGD (Goyal et al. 2017), by the square root for
    Adam (Malladi et al. 2022), in either case with warm-up.
    """
    if not evidence.alone or not evidence.steps or len(evidence.runs) < 2:
        return []
    if any(f.code.startswith("rows") for f in evidence.findings):
        return []  # then it is not known how many rows are meant
    notes, alone = evidence.steps[0], evidence.alone[0]
    i = next(iter(notes[0].rates), None)
    lr, base = notes[0].rates.get(i), alone[0].rates.get(i)
    size, size_alone = _step_rows(notes), _step_rows(alone)
    if not (base and lr and size and size_alone):
        return []
    grown, ratio = size / size_alone, lr / base
    kind, rule = "linear for SGD", grown
    if "Adam" in notes[0].kind:
        kind, rule = "square root for Adam", math.sqrt(grown)
    says = (f"{size} rows a step and lr {lr:.4g} on {len(notes)} ranks, {size_alone} "
            f"rows and {base:.4g} on one")
    if math.isclose(ratio, rule, rel_tol=1e-2):
        regime = ("same rows a step, so no scaling of lr" if grown == 1 else
                  f"fixed rows a rank, lr scaled ({kind}; use warm-up)")
    elif math.isclose(ratio, 1, rel_tol=1e-9):
        regime = (f"fixed rows a rank, lr not scaled (the rule, {kind}, with warm-up, "
                  f"would be {base * rule:.4g})")
    else:
        says += (f": the minibatch is the same, lr is {ratio:.4g} times" if grown == 1
                 else f": lr is {ratio:.4g} times, the rule ({kind}) says {rule:.4g}")
        return [finding("learning-rate", ratio, says, None, 0)]
    evidence.remark(f"{regime}: {says}")
    return []


def _step_rows(notes):
    """Return the rows of a step, 0 if they are not known."""
    lists = [rows for note in notes for rows in note.rows]
    return 0 if None in lists else sum(map(len, lists))


def at_rest(evidence):
    """Ask that some weights move, or that there is a reason."""
    told = {note.moved for notes in evidence.steps for note in notes}
    return [] if evidence.findings or told != {False} else [
        finding("nothing-moved", len(evidence.runs), "no rank's weights changed")]


RULES = [set_up, alias, samplers, batches, rows, moved, updates, unused, gradients,
         drift, syncs, batch_norm, learning_rate, at_rest]
