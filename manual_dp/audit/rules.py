"""From what the ranks recorded to a verdict: findings, what to look at, what was not.

1. What is wrong whatever a step comes to: rows, samplers, what is not trained, ...
2. Is the step the one that the same code takes alone? Then it is right.
3. Else: where do ranks part first? The weights before, the rows, the gradients, the
   update, the weights after. The first broken link is the finding: what follows from
   it is not told.

A finding is what no right script is known to do. What is wrong only if the script means
something else is a line to look at.
"""

import math
from itertools import zip_longest

import torch

from manual_dp.audit import matrix
from manual_dp.audit.report import PLACES, WORDS, few, finding, numbers, plural
from manual_dp.audit.rows import (
    epochs,
    later_on_another_rank,
    rows_of_data,
    rows_of_step,
    same_stream,
    uneven,
)
from manual_dp.audit.sketch import mixture
from manual_dp.audit.state import differ, shown
from manual_dp.audit.summary import NO_LOSS
from manual_dp.ranks.launch.verdict import ranks_in_words

CHAIN = [*WORDS]  # causes before consequences
# told beside a finding about rows: they do not follow from it
APART = (
    "start-differs",
    "not-synchronised",
    "stale",
    "sum",
    "averaged-twice",
    "settings",
)
# causes that are seen, in place of what is likely
OUTSIDE = {
    "cause": "DDP does not sum it: it was made or unfrozen after wrapping, stands "
    "beside the model, or its model is not in DDP",
    "repair": "change and unfreeze the model before it is wrapped; put the tensor into "
    "it; wrap each model",
    "see": "changed-after-wrapping",
}
IN_THE_STEP = {
    "cause": "the optimizer made other steps of one gradient: its averages differ (a "
    "state loaded on some ranks alone), or it draws random numbers",
    "repair": "load an optimizer's state on all ranks; seed what it draws alike",
    "see": "own-state",
}
AFTER_THE_STEP = {
    "cause": "some ranks wrote these weights between the step and the next forward: "
    "a checkpoint that was loaded, an average, a clamp",
    "repair": "write on all ranks alike, or broadcast afterwards",
    "see": "changed-after-wrapping",
}
ONE_SEED = {
    "cause": "rows, or noise, by numbers that all ranks draw alike; or no sampler",
    "repair": "a seed for each rank: torch.manual_seed(seed + rank); or a "
    "DistributedSampler",
    "see": "same-noise",
}
# what happens to a buffer that differs
MOVED = {
    "sent": "sends rank 0's at the next forward",
    "kept": "was told not to send it (broadcast_buffers=False): average it before you "
    "test or save",
}
LEAVES_ALIKE = ("random-same",)  # equal weights stay equal
ALONE = "the step beside one device's: "
DIVIDED = "whether the loss is divided rightly: "


class Verdict:
    """Hold findings, what to look at, and what was not looked at, in words."""

    def __init__(self, not_looked_at=()):
        self.findings, self.look_at = [], []
        self.not_looked_at = list(not_looked_at)
        self.compared = True  # the steps
        self.beside = False  # was a step compared with one device's?


