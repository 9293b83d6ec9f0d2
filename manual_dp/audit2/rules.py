"""From what the ranks recorded to findings.

    judge   (findings, remarks, unchecked) of the runs of all ranks, and of one alone

1. What is wrong whatever the step comes to: samplers, what is not trained, ...
2. Is the step the one that the same code takes alone? Then it is right.
3. Else: where do ranks part first? The weights before, the rows, the gradients, the
   update, the weights after: LINKS of a chain. The first that is broken is the finding:
   what follows from it is not asked for.
"""

import math

import torch

from manual_dp.audit2 import losses, mixing, proof
from manual_dp.audit2.report import WORDS, finding
from manual_dp.audit2.rows import dealt, shared
from manual_dp.audit2.sketch import mixture

ORDER = [*WORDS]
FOLLOWS = {"gradient", "replicas-differ", "state-differs", "buffers"}


class Step:
    """Hold what all ranks did in one step, and one device in the same.

    updates: a list for each rank. remarks, unchecked: what rules say besides.
    """

    def __init__(self, t, runs, alone, close, watched, remarks, unchecked):
        self.t, self.runs, self.close, self.watched = t, runs, close, watched
        self.names, self.world_size = runs[0].names, len(runs)
        self.remarks, self.unchecked = remarks, unchecked
        self.updates = [[u for u in run.updates if u.t == t] for run in runs]
        self.alone = [u for u in alone.updates if u.t == t] if alone else []
        self.begun = t == runs[0].updates[0].t if runs[0].updates else True
        if all(self.updates):
            self.first = [us[0] for us in self.updates]
            self.last = [us[-1] for us in self.updates]
            self.proof, self.why = proof.prove(self) if alone else (None, "")

    def rows(self, updates):
        """Return the rows of all forwards of some updates, None if not known."""
        lists = [rows for u in updates for rows in u.rows]
        return None if None in lists else [row for rows in lists for row in rows]

    def came_apart(self):
        """Return whether other gradients came back to ranks."""
        came = [u.came for u in self.first]
        return None not in [*map(type, came)] and all(c is not None for c in came) and (
            any(float((c - came[0]).norm()) > 1e-9 * float(came[0].norm())
                for c in came))


def judge(runs, alone=None, close=1e-7, watched=False):
    """Return (findings, remarks, unchecked)."""
    remarks, unchecked = [], []
    if found := next(_other_models(runs), None):
        return [found], [], []
    if why := next((run.unjudged for run in runs if run.unjudged), ""):
        return [], [], [why]
    found = [*dealt(runs, watched), *_facts(runs)]
    for t in sorted({u.t for run in runs for u in run.updates}):
        step = Step(t, runs, alone, close, watched, remarks, unchecked)
        broken = sorted(_links(step), key=lambda f: ORDER.index(f.code))
        if broken:
            line = next((u.line for us in step.updates for u in us if u.line), "")
            known = {f.code for f in found}
            dealing = known & {*ORDER[ORDER.index("sampler-differs"):
                                      ORDER.index("rows-overlap") + 1]}
            first = broken[0]
            if not (first.code in known or known and first.code in FOLLOWS
                    or dealing and first.code.startswith("rows-")):
                found.append(first._replace(step=t, place=line))
            break
    return found, remarks, unchecked


# whatever the step comes to

def _other_models(runs):
    """Yield the finding for ranks that do not train one model."""
    first = runs[0]
    for rank, run in enumerate(runs):
        if (run.names, run.shapes) != (first.names, first.shapes):
            yield finding("start-differs", f"rank {rank} has other parameters than rank"
                          " 0, or of other shapes", rank)
        elif run.wants != first.wants:
            i = next(i for i, (a, b) in enumerate(zip(run.wants, first.wants)) if a != b)
            yield finding("settings", f"requires_grad of {first.names[i]} is "
                          f"{run.wants[i]} on rank {rank}, {first.wants[i]} on rank 0",
                          rank)


