"""What a rank notes, small enough to be sent; hashes and sketches: one a parameter."""

from dataclasses import dataclass, field


@dataclass
class Update:
    """What one rank saw from one update of its weights to the next."""

    t: int = 0                                 # which step of the audit or script
    start: object = None                       # sketch of the weights before
    state: dict = field(default_factory=dict)  # of the models then, see state.py
    rng: int = 0                               # hash of torch's generator then
    drew: bool = False                         # were numbers drawn until the update?
    noisy: bool = False                        # in the first forward?
    drawn: tuple = ()                          # hashes, with generators of its own
    seeds: list = field(default_factory=list)  # given to torch.manual_seed
    terms: list = field(default_factory=list)  # (n, each) of torch's losses
    wanders: bool = False                      # do weights move between forwards?
    batch: tuple = (0, None)                   # of the audit: rows, and their hash
    rows: list = field(default_factory=list)   # of each forward: places, or hashes
    numbers: int = 0                           # numbers in the forwards' inputs
    synced: int = 0                            # forwards through a DDP that will sum
    pieces: list = field(default_factory=list)  # sketch of what each backward brought
    left: object = None                        # of what stood in .grad before these
    used: object = None                        # of what the optimizer found, unclipped
    held: list = field(default_factory=list)   # places of what it holds
    clips: list = field(default_factory=list)  # (max_norm, norm)
    after: object = None                       # sketch of the weights after its step
    end: dict = field(default_factory=dict)    # optimizers' state, others', then
    stop: object = None                        # of the weights at the next begin
    line: str = ""

    @property
    def came(self):
        """Return the sketch of all that came back, None if nothing did."""
        return sum(self.pieces) if self.pieces else None


@dataclass
class Run:
    """What one rank saw in all."""

    names: list                                # of the parameters
    shapes: list
    wants: list                                # a gradient?
    updates: list
    samplers: list                             # what they were told
    close: float = 1e-7                        # how exact the numbers are
    apart: list = field(default_factory=list)  # names that need not be alike
    wrapped: bool = False                      # in DDP, or what is like it
    idle: bool = False                         # forwards, and no update since
    unjudged: str = ""                         # why nothing of it is judged
    blurs: str = ""                            # why one device steps otherwise
    reads: list = field(default_factory=list)  # some rows of datasets
    unheld: list = field(default_factory=list)  # names that no optimizer holds
    silent: list = field(default_factory=list)  # names that no backward reached
    broken: list = field(default_factory=list)  # names of what is not finite
    ignored: tuple = ()                        # codes to be remarks