class Step:
    """Hold what all ranks did in one step, and one device in the same.

    proof: True if it is the step that the same code takes alone, False if not, None if
    the two cannot be compared: `why`. own: places of what each rank has for itself.
    close: numbers that differ by so much, relatively, count as equal.
    """

    def __init__(self, t, runs, alone, verdict, watched, own):
        self.t, self.runs, self.watched, self.own = t, runs, watched, own
        self.look_at, self.not_looked_at = verdict.look_at, verdict.not_looked_at
        self.names, self.world_size = runs[0].names, len(runs)
        self.close = max(run.close for run in runs)
        self.updates = [[u for u in run.updates if u.t == t] for run in runs]
        self.alone = [u for u in alone.updates if u.t == t] if alone else []
        self.proof, self.why = None, ""
        if all(self.updates):
            self.first = [us[0] for us in self.updates]
            self.last = [us[-1] for us in self.updates]
            if self.alone and self.world_size > 1:
                self._prove()

    def rows(self, updates):
        """Return the rows of all forwards of some updates, None if not known."""
        lists = [rows for u in updates for rows in u.rows]
        return None if None in lists else [row for rows in lists for row in rows]

    def far(self, sketches):
        """Return how far one of these is from rank 0's, 0 for no more than rounding."""
        far = max(float((x - sketches[0]).norm()) for x in sketches)
        # rounding: 1e-7 of float32, whose `close` is 1e-4, and 1e-13 of float64
        return far if far > 10 * self.close**2 * float(sketches[0].norm()) else 0

    def line(self, code):
        """Return where the script does what a finding is about."""
        what = PLACES.get(code, "step")
        for us in self.updates:
            for u in us:
                if what in u.lines:
                    return f"{what} at {u.lines[what]}"
        return ""

    def _prove(self):
        begin, size = self.alone[0].start, float(self.alone[0].start.norm())
        move = begin - self.alone[-1].stop
        allowed = self.close * float(move.norm()) + 1e-13 * size  # float64's rounding
        moves = [a.start - b.stop for a, b in zip(self.first, self.last)]
        if any(_elsewhere(u.start, begin, 1e-6 * size) for u in self.first):
            self.why = "at world size 1 the weights before the step are others"
        elif all(float((one - move).norm()) <= allowed for one in moves):
            self.proof = True
        elif self.first[0].batch[0] != self.alone[0].batch[0]:
            self.why = "at world size 1 the step takes other rows"
        else:
            self.why = max(run.blurs for run in self.runs)
            self.proof = None if self.why else False


def _elsewhere(weights, others, allowed):
    return weights.shape != others.shape or float((weights - others).norm()) > allowed


def judge(runs, alone=None, watched=False):
    """Return the Verdict on what all ranks recorded.

    alone: what one device did, if it is known. watched: is it a script's?
    """
    verdict = Verdict(runs[0].not_looked_at)
    if why := next((run.unjudged for run in runs if run.unjudged), ""):
        verdict.compared = False
        verdict.not_looked_at.insert(0, why)
        return verdict
    if own := _trained_alone(runs):
        verdict.compared = False
        verdict.not_looked_at.insert(0, own)
        return verdict
    for rank, run in enumerate(runs):
        if (run.names, run.shapes) != (runs[0].names, runs[0].shapes):
            says = f"rank {rank} has other parameters than rank 0, or of other shapes"
            verdict.findings = [finding("start-differs", says, rank)]
            return verdict
    own = _own(runs, verdict)
    facts = [*_facts(runs, watched), *rows_of_data(runs, verdict.look_at)]
    if watched:
        if rows := uneven(runs):
            verdict.not_looked_at = [
                f"{words} (of ranks with {rows} rows)" if words == NO_LOSS else words
                for words in verdict.not_looked_at
            ]
        facts += [*epochs(runs, verdict.look_at), *_tests(runs)]
        verdict.look_at += [*_silent(runs), *_gathered(runs)]
        _level(runs, verdict)
    if broken := [f for f in facts if f.code == "not-finite"]:
        verdict.findings = broken  # of NaN nothing else is known
        return verdict
    ts = sorted({u.t for run in runs for u in run.updates})
    steps = [Step(t, runs, alone, verdict, watched, own) for t in ts]
    verdict.beside = any(step.proof is not None for step in steps)
    found = _first_broken(steps, verdict)
    if any(name for step in steps if all(step.updates) for name in _drawn_alike(step)):
        found = [f._replace(**ONE_SEED) if f.code == "rows-same" else f for f in found]
    if runs[0].streamed:
        found = [
            f._replace(see="stream-whole") if f.code == "rows-same" else f
            for f in found
        ]
    same_rows = {"rows-same", "no-sampler"} & {f.code for f in [*facts, *found]}
    if any(f.code != "sampler-epoch" for f in facts):  # which changes no step
        found = [f for f in found if f.code in APART]
    first = {f.code: f for f in reversed([*facts, *found])}
    if watched and not same_rows:
        words = [later_on_another_rank(runs), same_stream(runs)]
        verdict.look_at += filter(None, words)
    if watched and same_rows and "not-synchronised" not in first:
        verdict.not_looked_at.append(
            "whether gradients are averaged: ranks with the same rows have the same "
            "gradients in any case (repair the rows, and audit again)"
        )
    verdict.findings = list(first.values())  # a Report puts the gravest first
    verdict.look_at[:] = _once(verdict.look_at)
    return verdict