def _facts(runs):
    """Yield what needs no step to be known."""
    for rank, run in enumerate(runs):
        if run.broken:
            yield finding("not-finite", f"NaN or inf in {_some(run.broken)}", rank)
            return
        if run.alias:
            yield finding("alias", f"{' and '.join(run.alias)} share memory", rank)
            return
    unheld = [n for n in runs[0].unheld if all(n in run.unheld for run in runs)]
    silent = [n for n in runs[0].silent if all(n in run.silent for run in runs)]
    if unheld:
        yield finding("not-trained", f"no optimizer holds {_some(unheld)}")
    elif silent:
        yield finding("not-trained", f"no loss depends on {_some(silent)}")
    elif not runs[0].updates and all(run.idle for run in runs):
        yield finding("not-trained", "no update of the weights")


# the chain of a step

def _links(step):
    """Yield the findings of one step; the caller takes the first in ORDER."""
    counts = [len(us) for us in step.updates]
    if len(set(counts)) > 1:
        who = counts.index(min(counts))
        code = "mismatch" if min(counts) else "not-trained"
        yield finding(code, f"rank {who} takes {min(counts)} updates in the step, rank "
                      f"{counts.index(max(counts))} takes {max(counts)}", who)
        return
    yield from _before(step)
    yield from _set_up(step)
    yield from _random(step)
    for us in zip(*step.updates):
        if found := [*_stale(us, step), *_nothing(us)]:
            yield from found
            return
    if step.proof:
        yield from (f for f in shared(step) if f.code == "rows-same")
        yield from _after(step)
        return
    rows = [*shared(step)]
    yield from rows
    if _local(step):
        step.remarks.append("ranks step on their own, and average weights (local SGD)")
        yield from _after(step)
        return
    rest = [*_gradients(step), *_clips(step), *_after(step)]
    yield from rest
    if step.proof is False and not rows and not rest:
        yield from _other_update(step)
    if step.proof is None and step.why:
        step.unchecked.append(f"the step beside one device's: {step.why}")


def _before(step):
    """Yield the finding for ranks that begin a step with other weights."""
    i, who = _parted([u.before for u in step.first])
    if i is None or step.names[i] in step.runs[0].own:
        return
    far = max(float((u.start[i] - step.first[0].start[i]).norm()) for u in step.first)
    if far > 10 * step.close ** 2 * float(step.first[0].start[i].norm()):
        yield finding("start-differs" if step.begun else "replicas-differ",
                      f"before the step {step.names[i]} is {far:.1e} from rank 0's on "
                      f"rank {who}", who)


def _set_up(step):
    """Yield what is set up otherwise on ranks, or beside one device."""
    if step.world_size == 1:
        return
    yield from differ([u.state for u in step.first])
    yield from differ([u.end for u in step.last], common=True)
    if step.alone and not step.proof:
        its = step.alone[-1].end
        for key, value in step.last[0].end.items():
            if key[0] == "settings" and its.get(key, value) != value and (
                    not _is_rate(key[1])):
                yield finding("settings", f"{key[1]} is {value} on "
                              f"{step.world_size} ranks, {its[key]} on one")
                return


def _is_rate(name):
    return name.startswith(("lr ", "initial_lr ", "max_lr ", "min_lr ")) or any(
        f".{rate} of" in name for rate in ("lr", "initial_lr", "max_lr", "min_lr"))


def differ(dicts, common=False):
    """Yield a finding for the first name of each code that has not one value.

    common: leave out the state that not every rank has.
    """
    told = set()
    for code, name in dict.fromkeys(key for one in dicts for key in one):
        values = [one.get((code, name)) for one in dicts]
        if common and code == "state-differs" and None in values or code in told:
            continue
        who = next((rank for rank, v in enumerate(values) if v != values[0] and not (
            v != v and values[0] != values[0])), None)  # NaN on both is no difference
        if who is not None:
            told.add(code)
            says = f"{name} is {values[who]} on rank {who}, {values[0]} on rank 0"
            if code != "settings":
                says = f"{name} on rank {who} is not rank 0's"
            yield finding(code, says, who)


