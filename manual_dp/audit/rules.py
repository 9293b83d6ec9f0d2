"""From what the ranks recorded to findings.

1. What is wrong whatever a step comes to: samplers, what is not trained, ...
2. Is the step the one that the same code takes alone? Then it is right.
3. Else: where do ranks part first? The weights before, the rows, the gradients, the
   update, the weights after. The first broken link is the finding: what follows from
   it is not told.
"""

import math
from itertools import repeat

import torch

from manual_dp.audit import mixing
from manual_dp.audit.notes import Step
from manual_dp.audit.report import WORDS, few, finding, numbers
from manual_dp.audit.rows import dealt, shared
from manual_dp.audit.sketch import mixture
from manual_dp.audit.state import differ

ORDER = [*WORDS]
BESIDE = "the step beside one device's: "
UNKNOWN = "whether the loss is divided rightly: "


def judge(runs, alone=None, watched=False):
    """Return (findings, what was not checked): one finding, or none."""
    if why := next((run.unjudged for run in runs if run.unjudged), ""):
        return [], [why]
    for rank, run in enumerate(runs):
        if (run.names, run.shapes) != (runs[0].names, runs[0].shapes):
            return [
                finding(
                    "start-differs",
                    f"rank {rank} has other parameters than rank 0, or of other shapes",
                    rank,
                )
            ], []
    if found := [*dealt(runs, watched), *_facts(runs, watched)]:
        return found[:1], []
    unchecked = []
    steps = [
        Step(t, runs, alone, watched, unchecked)
        for t in sorted({u.t for run in runs for u in run.updates})
    ]
    if _local(steps):
        return [], [
            "the steps: ranks step on their own, and average their weights (local SGD)"
        ]
    for step in steps:
        if links := sorted(_links(step), key=lambda f: ORDER.index(f.code)):
            line = next((u.line for us in step.updates for u in us if u.line), "")
            return [links[0]._replace(step=step.t, place=line)], unchecked
    return [], unchecked


# whatever a step comes to


def _facts(runs, watched):
    """Return what needs no step to be known, in a list."""
    for rank, run in enumerate(runs):
        if run.broken:
            return [finding("not-finite", f"NaN or inf in {few(run.broken)}", rank)]
    unheld = [n for n in runs[0].unheld if all(n in run.unheld for run in runs)]
    if unheld and (runs[0].updates or not watched):
        return [finding("not-trained", f"no optimizer holds {few(unheld)}")]
    idle = not runs[0].updates and all(run.idle for run in runs) and not watched
    return [finding("not-trained", "no update of the weights")] if idle else []


# the chain of a step


def _local(steps):
    """Return whether ranks step on their own, and meet again later."""
    steps = [step for step in steps if all(step.updates) and not step.proof]
    own = [
        step.t
        for step in steps
        if all(u.after is not None for u in step.last)
        and [*_parted([u.after for u in step.last], step, "", "replicas-differ")]
    ]
    return any(own and step.t >= own[0] and not [*_after(step)] for step in steps)


def _links(step):
    """Return the findings of one step, of which the caller takes the first."""
    counts = [len(us) for us in step.updates]
    if len(set(counts)) > 1:
        who, most = counts.index(min(counts)), counts.index(max(counts))
        return [
            finding(
                "mismatch",
                f"rank {who} takes {min(counts)} updates in the "
                f"step, rank {most} takes {max(counts)}",
                who,
            )
        ]
    broken = [*_set_up(step), *_random(step)]
    for us in zip(*step.updates):
        if found := [*_stale(us, step), *_nothing(us)]:
            return broken + found
    rows = [*shared(step)]
    if step.proof:
        rows = [f for f in rows if f.code == "rows-same"]
        return [*broken, *rows, *_after(step)]
    broken += [*rows, *_clips(step), *_gradients(step), *_after(step)]
    if step.proof is False and not broken:
        broken += _other_update(step)
    if (
        step.proof is None
        and step.why
        and not broken
        and all(BESIDE not in why for why in step.unchecked)
    ):  # more follows from the first
        step.unchecked.append(BESIDE + step.why)
    return broken


def _after(step):
    yield from _parted(
        [u.stop for u in step.last], step, "after the update", "replicas-differ"
    )


def _parted(weights, step, when, code):
    """Yield the finding for the first parameter that ranks have not alike."""
    for i, name in enumerate(step.names[: step.runs[0].inside]):
        each = [w[i] for w in weights]
        if far := step.far(each):
            who = next(r for r, w in enumerate(each) if not torch.equal(w, each[0]))
            yield finding(
                code, f"{when} {name} is {far:.1e} from rank 0's on rank {who}", who
            )
            return


def _set_up(step):
    begins = step.t == step.runs[0].updates[0].t
    if begins:  # later it is what stood after the update before
        yield from _parted(
            [u.start for u in step.first], step, "before the step", "start-differs"
        )
    for f in differ([u.state for u in step.first]):
        yield (
            finding("start-differs", f"the buffer {f.says}", f.rank)
            if (begins and f.code == "buffers")
            else f
        )


def _random(step):
    masks = all(u.noisy for u in step.first) and len({u.rng for u in step.first}) == 1
    if masks and step.world_size > 1 and not step.proof:
        yield finding("random-same", "all ranks draw the same random numbers")


