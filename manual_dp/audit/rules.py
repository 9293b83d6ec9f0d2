"""From what the ranks measured to findings: nothing is computed on weights here.

    judge     (findings, remarks) of a run

Rows are judged in audit_samples.py, learning rates in audit_rates.py, gradients in
audit_alone.py; here what is left, and the order.

Each finding is reported once, for the first step that shows it.
"""

from manual_dp.audit.alone import gradients
from manual_dp.audit.catalogue import finding, in_order, ranks
from manual_dp.audit.gradient import rows_of
from manual_dp.audit.rates import learning_rate, rates
from manual_dp.audit.samples import batches, sampler, samples, some


def judge(runs, alone=None, lr=None):
    """Return (findings, remarks).

    runs: the records of all ranks. alone: the record of the same code at world size 1,
    of some first steps, or None. lr: what a step by hand multiplies the mean gradient
    by, or None.
    """
    steps = [[run["steps"][t] for run in runs] for t in range(len(runs[0]["steps"]))]
    findings, remarks = _alias(runs), []
    findings += sampler([run.get("samplers", []) for run in runs])
    for check in (batches, samples, _moved, _updates, rates):
        findings += _first(check, steps)
    findings += _unused(runs, steps, remarks)
    findings += gradients(runs, steps, alone, lr, remarks)
    findings += _replicas(runs, steps, findings)
    findings += _first(lambda t, notes: _buffers(t, notes, runs), steps)
    findings += _first(lambda t, notes: _syncs(t, notes, runs), steps)
    if len(runs) > 1:
        findings += _batch_norm(steps[0], findings)
        findings += learning_rate(steps[0], alone, remarks)
    if not any(note["moved"] for notes in steps for note in notes) and not findings:
        findings = [finding("nothing-moved", len(runs), "no rank's weights changed")]
    return in_order(findings), remarks


def _alias(runs):
    if runs[0].get("shared") is None:
        return []
    rank, i = runs[0]["shared"]
    name = runs[0]["names"][i]
    return [finding("alias", 1, f"{name} of rank {rank} is on the memory of another "
                    "replica's", rank, 0, name)]


def _first(check, steps):
    for t, notes in enumerate(steps):
        found = check(t, notes)
        if found:
            return found
    return []


def _moved(t, notes):
    still = [rank for rank, note in enumerate(notes) if not note["moved"]]
    if all(note["own"] is not None and not note["own"].any() for note in notes):
        return []  # said as no-gradient
    if notes[0]["foreign"] and not notes[0]["rates"]:
        return [finding("not-in-optimizer", 0, "the optimizer holds none of the "
                        "model's parameters", None, t)]
    if still and len(still) < len(notes) or still and t == 0 and any(
            note["updates"] or note["own"] is not None for note in notes):
        return [finding("nothing-moved", len(still), f"the weights of {ranks(still)} "
                        "did not change", still[0], t)]
    return []


def _updates(t, notes):
    times = max(note["updates"] for note in notes)
    if times > 1:
        return [finding("accumulation", times, f"the optimizer steps {times} times for "
                        f"one minibatch, after {notes[0]['forwards']} forwards", None,
                        t)]
    return []


def _unused(runs, steps, remarks):
    never = set(range(len(runs[0]["names"])))
    judged = [note for notes in steps for note in notes if note["own"] is not None]
    for note in judged:
        never &= set(note["unreached"])
    if not judged or not never:
        return []
    names = [runs[0]["names"][i] for i in sorted(never)]
    if runs[0]["finds_unused"]:
        remarks.append(f"not used by the loss, as find_unused_parameters says: "
                       f"{', '.join(names)}")
        return []
    return [finding("unused-parameter", len(names), f"no rank's loss depends on "
                    f"{some(names)}", None, 0, names[0])]


def _replicas(runs, steps, findings):
    drift = runs[0]["drift"]
    if drift is None:
        return []
    t, when, i, distances = drift
    name, far = runs[0]["names"][i], max(distances)
    who = [rank for rank, d in enumerate(distances) if d > 0] or [1]
    says = f"{name} is {far:.1e} from rank 0's on {ranks(who)}"
    if when == "before":
        return [finding("start-differs", far, f"before the first step {says}", who[0],
                        0, name)]
    changed = [rank for rank, note in enumerate(steps[t]) if note["changed"]]
    if changed and len(changed) < len(runs) and not findings:
        return [finding("weights-changed", far, f"{ranks(changed)} wrote the weights "
                        f"after the optimizer's step; {says}", changed[0], t, name)]
    return [finding("replicas-differ", far, f"since step {t} {says}", who[0], t, name)]


def _buffers(t, notes, runs):
    lists = [note["buffers"][0] for note in notes if note["buffers"]]
    if t == 0 or len(lists) < len(notes):
        return []
    for i, name in enumerate(runs[0]["buffer_names"]):
        values = [mine[i] for mine in lists]
        who = [rank for rank, value in enumerate(values) if value != values[0]]
        if who:
            return [finding("buffers", len(who), f"{name} on {ranks(who)} is not rank "
                            f"0's when step {t} begins", who[0], t, name)]
    return []


def _syncs(t, notes, runs):
    wanted = sum(size for size, frozen in zip(runs[0]["sizes"], runs[0]["frozen"])
                 if not frozen)
    times = max(note["synced"] + note["summed"] // max(wanted, 1) for note in notes)
    if times > 1 and len(notes) > 1:
        return [finding("syncs", times, f"gradients are all-reduced {times} times in a "
                        f"step of {notes[0]['forwards']} forwards", None, t)]
    return []


def _batch_norm(notes, findings):
    if any(f.code.startswith(("rows", "start", "batches")) for f in findings):
        return []  # then it is another minibatch, or another model
    if any(note.get("whole") is None for note in notes):
        return []
    whole = sum(note["whole"] for note in notes)
    right = sum(note["own"] for note in notes) / sum(map(rows_of, notes))
    far = float((whole - right).norm() / max(float(whole.norm()), 1e-300))
    if far > 1e-6:
        return [finding("batch-norm", far, f"with the minibatch in one forward the "
                        f"gradient is another one, by {far:.1e} of it", None, 0)]
    return []