def _random(step):
    """Yield the finding for ranks that draw the same numbers in a step."""
    first = step.first
    if step.world_size == 1 or step.proof:
        return
    seeds = {run.seed for run in step.runs}
    if all(u.noisy for u in first) and len({u.rng for u in first}) == 1:
        yield finding("random-same", "all ranks draw the same random numbers in the "
                      "forward, as for dropout")
    elif step.watched and step.begun and len(seeds) == 1 and None not in seeds and any(
            u.noisy for u in first):
        yield finding("random-same", "every rank was seeded alike after the model was "
                      "made")
    elif any(u.drew for u in step.last):
        for kind in ("seed", "input"):
            drawn = [[one for one in u.drawn if one[0] == kind] for u in first]
            if drawn[0] and all(one == drawn[0] for one in drawn):
                yield finding("random-same", "all ranks draw the same random numbers")
                return


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
    yield finding("stale", "the gradient of the step before is in what is applied: it "
                  "was not cleared")


def _nothing(us):
    """Yield the finding for an update by gradients that are all 0."""
    if all(u.pieces for u in us) and sum(float(u.came.norm()) for u in us) < 1e-14 or (
            all(u.used is not None and not float(u.used.norm()) for u in us)):
        yield finding("not-trained", "every gradient is 0: the loss does not change "
                      "with the weights")


def _local(step):
    """Return whether updates leave other weights, and all have one model later."""
    return step.world_size > 1 and any(
        u.after != step.last[0].after for u in step.last) and all(
        u.settled is not None and u.settled == step.last[0].settled for u in step.last)


def _gradients(step):
    """Yield the finding about what ranks applied, of the first update that has one."""
    for place, us in enumerate(zip(*step.updates)):
        one = step.alone[place] if len(step.alone) == len(step.updates[0]) else None
        if found := [f for f in _mixed(us, one, step) if f]:
            yield found[0]
            return


def _mixed(us, one, step):
    if any(not u.pieces for u in us):
        if step.proof is False and one:
            yield finding("gradient", "the step is not the one of world size 1")
        return
    by_hand = us[0].used is None
    used = [u.start - u.stop if by_hand and u.stop is not None else u.used for u in us]
    if any(x is None for x in used):
        return
    everything = [*range(len(step.names))]
    size = max(float(u.start.norm()) for u in us)
    mixed = mixing.Mixed(
        [u.came for u in us], used, [u.held or everything for u in us],
        [u.pieces for u in us], close=step.close, noise=1e-15 * size * by_hand,
        by_hand=by_hand, clipped=any(u.clips for u in us),
        early=any(u.early for u in us), past=step.runs[0].wrapped and not any(
            u.synced for u in us))
    alone = one and (one.start - one.stop if by_hand else one.used)
    if alone is not None and alone.shape == used[0].shape and step.proof is False:
        mixed.alone = alone
    C = mixing.matrix(mixed)
    if None not in C:
        yield _read(C, us, mixed, step)
    elif len({tuple(one) for one in mixed.held}) == 1 and step.world_size > 1:
        yield mixing.by_pieces(mixed) or mixing.by_parameter(mixed, step.names) or (
            finding("gradient", "what all ranks apply is not one device's gradient, nor"
                    " a mixture of theirs") if step.proof is False else None)


def _read(C, us, mixed, step):
    """Return the finding that the matrix is; without one device, what losses say."""
    known = mixed.alone is not None
    one = mixed.fit(0, mixed.came, mixed.alone) if known else None
    if found := mixing.read(C, one, mixed):
        return found
    if known and one is None:
        return _not_one_devices(mixed)
    if one and all(abs(one[k]) > 1e-9 for k in mixed.live) or step.world_size == 1:
        return None
    return _by_losses(C[0], us, mixed, step)


def _not_one_devices(mixed):
    pieces = [piece for mine in mixed.pieces for piece in mine]
    if mixed.world_size < len(pieces) <= mixing.MOST:
        each = mixed.fit(0, pieces, mixed.alone)
        if each and min(each) > 0:
            counts = ", ".join(f"{x / min(each):.4g}" for x in each[:6])
            return finding("uneven-shards", "micro-batches count alike, on a single "
                           f"device they count {counts} times")
    return finding("gradient", "all ranks apply one mean of what came back to them, and"
                   " that is not one device's gradient")


