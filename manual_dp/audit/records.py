"""What a rank notes: in a run, in a step, of a forward; `rules` are asked about these.

    Run       one rank's steps, and what is not of one step
    Step      one rank's part in a step; a field that nobody noted says so
    Forward   one forward with gradients, kept so that it can be run again
    Clip      one call that clips gradients
    Part      one loss of torch's, in what a backward begins with
    Sampler   what a DistributedSampler was told
    Dealt     what a loader gave
    Drift     where ranks part that should be alike
    Evidence  the runs of all ranks, as rules see them, and what was found so far
    each_step make a rule about evidence from one about a step

Rules take a missing note for no mistake: so `audit` and `watch`, which see all, and
`check_ranks`, which sees a model between two lines, are judged by the same ones.
"""

from collections import namedtuple
from dataclasses import dataclass, field
from functools import wraps

# rows: which of X, None where they are not recognised; targets: the rows' own y
Forward = namedtuple("Forward", "model args kwargs rows targets buffers training rng")
# most: max_norm; norm: before it was clipped; None where it is not known
Clip = namedtuple("Clip", "most norm")
# place: of a loss; terms: it is a mean, or a sum, of so many; each: what one counts,
# None if they do not count alike; of_row: how many belong to a row, where it is a sum
# mixes: may a term depend on other rows than its own? forward: how many there were
# aims: what it is to reach, a number for each row; () if they are too many
# shape: of a row of the output; real: are these no whole numbers?
Part = namedtuple("Part", "place terms each of_row mixes forward aims shape real",
                  defaults=((), (), False))
# told: of an epoch, since it was made? None if nobody knows
Sampler = namedtuple("Sampler", "of rows seed epoch shuffle world_size rank told",
                     defaults=(None,))
# size: rows of a batch; sampled: by a DistributedSampler; rows: their hash, None if
# there are none; read: the places of the rows in the dataset, and what stands there
# workers: of an IterableDataset, each with a copy of its own, which give by turns
Dealt = namedtuple("Dealt", "size sampled rows read workers", defaults=(0,))
# step: None between steps; when: "before", "after" or "gradient", as in a Step
# parameter: its place, None where some rank has none; ranks: that are not rank 0's
Drift = namedtuple("Drift", "step when parameter ranks distance")


@dataclass
class Step:
    """Hold what one rank did in one step. Sketches and hashes: see `fingerprint`."""

    t: int = None           # which step
    wanders: bool = False   # do weights change between its forwards?
    place: str = ""         # file and line that called the optimizer's step
    close: float = 1e-7     # how exact its numbers are: float64's, or the script's
    start: object = None    # a `Setup` of the models at the first forward,
    setup: object = None    # and one of all that there is at the end
    # what went in
    batch: int = None       # a hash of all rows of the minibatch
    size: int = 0           # how many rows it has, 0 if unknown
    copies: dict = field(default_factory=dict)    # row: how many are equal to it
    all_rows: list = field(default_factory=list)  # of each forward: places in X; None
    rows: list = field(default_factory=list)      # the same of forwards that are judged
    dealt: list = field(default_factory=list)     # were all_rows a loader's?
    numbers: int = 0        # numbers in the forwards' first inputs
    lost: str = ""          # why rows of a script's loader may not have been seen
    draws: bool = False     # were random numbers drawn?
    drawn: list = field(default_factory=list)     # hashes of these
    # of each update: generators' state, False if as before; hash of what own ones drew
    random: tuple = ()
    drops: bool = False     # would dropout have dropped?
    masked: bool = False    # for the rank's own rows
    seeded: tuple = ()      # with which seeds, in the step
    given: tuple = ()       # the seeds of what was drawn before the steps
    norms: int = 0          # calls of batch_norm that are for its rows' statistics
    # what was sent
    synced: int = 0         # forwards that DDP averages the gradients of
    summed: int = 0         # numbers that went into dist.all_reduce
    reduced: bool = False   # was dist.reduce called?
    traded: bool = False    # was some all-to-all?
    gathered: bool = False  # what wants a gradient, by what hands none back?
    cut: str = ""           # which call of a forward hands no gradient back
    wraps: str = ""         # how DDP is used: "ddp", "join", torch's hook by name
    # what came back: a sketch for each backward, and what stood in .grad before these
    pieces: list = field(default_factory=list)
    left: object = None
    leftover: object = None  # what came, and no optimizer of this rank applied
    cleared: bool = False   # were some gradients cleared before they were applied?
    inputs: list = field(default_factory=list)    # hashes of inputs that are no rows
    weight: int = 0         # how many terms the loss over these rows is a mean of
    own: object = None      # sketch of the rows' gradients' sum; None if not judged
    unreached: list = field(default_factory=list)  # places that this does not reach
    turned: dict = None     # `own` for other rows' targets: see `other_rows`
    terms: list = field(default_factory=list)     # a `Part` for each loss of a script
    unheard: bool = False   # is there something else in what backward begins with?
    divided: set = field(default_factory=set)     # numbers that losses are divided by
    # what was applied
    clips: list = field(default_factory=list)
    early: bool = False     # did gradients change after they were clipped?
    used: object = None     # sketch of the optimizer's gradients; None without one
    updates: int = 0        # steps of torch's optimizers
    inside: bool = False    # does the optimizer call backward, as LBFGS does?
    kind: str = None        # the optimizer's class
    plain: bool = False     # SGD without momentum and weight decay
    foreign: int = 0        # optimizers that hold no parameter of the model's
    rates: dict = field(default_factory=dict)     # parameter's place: lr
    before: list = None     # hashes of the parameters,
    after: list = None      # and at the end
    gradient: list = None   # hashes of the gradients
    stepped: dict = field(default_factory=dict)   # hashes, after the optimizer's step
    mine: object = None     # sketch of the parameters then
    # of what no model holds: numbers before the optimizer's step, and after it
    strangers: tuple = field(default_factory=lambda: ({}, {}))
    calls: dict = field(default_factory=dict)     # of optimizers' steps and schedules
    metrics: list = field(default_factory=list)   # that a schedule goes by
    averager: bool = False  # was torch's averager of weights asked?
    weights: object = None  # sketch of the parameters at the end
    step: object = None     # sketch of before - after
    blur: float = 0.0       # the size of the weights, which is how exact `step` is

    @property
    def hook(self):
        """Return the name of torch's hook that changes gradients, "" without one."""
        return "" if self.wraps in ("ddp", "join") else self.wraps

    @property
    def came(self):
        """Return the sketch of all that came back in this step, None if nothing did."""
        return sum(self.pieces) if self.pieces else None

    @property
    def moved(self):
        """Return whether the weights changed, None if nobody knows."""
        return None if self.before is None else self.before != self.after

    @property
    def applied(self):
        """Return the sketch of what the optimizer used or, without one, of the step."""
        return self.step if self.used is None else self.used

    @property
    def noise(self):
        """Return the rounding in `applied`: a difference of weights has 16 digits."""
        return 1e-15 * self.blur if self.used is None else 0.0


