"""What a rank notes, small enough to be sent: no tensor but sketches.

Sketches have a row for each parameter, in the order of `Run.names`.
"""

import io
import pickle
from dataclasses import dataclass, field, replace

import torch


@dataclass
class Update:
    """What one rank saw from one update of its weights to the next."""

    t: int = 0  # which step of the audit, or which update of a script
    # (where its optimizer was made, a parameter's name, how often it has stepped)
    key: tuple = ()
    start: object = None  # sketch of the weights before
    state: dict = field(default_factory=dict)  # of models and optimizers, see state.py
    rng: object = None  # number of torch's generator before a forward drew from it
    outside: dict = field(default_factory=dict)  # generators that drew beside forwards
    batch: tuple = (0, None)  # in `audit_step`: rows of the minibatch, and their hash
    rows: list = field(default_factory=list)  # of each forward: places, or hashes
    tests: list = field(default_factory=list)  # lines of DDP's forwards without grad
    way: str = ""  # how the last forward of a model that stepped began: private.way
    terms: list = field(default_factory=list)  # (n, each) of the losses, see losses.py
    pieces: list = field(default_factory=list)  # sketch of what each backward brought
    left: object = None  # sketch of what stood in .grad before these
    used: object = None  # sketch of what the optimizer found there, before clipping
    held: list = field(default_factory=list)  # places of what the optimizers hold
    # (max_norm, norm, was it a rank's own gradient that was clipped?)
    clips: list = field(default_factory=list)
    factors: dict = field(default_factory=dict)  # by place: what clipping multiplied by
    stepped: object = None  # sketch of the weights right behind the optimizer's step
    stop: object = None  # the same when the next update begins
    lines: dict = field(default_factory=dict)  # {"forward": "train.py, line 9", ...}

    @property
    def applied(self):
        """Return the sketch of what the optimizer found, as it was clipped."""
        rows = self.used.clone()
        for i, factor in self.factors.items():
            rows[i] *= factor
        return rows

    @property
    def came(self):
        """Return the sketch of all that backward brought, None if nothing came."""
        return sum(self.pieces) if self.pieces else None


@dataclass
class Run:
    """What one rank saw in all."""

    names: list  # of the parameters
    shapes: list
    updates: list
    samplers: list  # what each DistributedSampler was told
    close: float = 1e-7  # how exact the numbers are
    inside: int = 0  # so many of the parameters are a model's
    fresh: bool = True  # did the record begin before any forward?
    idle: bool = False  # there were forwards, and no update since
    unjudged: str = ""  # why nothing of it is judged
    blurs: str = ""  # why one device would step otherwise
    apart: list = field(default_factory=list)  # places: DDP was told to ignore them
    # by place, what no wrapper took in: "beside" the models, or "new" in one
    free: dict = field(default_factory=dict)
    gathered: list = field(default_factory=list)  # (name, place) before a backward
    reads: list = field(default_factory=list)  # some rows of data sets
    streamed: list = field(default_factory=list)  # the same of streams, by minibatch
    unheld: list = field(default_factory=list)  # names that no optimizer holds
    broken: list = field(default_factory=list)  # names of what is not finite
    silent: dict = field(default_factory=dict)  # hashes of silent modules
    looked_at: list = field(default_factory=list)  # in words
    not_looked_at: list = field(default_factory=list)  # in words


def pack(run):
    """Return a Run as bytes.

    What torch.func has made cannot be sent: then nothing of the Run is judged.
    """
    try:
        return _packed(run)
    except Exception:  # noqa: BLE001 (whatever torch says)
        why = "the steps: gradients of torch.func are taken"
        return _packed(replace(run, updates=[], unjudged=why))


def unpack(packed):
    """Return the Run in these bytes."""
    return pickle.loads(packed)  # noqa: S301 (a rank of ours packed it)


def _packed(run):
    file = io.BytesIO()
    _Pickler(file).dump(run)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Pickle a sketch as its bytes: ten times as fast as torch does."""

    def reducer_override(self, one):
        """Return how to make a tensor again."""
        if type(one) is torch.Tensor and one.dtype == torch.float64:
            return _sketch, (one.numpy().tobytes(), tuple(one.shape))
        return NotImplemented


def _sketch(data, shape):
    return torch.frombuffer(bytearray(data), dtype=torch.float64).reshape(shape)
