"""What a rank notes, small enough to be sent, and what all ranks noted of one step.

Of a step `proof` is True if it is the one that the same code takes alone, False if not,
and None if the two cannot be compared: `why`. Sketches have a row for each parameter.
"""

from dataclasses import dataclass, field


@dataclass
class Update:
    """What one rank saw from one update of its weights to the next."""

    t: int = 0  # which step of the audit or script
    start: object = None  # sketch of the weights before
    state: dict = field(default_factory=dict)  # of models and optimizers, see state.py
    rng: int = 0  # hash of torch's generator then
    noisy: bool = False  # did the first forward draw?
    terms: list = field(default_factory=list)  # (n, each) of torch's losses
    batch: tuple = (0, None)  # of the audit: rows, and their hash
    rows: list = field(default_factory=list)  # of each forward: places, or hashes
    synced: int = 0  # forwards through a DDP that will sum
    pieces: list = field(default_factory=list)  # sketch of what each backward brought
    left: object = None  # of what stood in .grad before these
    used: object = None  # of what the optimizer found, unclipped
    held: list = field(default_factory=list)  # places of what it holds
    clips: list = field(default_factory=list)  # (max_norm, norm)
    after: object = None  # sketch of the weights after its step
    stop: object = None  # of the weights at the next begin
    line: str = ""

    @property
    def came(self):
        """Return the sketch of all that came back, None if nothing did."""
        return sum(self.pieces) if self.pieces else None


@dataclass
class Run:
    """What one rank saw in all."""

    names: list  # of the parameters
    shapes: list
    updates: list
    samplers: list  # what they were told
    close: float = 1e-7  # how exact the numbers are
    inside: int = 0  # so many are the models', of all names
    wrapped: bool = False  # in DDP, or what is like it
    idle: bool = False  # forwards, and no update since
    unjudged: str = ""  # why nothing of it is judged
    blurs: str = ""  # why one device steps otherwise
    reads: list = field(default_factory=list)  # some rows of datasets
    unheld: list = field(default_factory=list)  # names that no optimizer holds
    broken: list = field(default_factory=list)  # names of what is not finite


class Step:
    """Hold what all ranks did in one step, and one device in the same.

    updates: a list for each rank. unchecked: what rules say besides.
    """

    def __init__(self, t, runs, alone, watched, unchecked):
        self.t, self.runs, self.watched = t, runs, watched
        self.names, self.world_size = runs[0].names, len(runs)
        self.close, self.unchecked = max(run.close for run in runs), unchecked
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
        return far if far > 10 * self.close**2 * float(sketches[0].norm()) else 0

    def _prove(self):
        one, first, last = self.alone, self.first, self.last
        begin, size = one[0].start, float(one[0].start.norm())
        move = begin - one[-1].stop
        if any(
            u.start.shape != begin.shape
            or float((u.start - begin).norm()) > 1e-6 * size
            for u in first
        ):
            self.why = "at world size 1 the weights before the step are others"
        elif all(
            float((a.start - b.stop - move).norm())
            <= self.close * float(move.norm()) + 1e-13 * size
            for a, b in zip(first, last)
        ):
            self.proof = True
        elif first[0].batch[0] != one[0].batch[0]:
            self.why = "at world size 1 the step takes other rows"
        else:
            self.why = max(run.blurs for run in self.runs)
            self.proof = None if self.why else False