def _once(words):
    """Leave out what was said before, with another number."""
    said = {}
    for line in words:
        said.setdefault("".join(c for c in line if not c.isdigit()), line)
    return list(said.values())


def _first_broken(steps, verdict):
    """Return the findings of the first step that has some.

    A finding that leaves the ranks alike explains no later one: the search goes on.
    """
    if _local(steps):
        verdict.compared = False
        verdict.not_looked_at.append(
            "the steps: ranks step on their own, and average their weights (local SGD, "
            "or each rank updates a part of them)"
        )
        return []
    told = {}
    for step in steps:
        links = sorted(_links(step), key=lambda f: CHAIN.index(f.code))
        links = [f._replace(step=step.t, place=step.line(f.code)) for f in links]
        for f in links:
            if f.code in LEAVES_ALIKE:
                told.setdefault(f.code, f)
        breaks = [f for f in links if f.code not in LEAVES_ALIKE]
        if breaks:
            more = [f for f in breaks[1:] if f.code == "not-synchronised"]
            return [*told.values(), breaks[0], *more]
    return [*told.values()]


# whatever a step comes to


def _own(runs, verdict):
    """Return the places of what each rank has for itself: no rule compares these."""
    own = {*runs[0].apart}
    starts = [run.updates[0].start for run in runs if run.updates]
    parts = []
    beside = [i for i, where in runs[0].free.items() if where == "beside"]
    for i in beside if len(starts) == len(runs) else ():
        far = max(float((x[i] - starts[0][i]).norm()) for x in starts)
        if i not in own and far > 1e-6 * float(starts[0][i].norm()):
            parts.append(i)
    if parts:
        verdict.look_at.append(
            f"{few([runs[0].names[i] for i in parts])}: no wrapper holds it, and ranks "
            "have other values: right if each has a part of its own"
        )
    own.update(parts)
    for run in runs:
        for u in run.updates:
            u.held = [i for i in u.held if i not in own]
    return own


def _trained_alone(runs):
    """Return, in words, that a rank trains what it alone has; or ""."""
    places = [{u.key[0] for u in run.updates if u.key} for run in runs]
    sizes = [len(run.names) for run in runs]
    who, least = _extremes(sizes)
    says = ""
    if all(places) and any(mine != places[0] for mine in places):
        common = set.intersection(*places)
        who = next(rank for rank, mine in enumerate(places) if mine - common)
        says = f"steps an optimizer of its own, made at {min(places[who] - common)}"
    elif who != least:
        count = sizes[who]
        says = f"has a model of its own ({count} parameters, others {sizes[least]})"
    return says and (
        f"the steps: rank {who} {says}. To compare what all ranks train, call "
        "watch(model, optimizer), from manual_dp.audit, behind the lines that make them"
    )


def _extremes(counts):
    """Return the first rank with the most, and the first with the least."""
    return counts.index(max(counts)), counts.index(min(counts))


def _tests(runs):
    """Yield the finding that some ranks alone test with DDP's model, which sends.

    A rank may have put its record before it tests behind its last update.
    """
    for updates in [*zip(*(run.updates for run in runs))][:-1]:
        counts = [len(u.tests) for u in updates]
        most, least = _extremes(counts)
        if most != least:
            yield finding(
                "mismatch",
                "forwards of DDP's model without gradients, behind a step: "
                f"{counts[most]} on rank {most}, {counts[least]} on rank {least}; each "
                "sends rank 0's buffers",
                most,
                updates[0].t,
                f"forward at {updates[most].tests[0]}",
            )
            return


