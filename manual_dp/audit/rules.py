"""From what the ranks recorded to findings.

1. What is wrong whatever a step comes to: samplers, what is not trained, ...
2. Is the step the one that the same code takes alone? Then it is right.
3. Else: where do ranks part first? The weights before, the rows, the gradients, the
   update, the weights after. The first broken link is the finding: what follows from
   it is not told.
"""

import math

import torch

from manual_dp.audit import losses, mixing
from manual_dp.audit.notes import Step
from manual_dp.audit.report import WORDS, few, finding
from manual_dp.audit.rows import dealt, shared
from manual_dp.audit.sketch import mixture
from manual_dp.audit.state import differ

ORDER = [*WORDS]
FOLLOWS = {"start-differs", "gradient", "replicas-differ", "state-differs", "buffers"}
OWN = {"replicas-differ", "state-differs", "buffers"}  # to each rank, in local SGD
BESIDE = "the step beside one device's: "
DEALS = {"sampler-differs", "sampler-epoch", "no-sampler"}


def judge(runs, alone=None, watched=False, ignored=()):
    """Return (findings, remarks, unchecked); what follows from ignored ones counts."""
    remarks, unchecked = [], []
    if why := next((run.unjudged for run in runs if run.unjudged), ""):
        return [], [], [why]
    if found := next(_other_models(runs), None):
        return [found], [], []
    steps = [Step(t, runs, alone, watched, remarks, unchecked)
             for t in sorted({u.t for run in runs for u in run.updates})]
    found = [*dealt(runs, watched), *_facts(runs, watched)]
    local, masks = _local(steps), [run.masks for run in runs]
    if len(runs) > 1 and masks[0] and all(one == masks[0] for one in masks):
        remarks.append("dropout was set aside; with these seeds all ranks would draw "
                       "the same masks: seed each with seed + rank")
    if local:
        unchecked.append("the gradients: ranks step on their own, and average their "
                         "weights (local SGD)")
    for step in steps:
        links = sorted(_links(step, local), key=lambda f: ORDER.index(f.code))
        if links:
            broken = links[0]
            known = {f.code for f in found} - {*ignored}
            line = next((u.line for us in step.updates for u in us if u.line), "")
            if not (broken.code in known or known and broken.code in FOLLOWS
                    or known & DEALS and broken.code.startswith("rows-")):
                found.append(broken._replace(step=step.t, place=line))
            break
    return found, [] if found else remarks, unchecked


# whatever a step comes to

def _other_models(runs):
    first = runs[0]
    for rank, run in enumerate(runs):
        if (run.names, run.shapes) != (first.names, first.shapes):
            yield finding("start-differs", f"rank {rank} has other parameters than rank"
                          " 0, or of other shapes", rank)
        elif run.wants != first.wants:
            i = next(i for i, want in enumerate(run.wants) if want != first.wants[i])
            yield finding("settings", f"requires_grad of {first.names[i]} is "
                          f"{run.wants[i]} on rank {rank}, not so on rank 0", rank)


def _facts(runs, watched):
    """Return what needs no step to be known, in a list."""
    for rank, run in enumerate(runs):
        if run.broken:
            return [finding("not-finite", f"NaN or inf in {few(run.broken)}", rank)]
    unheld = [n for n in runs[0].unheld if all(n in run.unheld for run in runs)]
    if unheld and (runs[0].updates or not watched):
        return [finding("not-trained", f"no optimizer holds {few(unheld)}")]
    silent = [run.silent for run in runs]  # where these differ, rows choose experts
    if silent[0] and all(one == silent[0] for one in silent):
        return [finding("not-trained", f"no loss depends on {few(silent[0])}")]
    idle = not runs[0].updates and all(run.idle for run in runs) and not watched
    return [finding("not-trained", "no update of the weights")] if idle else []


# the chain of a step

def _local(steps):
    """Return "each" or "some" if ranks step on their own, and meet in so many steps.

    They meet where weights that were not alike after a step are so before a later one.
    """
    full = [step for step in steps if all(step.updates)]
    own = [step for step in full if all(u.after is not None for u in step.last)
           and [*_parted([u.after for u in step.last], step, "", "replicas-differ")]]
    meet = [step for step in full if own and step.t >= own[0].t and not [*_after(step)]]
    if not meet or all(step.proof for step in own):
        return ""
    return "each" if all(step in meet for step in own) else "some"