@dataclass
class Run:
    """Hold what one rank saw in a whole run."""

    names: list             # of the parameters
    shapes: list
    steps: list
    several: bool = False   # are there several models?
    trainable: int = 0      # numbers in parameters that want a gradient
    finds_unused: bool = False  # was DDP told find_unused_parameters?
    left_alone: list = field(default_factory=list)  # names that DDP was told
    shared: tuple = None    # names of a parameter and another tensor on its memory
    common: dict = field(default_factory=dict)    # on memory of several: where that is
    drifts: list = field(default_factory=list)    # known to all ranks alike
    samplers: list = field(default_factory=list)  # that were iterated
    given: list = field(default_factory=list)     # a `Dealt` for each batch of a loader
    sets: list = field(default_factory=list)      # some rows of datasets: see `reads`
    orders: list = field(default_factory=list)    # an `Order` of each other sampler
    seed: int = None        # of random numbers, of which none was drawn yet
    again: int = None       # the epoch in which a batch came a second time
    loss: object = None     # of output and targets: given, or found at world size 1
    ignored: tuple = ()     # codes of findings that a script wants as remarks
    told: bool = False      # was the loss given?
    bare: bool = False      # did nobody say watch, nor wrap the model?
    failed: str = ""        # why it could not be had of the model's output


class Evidence:
    """Hold what rules are asked about.

    runs: the `Run` of every rank. steps: of every step, the `Step` of every rank.
    alone: the `Run` of the same code at world size 1, or None.
    lr: what a step by hand multiplies the mean gradient by, or None.
    watched: is it a script's own run, that nobody takes on one device?
    ignored: codes of findings that are known and no mistake.
    findings: of the rules before. remarks: what was seen and is no mistake.
    unchecked: what could not be judged, and why.
    """

    def __init__(self, runs, alone=None, lr=None, watched=False, ignored=()):
        self.runs, self.lr, self.watched, self.ignored = runs, lr, watched, ignored
        self.steps = list(zip(*(run.steps for run in runs)))
        self.alone = list(zip(alone.steps)) if alone else []
        self.names = runs[0].names
        self.close = max((note.close for run in runs for note in run.steps), default=0)
        self.findings, self.remarks, self.unchecked = [], [], []
        self.split = False  # has each rank a part of the model of its own?
        self.local = False  # do ranks train on their own and average weights?
        self.fixed = False  # was one device given more rows than it asked for?
        self.stepped_apart = None  # the step that some rank takes after more forwards
        starts = [note.start for note in runs[0].steps if note.start]
        # layers of batch norm at work; of these, torch's own, which send nothing
        self.norms = max((start.norms for start in starts), default=0)
        self.own_norms = max((start.own_norms for start in starts), default=0)

    def remark(self, words):
        """Say what is no mistake, once."""
        if words not in self.remarks:
            self.remarks.append(words)

    def skip(self, what, why):
        """Say what was not checked and why, once."""
        if not any(words.startswith(what) for words in self.unchecked):
            self.unchecked.append(f"{what}: {why}")


def each_step(rule):
    """Return a rule that asks `rule(notes, evidence)` until a step breaks it.

    notes: the `Step` of every rank. The findings get the step's number.
    """
    @wraps(rule)
    def first(evidence):
        for notes in evidence.steps:
            if found := list(rule(notes, evidence)):
                return [f._replace(step=notes[0].t, place=notes[f.rank or 0].place)
                        for f in found]
        return []
    return first