def _silent(runs):
    """Yield words for a module that is called and not trained, and differs."""
    for name in runs[0].silent:
        hashes = [run.silent.get(name) for run in runs]
        if None not in hashes and any(one != hashes[0] for one in hashes):
            yield (
                f"{name} differ between ranks: wrong if they are a teacher's, the "
                "weights of a loss, or an average that all ranks should have alike"
            )


def _gathered(runs):
    """Yield words for what a rank got from others on the way to its loss."""
    for name, place in runs[0].gathered:
        yield (
            f"{name} at {place}: gradients do not flow back through it; wrong if "
            "the loss uses what it brings (lesson 26, gather-cuts)"
        )


def _level(runs, verdict):
    """Leave the updates that all ranks have taken; say if one has taken others.

    An update is known by how often its optimizer has stepped: ranks may have begun to
    listen at different ones. Where each rank's optimizer has a part of the parameters,
    it is known by its place.
    """
    counts = [len(run.updates) for run in runs]
    other, who = _extremes(counts)
    most, least = counts[other], counts[who]
    if not least and most:
        verdict.look_at.append(
            f"rank {who} took {plural(least, 'step')} by the time that rank {other} "
            f"had taken {most}: right if it is sent the weights (check_ranks(model) "
            "compares them)"
        )
    elif most > least:
        verdict.not_looked_at.append(
            f"the steps after {least}: of rank {other} {most} were heard, of rank "
            f"{who} {least}"
        )
    keys = [{u.key for u in run.updates} for run in runs]
    common = set.intersection(*keys)
    for run in runs:
        if common:
            run.updates = [u for u in run.updates if u.key in common]
        run.updates = run.updates[:least]
        for t, u in enumerate(run.updates):
            u.t = t


def _facts(runs, watched):
    """Return what needs no step to be known, in a list."""
    for rank, run in enumerate(runs):
        if run.broken:
            return [finding("not-finite", f"NaN or inf in {few(run.broken)}", rank)]
    unheld = [n for n in runs[0].unheld if all(n in run.unheld for run in runs)]
    if unheld and (runs[0].updates or not watched):
        return [finding("not-trained", f"no optimizer holds {few(unheld)}")]
    if not runs[0].updates and all(run.idle for run in runs) and not watched:
        return [finding("not-trained", "no update of the weights")]
    return []


# the chain of a step


def _local(steps):
    """Return whether ranks apply gradients of their own, and meet again later.

    Of all parameters: where a sum left out a single one, the others' are alike.
    """
    apart = False
    for step in steps:
        if step.proof or not all(step.updates):
            continue
        if all(u.used is not None for u in step.last):
            applied = [u.applied for u in step.last]
            each = [[rows[i] for rows in applied] for i in step.last[0].held]
            live = [rows for rows in each if any(row.norm() > 0 for row in rows)]
            apart |= bool(live) and all(step.far(rows) for rows in live)
        if apart and not _after(step):
            return True
    return False


def _links(step):
    """Return the findings of one step, of which the caller takes the first."""
    counts = [len(us) for us in step.updates]
    most, least = _extremes(counts)
    if most != least:
        takes = plural(counts[least], "update")
        says = (
            f"rank {least} takes {takes} in the step, rank {most} takes {counts[most]}"
        )
        return [finding("mismatch", says, least)]
    broken = [*_set_up(step), *_random(step)]
    for us in zip(*step.updates):
        if found := [*_stale(us, step), *_nothing(us)]:
            return broken + found
    rows = [*rows_of_step(step)]
    if step.proof:
        _look_at_clips(step)
        return [*broken, *(f for f in rows if f.code == "rows-same"), *_after(step)]
    broken += [*rows, *_gradients(step), *_clips(step), *_after(step)]
    if step.proof is False and not broken:
        broken += _other_update(step)
    said = any(ALONE in words for words in step.not_looked_at)
    if step.proof is None and step.why and not broken and not said:
        step.not_looked_at.append(ALONE + step.why)
    return broken


