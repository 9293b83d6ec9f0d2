"""Run answers on ranks, and see what they hand to torch.distributed.

    on_ranks   what a function returns on every rank
    in_another_process    what it returns in a process of its own
    attempt    the same, or the error that kept the ranks from an end
    failed     what to tell a learner whose ranks came to no end
    noting     a function is called before each call of torch.distributed
    calls_of_collectives    a list that grows by every call of a collective
    Roll       in a rank: no collective begins before all ranks have come to it

A collective is noted if it is called by its name in torch.distributed; what torch
calls inside itself is not. Without Roll, a collective that some rank never calls would
hang. With it every rank first signs in the group's store, and looks who else has
signed: a missing rank is a number.
"""

import functools
import math
import re
import time
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from course.school.answers import Busy, TimeIsOver, busy, limit, put, settings
from course.school.checks import about, numbers, shorten
from manual_dp.ranks import RankError, run_ranks

# all ranks have to come to these ...
COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "barrier",
    "all_gather",
    "gather",
    "scatter",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
)
# ... and two of them, or more, to these
PAIRS = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
BLANK = "not written"
WAITED = r"^(?!raised)|gloo"  # what `failed` sees of ranks that waited for others
SECONDS = 15  # that all ranks have: plenty, unless they wait for one another
PATIENCE = 15  # seconds, for ranks that never come, if the machine is not busy


class Endless(RuntimeError):
    """Raised in a rank that computes and computes."""


def on_ranks(work, world_size, seconds):
    """Return what `work()` returns on each rank, as lists; a blank answer raises here.

    NotImplementedError is an answer's own if it says nothing: torch's has a text.
    Raises RankError for ranks that come to no end by themselves, Busy if only the
    machine may be slow.
    """

    def written():
        try:
            with limit(0.6 * seconds, patience=math.inf):
                return numbers(work()), settings()
        except NotImplementedError as error:
            if str(error):
                raise
            return BLANK
        except TimeIsOver as over:
            raise Endless(str(over)) from None

    results = _run(written, world_size, seconds)
    if BLANK in results:
        raise NotImplementedError
    for _, now in results:  # what a rank leaves changed shows here, too
        put(now)
    return [result for result, _ in results]


def _run(work, world_size, seconds):
    """Run ranks; once more with four times the seconds, if the machine was slow.

    Ranks that all wait for one another will not end on any machine. A rank that was
    still computing would have been ended by its limit, had it had a processor.
    """
    for timeout in (seconds, 4 * seconds):
        try:
            return run_ranks(work, world_size, timeout=timeout)
        except RankError as error:
            slow = "runs" in error.states.values() or busy()
            if error.kind != "hung" or not slow:
                raise
            if set(error.states.values()) == {"waits"} and timeout > seconds:
                raise
    raise Busy(
        f"The machine is busy: {world_size} ranks had {timeout} s, and some were "
        "still at work. Run the cell again."
    )


def in_another_process(function, *args):
    """Return what a function returns in a process of its own, as numbers in lists.

    The hash of a str differs there, and so do the states of generators.
    """
    return on_ranks(lambda: function(*args), 1, SECONDS)[0]


def attempt(work, world_size, seconds=SECONDS):
    """Return every rank's result and None, or None and the error, for `failed`."""
    try:
        return on_ranks(work, world_size, seconds), None
    except RankError as error:
        return None, error


def failed(given, error, wanted, hints=()):
    """Return None, or the message if ranks came to no end: what `attempt` returns.

    hints: {what it looks like: a pattern}; the first whose pattern is found in the
    error's kind and text is said. False is no pattern.
    """
    if error is None:
        return None
    text = " ".join(str(error).split())
    got = f"no result: {shorten(text, 200)}{shorten(_place(error), 100)}"
    return about(given)(
        "on ranks",
        got,
        wanted,
        {
            hint: bool(pattern) and bool(re.search(pattern, f"{error.kind}: {text}"))
            for hint, pattern in dict(hints).items()
        },
    )


