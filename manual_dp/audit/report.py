"""What an audit comes to: findings, what to look at, what was looked at and what not.

WORDS has every code there is, in the order of the chain that the rules follow: causes
before consequences. A finding may have a cause of its own in place of its code's.
"""

import textwrap
from collections import namedtuple


class Finding(namedtuple("Finding", "code says cause repair rank step place see")):
    """Hold what is wrong; print as its lines of a report."""

    __slots__ = ()

    def __repr__(self):
        """Write what is wrong, for a list of findings."""
        return f"<{self.code}: {self.says}>"

    def __str__(self):
        """Write what is wrong, cause, repair, and where to read on."""
        where = [f"since step {self.step + 1}"] if self.step is not None else []
        where += [self.place] if self.place else []
        says = self.says + (f" ({'; '.join(where)})" if where else "")
        lines = [
            f"{self.code:16}  {says}",
            f"{'cause':>16}: {self.cause}",
            f"{'repair':>16}: {self.repair}",
        ]
        if self.see:
            lines.append(f"{'see':>16}: notebooks/26_symptoms.ipynb#{self.see}")
        return _wrapped(lines)


def _wrapped(lines):
    """Return a report's lines as text, broken at 78 columns."""
    wrapped = [textwrap.wrap(line, 78, subsequent_indent=" " * 18) for line in lines]
    return "\n".join(part for parts in wrapped for part in parts)


TABLE = """\
exception         the code raised it
                  read the traceback (below, or report.details); does torchrun run it?
hang              unequal numbers of batches, or a collective behind `if rank == 0`
                  drop_last or DistributedSampler; evaluate model.module on rank 0
mismatch          ranks call other collectives at the same time, or take more steps
                  let all ranks take the same steps; evaluate model.module on rank 0
not-finite        a rate too large, log(0), the mean of an empty shard
                  look for the first step whose loss is not finite; skip an empty shard
start-differs     ranks drew weights of their own, or one loaded some after wrapping
                  load first, then wrap in DDP; or broadcast, or seed all ranks alike
sampler-differs   each rank deals out rows by a seed, a rank, or a list of its own
                  one seed, one sorted list on all ranks; leave num_replicas, rank out
sampler-epoch     sampler.set_epoch is not called on all ranks before each epoch
                  call sampler.set_epoch(epoch); for a single epoch it does not matter
no-sampler        shuffle=True, or nothing, stands where the sampler should
                  DataLoader(data, batch_size, sampler=DistributedSampler(data))
rows-same         no sampler, a split that ignores the rank, or a stream nobody splits
                  X[rank::world_size], DistributedSampler, islice(rows, rank, None, W)
rows-overlap      the split drops or pads the tail, or ranks shuffle for themselves
                  each row to one rank; multiply rank i's mean by W * n_i / N
not-trained       an optimizer of other tensors, no loss that needs them, or no step
                  step on all ranks; optimizer last; wrap all layers, freeze unused ones
random-same       ranks draw with one seed: the same masks and noise on all
                  seed the model alike, then each rank with seed + rank; or you mean it
stale             gradients of an earlier step were not cleared
                  optimizer.zero_grad() on every rank before each backward
not-synchronised  a parameter is not summed, or not waited for; noise on one rank
                  sum every gradient; wait for an async all-reduce, then step
clip              clipped before the sum, on some ranks, or otherwise than on one device
                  clip the averaged gradient, once, on every rank, to one max_norm
settings          own options or mode; a scheduler fed its own loss, or stepped alone
                  set all ranks up alike; step schedulers on all, with averaged numbers
sum               gradients are summed over ranks and not divided by the world size
                  divide by the world size; lr stays, the minibatch is the same
averaged-twice    DDP has taken the mean already; or a loss over gathered rows is split
                  leave the second division out; under DDP multiply such a loss by W
uneven-shards     each rank's mean counts alike, over unequal rows, words or weights
                  multiply rank i's mean by W * n_i / N (W ranks, its n_i of N terms)
gradient          a number over own rows, another loss or label on a rank, wrong factors
                  gather such a number, with gradients; compute alike on all ranks
buffers           buffers, such as running means, are each rank's own
                  DDP with broadcast_buffers=True, or broadcast them before evaluation
replicas-differ   ranks began apart, take other steps, or some write weights once more
                  apply one gradient, write on all ranks alike, or broadcast afterwards
"""  # code and cause, and under it the repair: a line each
ROWS = [line.strip() for line in TABLE.splitlines()]
WORDS = {
    row.split()[0]: (row.partition(" ")[2].strip(), repair)
    for row, repair in zip(ROWS[::2], ROWS[1::2])
}