def _after(step):
    stops = [u.stop for u in step.last]
    found = _parted(stops, step, "before the next forward", "replicas-differ")
    stepped = [u.stepped for u in step.last]
    if not found or any(weights is None for weights in stepped):
        return found
    in_step = _parted(stepped, step, "after the step", "replicas-differ")
    if in_step:
        return [f._replace(**IN_THE_STEP) for f in in_step]
    return [f._replace(**AFTER_THE_STEP) for f in found]


def _parted(weights, step, when, code):
    """Return the finding for the first parameter that differs, in a list."""
    for i, name in enumerate(step.names[: step.runs[0].inside]):
        each = [w[i] for w in weights]
        if i not in step.own and (far := step.far(each)):
            who = next(r for r, w in enumerate(each) if not torch.equal(w, each[0]))
            long = float(each[0].norm())
            percent = 100 * far / long if long else 100
            by = f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
            says = f"{when}, {name} on rank {who} is not rank 0's: {by} % apart"
            found = finding(code, says, who)
            if code == "start-differs":
                found = _if_outside({i}, found, step)
            return [found]
    return []


def _set_up(step):
    begins = step.t == step.runs[0].updates[0].t
    if begins:  # later it is what stood after the update before
        starts = [u.start for u in step.first]
        yield from _parted(starts, step, "before the step", "start-differs")
    counts = [len(u.rows) for u in step.first]
    most, least = _extremes(counts)
    if step.watched and most != least:
        step.look_at.append(
            f"forwards of a step: {counts[most]} on rank {most}, {counts[least]} on "
            f"rank {least}: wrong if a rank skips a minibatch, since all later steps "
            "then mix other ones (lesson 26, early-stop)"
        )
    for f in differ([u.state for u in step.first], leave=("sent", "kept")):
        if begins and f.code == "buffers" and step.runs[0].fresh:
            f = finding("start-differs", f"the buffer {f.says}", f.rank)
        yield f
    for code, then in MOVED.items():
        moved = [
            name
            for (kind, name), value in step.first[0].state.items()
            if kind == code
            and any(u.state.get((kind, name), value) != value for u in step.first)
        ]
        if moved and (step.watched or code == "kept"):
            names = plural(len(moved), "buffer") + f", such as {moved[0]}"
            step.look_at.append(f"{names}: each rank moves its own, and DDP {then}")


def _random(step):
    if step.world_size == 1 or step.proof:
        return
    drew = {u.rng for u in step.first}
    if len(drew) == 1 and drew != {None}:
        yield finding("random-same", "all ranks draw the same random numbers")
    for name in _drawn_alike(step):
        if step.watched:
            step.look_at.append(
                f"all ranks draw the same numbers (of {name}) outside forwards: "
                "wrong if they are noise, masks or augmentation of a rank's own rows"
            )


def _drawn_alike(step):
    """Yield the generators of which all ranks drew the same outside forwards."""
    for name, number in step.first[0].outside.items():
        if all(u.outside.get(name) == number for u in step.first):
            yield name


def _stale(us, step):
    """Yield the finding for a gradient that was there before this update's backward."""
    left = [u.left for u in us if u.left is not None]
    if not left or any(u.used is None or not u.pieces for u in us):
        return
    came = [u.came for u in us]
    for u in us:
        both = mixture(u.used, came + left, step.close)
        if not both or sum(both[len(us) :]) < 1e-3:
            return
        if mixture(u.used, came, step.close):
            return
    yield finding("stale", "the gradient of the step before is in what is applied")


def _nothing(us):
    arrived = all(u.pieces for u in us)
    came_zero = arrived and sum(float(u.came.norm()) for u in us) < 1e-14
    used_zero = all(u.used is not None and not float(u.used.norm()) for u in us)
    if came_zero:
        says = "every gradient is 0: the loss does not change with the weights"
        yield finding("not-trained", says)
    elif used_zero:
        says = "every gradient is 0 when it is applied"
        yield finding("not-trained", says)


# the gradients


def _gradients(step):
    """Return the findings about what ranks applied, in each update."""
    if step.world_size == 1:
        return []
    same = len(step.alone) == len(step.updates[0])
    ones = step.alone if same else []
    found = [_mixed(us, one, step) for us, one in zip_longest(zip(*step.updates), ones)]
    return [_if_skipped(f, step) for f in found if f]