def _links(step, local):
    """Return the findings of one step, of which the caller takes the first."""
    counts = [len(us) for us in step.updates]
    if len(set(counts)) > 1:
        who, most = counts.index(min(counts)), counts.index(max(counts))
        return [finding("mismatch" if min(counts) else "not-trained",
                        f"rank {who} takes {min(counts)} updates in the step, rank "
                        f"{most} takes {max(counts)}", who)]
    broken = [*_before(step), *_set_up(step), *_random(step)]
    for us in zip(*step.updates):
        if found := [*_stale(us, step), *_nothing(us)]:
            return broken + found
    rows = [*shared(step)]
    if step.proof:
        rows = [f for f in rows if f.code == "rows-same"]
        return [*broken, *rows, *_after(step)]
    if local:
        alike = set() if local == "each" and not step.watched else OWN
        return [f for f in [*broken, *rows] if f.code not in alike]
    broken += [*rows, *_clips(step), *_gradients(step), *_after(step)]
    if step.proof is False and not broken:
        broken += _other_update(step)
    if step.proof is None and step.why and not broken and all(
            BESIDE not in why for why in step.unchecked):  # more follows from the first
        step.unchecked.append(BESIDE + step.why)
    return broken


def _before(step):
    later = step.t > step.runs[0].updates[0].t
    yield from _parted([u.start for u in step.first], step, "before the step",
                       "replicas-differ" if later else "start-differs")


def _after(step):
    yield from _parted([u.stop for u in step.last], step, "after the update",
                       "replicas-differ")


def _parted(weights, step, when, code):
    """Yield the finding for the first parameter that ranks have not alike."""
    for i, name in enumerate(step.names):
        each = [w[i] for w in weights]
        if name not in step.runs[0].apart and (far := step.far(each)):
            who = next(r for r, w in enumerate(each) if not torch.equal(w, each[0]))
            yield finding(code, f"{when} {name} is {far:.1e} from rank 0's on rank "
                          f"{who}", who)
            return


def _set_up(step):
    if step.world_size > 1:
        begins = step.t == step.runs[0].updates[0].t
        for f in differ([u.state for u in step.first]):
            yield finding("start-differs", f"the buffer {f.says}", f.rank) if (
                begins and f.code == "buffers") else f
        yield from differ([u.end for u in step.last], common=True)


def _random(step):
    first, drew = step.first, any(u.drew for u in step.last)
    masks = all(u.noisy for u in first) and len({u.rng for u in first}) == 1
    seeds = first[0].seeds and all(u.seeds == first[0].seeds for u in first)
    if step.world_size > 1 and not step.proof and (masks or drew and seeds):
        yield finding("random-same", "all ranks draw the same random numbers")


def _stale(us, step):
    """Yield the finding for a gradient that was there before this update's backward."""
    left = [u.left for u in us if u.left is not None]
    if not left or any(u.used is None or not u.pieces for u in us):
        return
    came = [u.came for u in us]
    for u in us:
        both = mixture(u.used, came + left, step.close)
        if both is None or sum(both[len(us):]) < 1e-3 or mixture(
                u.used, came, step.close):
            return
    yield finding("stale", "the gradient of the step before is in what is applied")


def _nothing(us):
    if all(u.pieces for u in us) and sum(float(u.came.norm()) for u in us) < 1e-14 or (
            all(u.used is not None and not float(u.used.norm()) for u in us)):
        yield finding("not-trained", "every gradient is 0: the loss does not change "
                      "with the weights")


def _gradients(step):
    """Return the findings about what ranks applied, in each update."""
    ones = step.alone if len(step.alone) == len(step.updates[0]) else [None] * len(
        step.updates[0])
    return [found for us, one in zip(zip(*step.updates), ones)
            if (found := _mixed(us, one, step))]