def _by_losses(c, us, mixed, step):
    """Return the finding on a row of C by what each term of the losses counts."""
    near, total = 10 * mixed.near, sum(c)
    alike = max(c[k] for k in mixed.live) - min(c[k] for k in mixed.live) <= (
        near * max(map(abs, c)))
    scale = mixing.scaled(total, mixed) if not mixed.by_hand else None
    scale = scale if scale and scale.code in ("sum", "averaged-twice") else None
    if scale:
        scale = scale._replace(says=f"gradients are {total:.4g} times the mean of the "
                               "ranks'")
    if step.watched:
        code, why = losses.counted([u.terms for u in us], c, near) if alike else (
            "", f"ranks' gradients count {', '.join(f'{x:.4g}' for x in c[:6])} times")
        if code:
            return finding(code, why)
        if why and not scale:
            step.unchecked.append(why)
        return scale if why else None
    if step.proof is not None or mixed.by_hand:
        return None
    n = [sum(len(rows or ()) for rows in u.rows) for u in us]
    each = [c[k] / n[k] for k in mixed.live] if all(n) else [0, 0]
    if not alike and (not all(n) or max(each) > min(each) * (1 + mixing.SAME)):
        return finding("gradient", "ranks' gradients count "
                       + ", ".join(f"{x:.4g}" for x in c[:6]) + " times")
    return scale if alike else None


# the update

def _clips(step):
    """Yield the finding for ranks that clip to other norms, or not as often."""
    first = step.last[0].clips
    for rank, u in enumerate(step.last):
        if len(u.clips) != len(first):
            yield finding("clip", f"rank {rank} clips {len(u.clips)} times, rank 0 "
                          f"{len(first)} times", rank)
            return
        for (most, norm), (its, other) in zip(u.clips, first):
            if most != its or not math.isclose(norm, other, rel_tol=10 * step.close):
                yield finding("clip", f"rank {rank} clips a norm of {norm:.4g} to "
                              f"{most:.4g}, rank 0 {other:.4g} to {its:.4g}", rank)
                return
    for (most, _), (its, _) in zip(first, step.alone[-1].clips if step.alone else ()):
        if most != its:
            yield finding("clip", f"max_norm is {most:.4g} on {step.world_size} ranks, "
                          f"{its:.4g} on one")
            return


def _after(step):
    """Yield the finding for ranks that have other weights after the update."""
    last = step.last
    if any(u.settled is None for u in last):
        return
    i, who = _parted([u.settled for u in last])
    if i is None or step.names[i] in step.runs[0].own:
        return
    if all(u.stop is not None for u in last):
        far = max(float((u.stop[i] - last[0].stop[i]).norm()) for u in last)
        if far <= 10 * step.close ** 2 * float(last[0].stop[i].norm()):
            return
    stepped, _ = _parted([[u.after.get(j) for j in range(len(step.names))]
                          for u in last])
    how = "after the update" if stepped is not None else "written after the update,"
    yield finding("replicas-differ", f"{how} {step.names[i]} on rank {who} is not rank "
                  "0's", who)


def _other_update(step):
    """Yield the finding for equal gradients, and another step than one device's."""
    if len(step.updates[0]) != len(step.alone):
        yield finding("accumulation", f"{len(step.updates[0])} updates a step, "
                      f"{len(step.alone)} on one device")
        return
    its = step.alone[-1].end
    for key, value in step.last[0].end.items():
        if key[0] == "settings" and key[1].startswith("lr ") and its.get(
                key, value) != value:
            yield finding("settings", f"{key[1]} is {value:.4g} on {step.world_size} "
                          f"ranks, {its[key]:.4g} on one: the rows are the same, lr is "
                          f"{value / its[key]:.4g} times")
            return
    yield finding("gradient", "every rank has one device's gradient, but takes another "
                  "step")


def _parted(lists):
    """Return (place, rank) of the first difference between ranks' lists, or Nones."""
    if any(one is None for one in lists):
        return None, None
    for i, column in enumerate(zip(*lists)):
        if len(set(column)) > 1 and None not in column:
            return i, next(r for r, v in enumerate(column) if v != column[0])
    return None, None


def _some(names):
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" * (len(names) > 5))