# what has an entry in lesson 26, with a program that is wrong and one that is right
ENTRIES = {
    "exception": "one-rank-fails",
    "hang": "rank-0-only",
    "mismatch": "rank-0-only",
    "not-finite": "mean-of-means",
    "start-differs": "changed-after-wrapping",
    "sampler-differs": "own-split",
    "sampler-epoch": "same-order",
    "no-sampler": "same-rows",
    "rows-same": "same-rows",
    "rows-overlap": "tested-rows",
    "not-trained": "unused-layer",
    "random-same": "same-noise",
    "not-synchronised": "past-the-wrapper",
    "clip": "clipped-alone",
    "settings": "own-number",
    "sum": "wrong-factor",
    "averaged-twice": "wrong-factor",
    "uneven-shards": "mean-of-means",
    "gradient": "gather-cuts",
    "buffers": "batch-norm",
    "replicas-differ": "past-the-wrapper",
}
SEVERAL = ("gradient",)  # has other causes than its entry, too

# what does the least harm is told last
MILD = ("random-same", "sampler-epoch", "settings", "buffers")
GRAVE = sorted(WORDS, key=lambda code: code in MILD)
# where to look for what a code tells: the line of the forward, not of the step
PLACES = {
    "clip": "clip",
    "rows-same": "forward",
    "rows-overlap": "forward",
    "random-same": "forward",
    "uneven-shards": "forward",
    "not-synchronised": "forward",
    "buffers": "forward",
    "start-differs": "forward",
}


ONE_RANK = "a comparison: one rank has none beside it"


def finding(code, says, rank=None, step=None, place=""):
    """Make a Finding; cause, repair and what to see are those of its code."""
    see = "" if code in SEVERAL else ENTRIES.get(code, "")
    return Finding(code, says, *WORDS[code], rank, step, place, see)


def plural(count, noun):
    """Return how many there are, in words."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{ending}"


def few(names):
    """Return the first five names as text."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def numbers(some):
    """Return the first six numbers as text."""
    some = [f"{round(x, 9) + 0.0:.4g}" for x in some]  # + 0.0: no "-0"
    return ", ".join(some[:6]) + (", ..." if len(some) > 6 else "")


class Report:
    """Hold what an audit comes to; print as a table, the gravest finding first.

    look_at: what may be wrong, for a person to look at. looked_at, not_looked_at: what
    was listened to, and what was not. details: a traceback, if a rank raised.
    """

    def __init__(
        self,
        findings,
        look_at=(),
        not_looked_at=(),
        looked_at=(),
        world_size=1,
        steps=0,
        precision="float64",
        details="",
    ):
        self.findings = sorted(findings, key=lambda f: GRAVE.index(f.code))
        self.look_at = list(dict.fromkeys(look_at))
        self.not_looked_at = list(dict.fromkeys(not_looked_at))
        self.looked_at = list(looked_at)
        self.world_size, self.steps = world_size, steps
        self.precision, self.details = precision, details

    @property
    def compared(self):
        """Return whether ranks were compared: one rank has none beside it."""
        return self.steps > 0 and self.world_size > 1

    def __str__(self):
        """Write the table: a line for each number, cause and repair under it."""
        words = plural(len(self.findings), "finding") if self.findings else "no finding"
        if self.look_at:
            words += f", {len(self.look_at)} to check,"
        if not self.compared and not self.findings:
            words = "nothing was compared"
        head = f"on {plural(self.world_size, 'rank')}"
        if self.steps:
            head = f"in {plural(self.steps, 'step')} {head} ({self.precision})"
        findings = [str(found) for found in self.findings]
        lines = [f"{'check':16}  {words}" for words in self.look_at]
        if self.looked_at:
            lines.append(f"{'looked at':16}  {', '.join(self.looked_at)}")
        lines += [f"{'not looked at':16}  {words}" for words in self.not_looked_at]
        parts = [_wrapped([f"audit: {words} {head}"]), *findings, _wrapped(lines)]
        return "\n".join(part for part in parts if part)

    __repr__ = __str__