def _if_skipped(found, step):
    """Return a finding, with its cause if some ranks alone cleared a gradient before.

    Their update is then of a later minibatch than that of the others.
    """
    cleared = ["cleared" in us[0].lines for us in step.updates]
    if found.code != "not-synchronised" or all(cleared) or not any(cleared):
        return found
    who = [rank for rank, it_did in enumerate(cleared) if it_did]
    return found._replace(
        cause=f"{ranks_in_words(who)} cleared a gradient that others applied: it left "
        "out a step that others took, as of a loss that was too large or NaN",
        repair="decide together: all_reduce a flag, then all ranks step, or none",
        see="early-stop",
    )


def _if_outside(places, found, step):
    """Return a finding; its cause is OUTSIDE if DDP sums none of these places."""
    outside = places and places <= step.runs[0].free.keys()
    return found._replace(**OUTSIDE) if outside else found


def _mixed(us, one, step):
    """Return the finding about one update of all ranks, or None."""
    if any(not u.pieces or not u.held for u in us):
        if step.proof is False and one:
            return finding("gradient", "the step is not the one of world size 1")
        step.not_looked_at.append(
            "the gradients: no optimizer's step was heard after a backward"
        )
        return None
    if any(u.held != us[0].held for u in us):
        step.not_looked_at.append("the gradients: ranks share out the parameters")
        return None
    known = step.proof is False and one and one.used is not None
    gradients = matrix.Gradients(us, one if known else None, step.close)
    # C[rank][k]: how often rank k's gradient counts in what this rank applies; a row is
    # None if what it applies is no mixture of the ranks' gradients
    C = gradients.matrix()
    found = None if None in C else matrix.diagnose(C, gradients)
    live = {i for i in us[0].held if any(float(u.used[i].norm()) for u in us)}
    if found and found.code == "not-synchronised":
        return _if_outside(live, found, step)
    who = [rank for rank, u in enumerate(us) if any(own for *_, own in u.clips)]
    if who and step.far([u.came for u in us]):
        their = "its own gradient" if len(who) == 1 else "their own gradients"
        says = f"{ranks_in_words(who)} clipped {their}, before the sum over ranks"
        return finding("clip", says, who[0])
    if None not in C:
        return found if found or known else _scale(C[0], us, gradients, step)
    if found := matrix.by_microbatch(gradients):
        return _if_outside(live, found, step)
    for i, *rows in zip(us[0].held, *gradients.used):
        if step.far(rows):
            says = f"ranks apply different gradients of {step.names[i]}"
            return _if_outside({i}, finding("not-synchronised", says), step)
    says = "all ranks apply the same one, which is no mixture of theirs"
    if step.proof is False:
        return finding("gradient", f"{says}, nor one device's")
    words = "right if it was changed on all alike"
    if any(u.clips for u in us):  # what came later was added to what was clipped
        words += f", as by the {step.line('clip')} before the last backward"
    step.look_at.append(f"the gradients: {says}: {words}")
    return None


def _scale(c, us, gradients, step):
    """Return what, without one device, the sum of a row of C and the losses say."""
    if len(gradients.live) < step.world_size:
        words = "how ranks count in each update: a rank's gradient is 0"
        step.not_looked_at.append(words)
        return None
    times = matrix.scaled(sum(c), gradients) if gradients.alike(c) else None
    if times and times.code in ("sum", "averaged-twice"):
        says = f"gradients are {sum(c):.4g} times the mean of the ranks'"
        times = times._replace(says=says)
    else:
        times = None
    if not step.watched:
        return times if step.proof is None else None
    found, why = divided([u.terms for u in us], c, gradients.near)
    if found or not why:
        return found
    if not times and all(u.terms for u in us):
        step.look_at.append(f"{DIVIDED}{why}; {step.line('uneven-shards')}")
    return times