def _stale(us, step):
    """Yield the finding for a gradient that was there before this update's backward."""
    left = [u.left for u in us if u.left is not None]
    if not left or any(u.used is None or not u.pieces for u in us):
        return
    came = [u.came for u in us]
    for u in us:
        both = mixture(u.used, came + left, step.close)
        if (
            both is None
            or sum(both[len(us) :]) < 1e-3
            or mixture(u.used, came, step.close)
        ):
            return
    yield finding("stale", "the gradient of the step before is in what is applied")


def _nothing(us):
    if (
        all(u.pieces for u in us)
        and sum(float(u.came.norm()) for u in us) < 1e-14
        or (all(u.used is not None and not float(u.used.norm()) for u in us))
    ):
        yield finding(
            "not-trained",
            "every gradient is 0: the loss does not change with the weights",
        )


def _gradients(step):
    """Return the findings about what ranks applied, in each update."""
    ones = step.alone if len(step.alone) == len(step.updates[0]) else repeat(None)
    return [
        found
        for us, one in zip(zip(*step.updates), ones)
        if step.world_size > 1 and (found := _mixed(us, one, step))
    ]


def _mixed(us, one, step):
    if any(not u.pieces or not u.held for u in us):
        if step.proof is False and one:
            return finding("gradient", "the step is not the one of world size 1")
        step.unchecked.append(
            "the gradients: no optimizer's step was heard after a backward"
        )
        return None
    if any(u.held != us[0].held for u in us):
        step.unchecked.append("the gradients: ranks share out the parameters")
        return None
    known = step.proof is False and one and one.used is not None
    mixed = mixing.Mixed(
        us,
        one if known else None,
        step.close,
        step.runs[0].wrapped and not any(u.synced for u in us),
    )
    C = mixed.matrix()
    if None not in C:
        found = mixing.read(C, mixed)
        return found if found or known else _scale(C[0], us, mixed, step)
    if found := mixing.by_pieces(mixed):
        return found
    for i, *rows in zip(us[0].held, *mixed.used):
        if step.far(rows):
            return finding(
                "not-synchronised",
                f"ranks apply different gradients of {step.names[i]}",
            )
    if step.proof is False:
        return finding(
            "gradient",
            "what all ranks apply is no mixture of what came "
            "back to them, nor one device's gradient",
        )
    step.unchecked.append(
        "the gradients: what all ranks apply is no mixture of what "
        "came back: right if it was changed on all alike"
    )
    return None


def _scale(c, us, mixed, step):
    """Return what, without one device, the sum of a row of C and the losses say."""
    scale = mixing.scaled(sum(c), mixed) if mixed.alike(c) else None
    scale = scale if scale and scale.code in ("sum", "averaged-twice") else None
    scale = scale and scale._replace(
        says=f"gradients are {sum(c):.4g} times the mean of the ranks'"
    )
    if step.watched:
        found, why = counted([u.terms for u in us], c, mixed.near)
        if why and not scale:
            step.unchecked.append(why)
        return found or (scale if why else None)
    return scale if step.proof is None else None


def counted(terms, c, near):
    """Return (finding, why nothing is known), one of them or none.

    terms: a list of (n, each) of each rank. c: how often each rank's gradient counts.
    """
    told = [(n, each * c[k]) for k, mine in enumerate(terms) for n, each in mine]
    if not all(terms):
        return None, UNKNOWN + "no loss of torch.nn.functional was heard"
    total, counts = sum(n * each for n, each in told), [each for _, each in told]
    means = [n * each for n, each in told]
    if max(counts) - min(counts) > near * max(counts):
        if max(means) - min(means) <= near * max(means):
            sizes = numbers(n for n, _ in told)
            return finding(
                "uneven-shards", f"means of {sizes} terms count alike: each term should"
            ), ""
        return None, UNKNOWN + (
            "its terms do not count alike: right if these are their weights"
        )
    n, raw = told[0][0], [one for mine in terms for one in mine]
    if n > 1 and all(m == n and abs(each - 1) <= near for m, each in raw):
        return None, UNKNOWN + (
            f"the loss is a sum over {n} terms, not a mean: right "
            "only if you wanted a sum"
        )
    if abs(total - 1) > near:
        return None, UNKNOWN + (
            f"losses count {total:.4g} times in a step: right if this is their weight"
        )
    return None, ""


# the update


def _clips(step):
    """Yield the finding for ranks that clip to other norms, or not as often."""
    first, near = step.last[0].clips, 10 * step.close
    for rank, u in enumerate(step.last):
        if len(u.clips) != len(first) or any(
            most != its or not math.isclose(norm, other, rel_tol=near)
            for (most, norm), (its, other) in zip(u.clips, first)
        ):
            told = [
                ", ".join(f"a norm of {norm:.4g} to {most:.4g}" for most, norm in one)
                or "nothing"
                for one in (u.clips, first)
            ]
            yield finding(
                "clip", f"rank {rank} clips {told[0]}; rank 0 {told[1]}", rank
            )
            return


def _other_update(step):
    """Return why ranks take another step than one device, with the same gradient."""
    if len(step.updates[0]) != len(step.alone):
        return [
            finding(
                "gradient",
                f"{len(step.updates[0])} updates a step, "
                f"{len(step.alone)} on one device",
            )
        ]
    its = step.alone[-1].state
    for key, value in step.last[0].state.items():
        if key[0] == "settings" and its.get(key, value) != value:
            return [
                finding(
                    "settings",
                    f"{key[1]} is {value} on {step.world_size} "
                    f"ranks, {its[key]} on one, and the rows are the same",
                )
            ]
    return [
        finding(
            "gradient", "every rank has one device's gradient, but takes another step"
        )
    ]