def _mixed(us, one, step):
    if any(not u.pieces for u in us):
        step.unchecked.append("the gradients: no backward was heard before a step")
        return finding("gradient", "the step is not the one of world size 1"
                       ) if step.proof is False and one else None
    by_hand, size = not us[0].held, float(us[0].start.norm())
    used = [u.start - u.stop if by_hand else u.used for u in us]
    if any(x is None for x in used):
        step.unchecked.append("the gradients: ranks share out the parameters")
        return None
    mixed = mixing.Mixed(
        [u.came for u in us], used, [u.held or [*range(len(u.came))] for u in us],
        [u.pieces for u in us], close=step.close, noise=1e-15 * size * by_hand,
        by_hand=by_hand, clipped=any(u.clips for u in us),
        past=step.runs[0].wrapped and not any(u.synced for u in us))
    alone = one and (one.start - one.stop if by_hand else one.used)
    if alone is not None and alone.shape == used[0].shape and step.proof is False:
        mixed.alone = alone
    C = mixed.matrix()
    if None not in C:
        return _read(C, us, mixed, step)
    if len(set(map(tuple, mixed.held))) > 1 or step.world_size == 1:
        return None
    if found := mixing.by_pieces(mixed) or mixing.by_parameter(mixed, step.names):
        return found
    if step.proof is False:
        return finding("gradient", "what all ranks apply is no mixture of what came "
                       "back to them, nor one device's gradient")
    step.unchecked.append("the gradients: what all ranks apply is no mixture of what "
                          "came back: right if it was changed on all alike")
    return None


def _read(C, us, mixed, step):
    """Return the finding that the matrix is; without one device, what losses say."""
    known = mixed.alone is not None
    one = mixed.fit(0, mixed.came, mixed.alone) if known else None
    if found := mixing.read(C, one, mixed):
        return found
    if known and one is None:
        return finding("gradient", "all ranks apply one mean of what came back to them,"
                       " and that is not one device's gradient")
    if one and all(abs(one[k]) > 1e-9 for k in mixed.live) or step.world_size == 1:
        return None
    alike, total = mixed.alike(C[0]), sum(C[0])
    scale = mixing.scaled(total, mixed) if alike and not mixed.by_hand else None
    scale = scale if scale and scale.code in ("sum", "averaged-twice") else None
    scale = scale and scale._replace(
        says=f"gradients are {total:.4g} times the mean of the ranks'")
    if step.watched:
        found, why = losses.counted([u.terms for u in us], C[0], mixed.near)
        if why and not scale:
            step.unchecked.append(why)
        return found or (scale if why else None)
    return scale if step.proof is None else None


# the update

def _clips(step):
    """Yield the finding for ranks that clip to other norms, or not as often."""
    first = step.last[0].clips
    near = 10 * step.close
    for rank, u in enumerate(step.last):
        if len(u.clips) != len(first) or any(
                most != its or not math.isclose(norm, other, rel_tol=near)
                for (most, norm), (its, other) in zip(u.clips, first)):
            told = [", ".join(f"a norm of {norm:.4g} to {most:.4g}"
                              for most, norm in one) or "nothing"
                    for one in (u.clips, first)]
            yield finding("clip", f"rank {rank} clips {told[0]}; rank 0 {told[1]}",
                          rank)
            return


def _other_update(step):
    """Return why ranks take another step than one device, with the same gradient."""
    if len(step.updates[0]) != len(step.alone):
        return [finding("accumulation", f"{len(step.updates[0])} updates a step, "
                        f"{len(step.alone)} on one device")]
    u, its = step.last[0], step.alone[-1]
    for (most, _), (other, _) in zip(u.clips, its.clips):
        if most != other:
            return [finding("clip", f"max_norm is {most:.4g} on {step.world_size} ranks"
                            f", {other:.4g} on one")]
    for key, value in u.end.items():
        if key[0] == "settings" and its.end.get(key, value) != value:
            return [finding("settings", f"{key[1]} is {value} on {step.world_size} "
                            f"ranks, {its.end[key]} on one, and the rows are the same")]
    return [finding("gradient", "every rank has one device's gradient, but takes "
                    "another step")]