def divided(terms, c, near):
    """Return (finding or None, why it is not known whether a loss is divided rightly).

    terms: a list of (n, each) of each rank. c: how often each rank's gradient counts.
    """
    if not all(terms):
        return None, "no loss of torch.nn.functional was heard"
    told = [(n, each * c[k]) for k, mine in enumerate(terms) for n, each in mine]
    counts, means = [each for _, each in told], [n * each for n, each in told]
    if max(counts) - min(counts) > near * max(counts):
        if max(means) - min(means) <= near * max(means):
            sizes = numbers(n for n, _ in told)
            says = (
                f"ranks' means of {sizes} terms count alike, so a term counts more on"
            )
            return finding("uneven-shards", f"{says} one rank than on another"), ""
        return None, "its terms do not count alike: right if these are their weights"
    total, W = sum(means), len(terms)
    if abs(total - 1) <= near:
        return None, ""
    n, raw = told[0][0], [one for mine in terms for one in mine]
    many = max(map(len, terms))  # losses of a rank in one step
    if n > 1 and all(m == n and abs(each - 1) <= near for m, each in raw):
        says = f"the loss is a sum over {n:g} terms, not a mean"
        return None, f"{says}: right only if you wanted a sum"
    hint = ""
    for x, words in ((W, ", the world size"), (1 / W, ", 1 / the world size")):
        if W > 1 and (many == 1 or x < 1) and abs(total - x) <= near * x:
            hint = words
    if many > 1 and abs(total - many) <= near * many:
        return None, (
            f"{many} losses of a rank are added in a step: wrong if they are "
            "micro-batches of one mean"
        )
    losses = "the loss counts"
    if many > 1:
        losses = f"{many} losses of a rank together count"
    return None, (
        f"{losses} {total:.4g} times the mean over all ranks' terms{hint}: wrong, "
        "unless you want this weight (lesson 26, wrong-factor)"
    )


# the update


def _other_clip(step):
    """Return (rank, what it clips, what rank 0 clips) of one that clips otherwise."""
    first, near = step.last[0].clips, 10 * step.close
    for rank, u in enumerate(step.last):
        same = len(u.clips) == len(first) and all(
            most == its and _near(norm, other, near)
            for (most, norm, _), (its, other, _) in zip(u.clips, first)
        )
        if not same:
            return rank, _clip_words(u.clips), _clip_words(first)
    return None


def _near(x, y, near):
    return math.isclose(x, y, rel_tol=near) or (x != x and y != y)


def _clip_words(clips):
    words = [f"a norm of {norm:.4g} to {most:.4g}" for most, norm, _ in clips]
    return ", ".join(words) or "nothing"


def _clips(step):
    """Yield the finding for ranks that clip to other norms, or not as often."""
    if other := _other_clip(step):
        rank, mine, its = other
        yield finding("clip", f"rank {rank} clips {mine}; rank 0 {its}", rank)


def _look_at_clips(step):
    """Say how ranks clip otherwise, in a step that is right all the same."""
    if other := _other_clip(step):
        rank, mine, its = other
        step.look_at.append(
            f"rank {rank} clips {mine}; rank 0 {its}: right only as long as no norm is "
            "too long"
        )
    for (most, *_), (its, *_) in zip(step.last[0].clips, step.alone[-1].clips):
        if most != its:
            step.look_at.append(
                f"a norm is clipped to {most:g} on {step.world_size} ranks, to {its:g} "
                "on one"
            )


def _other_update(step):
    """Return why ranks take another step than one device, with the same gradient."""
    mine, its = len(step.updates[0]), len(step.alone)
    if mine != its:
        says = f"{mine} updates a step, {its} on one device"
        return [finding("gradient", says)]
    alone = step.alone[-1].state
    for key, value in step.last[0].state.items():
        if key[0] == "settings" and alone.get(key, value) != value:
            many, one = shown(value, alone[key])
            says = f"{key[1]} is {many} on {step.world_size} ranks, {one} on one"
            return [finding("settings", f"{says}, and the rows are the same")]
    says = "every rank has one device's gradient, but takes another step"
    return [finding("gradient", says)]