def _send_with_torch_distributed(model):
    """Let a DDP model call dist.all_reduce, where it can be seen, from its first step.

    A model to which somebody has given a communication hook by then is left alone.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    register = model.register_comm_hook

    def register_own(state, hook):
        before_the_first_step.remove()
        register(state, hook)

    def register_ours(*_):
        before_the_first_step.remove()
        register(None, default_hooks.allreduce_hook)

    model.register_comm_hook = register_own
    before_the_first_step = model.register_forward_pre_hook(register_ours)


def _place(error):
    """Return the line of the learner's code at which a rank's traceback ends."""
    frames = [
        (line, name)
        for path, line, name in re.findall(
            r'File "(.*)", line (\d+), in (\w+)', str(getattr(error, "details", ""))
        )
        if not re.search("manual_dp|notebooks/course|site-packages|torch", path)
    ]
    return f" (in {frames[-1][1]}, line {frames[-1][0]} of its cell)" if frames else ""


@contextmanager
def noting(note, names):
    """While the block runs, call note(name, ...) before each call of dist's `names`.

    It is handed the name and what the call is handed. If it raises, nothing is called.
    """
    real = {name: getattr(dist, name) for name in names}

    def call(name, *args, **kwargs):
        note(name, *args, **kwargs)
        return real[name](*args, **kwargs)

    with patch.multiple(dist, **{name: functools.partial(call, name) for name in real}):
        yield


@contextmanager
def calls_of_collectives(before=lambda name: None, names=(*COLLECTIVES, *PAIRS)):
    """Yield a list; while the block runs, each call of a collective adds to it.

    An all-reduce adds how many numbers it is handed, any other its name.
    before: called with the name of a collective before it starts. names: of those that
    are noted.
    """
    calls = []

    def note(name, *args, **kwargs):
        before(name)
        tensor = args[0] if args else kwargs.get("tensor")
        counted = name == "all_reduce" and isinstance(tensor, torch.Tensor)
        calls.append(tensor.numel() if counted else name)

    with noting(note, names):
        yield calls


class Roll(ExitStack):
    """Watch the collectives of this rank's process, DDP's too, until the block ends.

    absent: how many ranks had not come to a collective when another was done with
    everything, or patience ran out.
    """

    def __enter__(self):
        self.store = dist.distributed_c10d._get_default_store()
        self.scope, self.absent, self.signing = 0, 0, False
        self.seen = self.enter_context(calls_of_collectives(self._sign))
        init = DDP.__init__

        def hooked(model, *args, **kwargs):
            init(model, *args, **kwargs)
            _send_with_torch_distributed(model)

        self.enter_context(patch.object(DDP, "__init__", hooked))
        return self

    def call(self, function, *args):
        """Return `function(*args)`; or None, if it waited for an absent rank."""
        self.scope += 1
        self.signed, self.absent, self.signing = 0, 0, True
        self.seen.clear()
        try:
            return function(*args)
        except Exception:
            if not self.absent:
                raise
        finally:
            self.signing = False
            self.store.add(f"{self.scope} done", 1)

    def sizes(self):
        """Return how many numbers each all-reduce was handed since the last call."""
        return [call for call in self.seen if isinstance(call, int)]

    def _sign(self, name):
        if not self.signing or name not in COLLECTIVES:
            return
        self.signed += 1
        end, ranks = time.monotonic() + PATIENCE, dist.get_world_size()
        anywhere = f"{self.scope} {self.signed}"  # some may be in another collective
        here = f"{anywhere} {name}"
        self.store.add(here, 1)
        self.store.add(anywhere, 1)
        while True:
            over = (
                self.store.add(f"{self.scope} done", 0)
                or (time.monotonic() > end and not busy())
                or self.store.add(anywhere, 0) == ranks
            )
            absent = ranks - self.store.add(here, 0)
            if not absent:
                return
            if over:
                self.absent = absent
                raise RuntimeError(f"{absent} ranks do not call {name}")
            time.sleep(0.001)
