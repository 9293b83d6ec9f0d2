"""What exercises draw and watch, and what several of them ask.

    rand, images        distinct, continuous numbers; images for LeNet, and labels
    replica             copies of parameters on a device
    tensors             refuse what is not a list of so many tensors
    forms               dtype and shape of tensors, in words
    calls_of_lenet, rows_seen   which rows go through which replica's LeNet
    others_draw         is torch's own generator as it was?
    together, moved     do tensors come to the devices where they belong?
    summed              does every rank hold the sum? And if not, whose numbers?
    sums_at, unwritten, in_memory, describe    the parts of that

On a CPU, the device `meta` tells whether tensors are moved: it has no numbers.
"""

from collections import namedtuple
from contextlib import contextmanager, suppress
from itertools import chain, product
from unittest.mock import patch

import torch
from torch.nn import functional as F

from course.school.answers import kept
from course.school.checks import about, close, flat, numbers, shorten, so_many

META, CPU = torch.device("meta"), torch.device("cpu")
SHAPES = [(), (1,), (5,), (3, 4)]  # of a model's parameters
LAST = 1e-12  # far above what another order of float64 changes, far below a short cut
# address: where the first weights lie, None if unknown. pixels: the first of each
# image. gradients: are they on? together: are images and weights on one device?
Call = namedtuple("Call", "address pixels gradients together")


def generator(random):
    """Return a torch.Generator that follows Python's."""
    return torch.Generator().manual_seed(random.getrandbits(32))


def rand(random, *shape):
    """Draw a float64 tensor of numbers from -1 to 1."""
    return 2 * torch.rand(shape, dtype=torch.float64, generator=generator(random)) - 1


def images(random, rows):
    """Draw images for LeNet, and labels."""
    return rand(random, rows, 1, 28, 28).abs(), torch.randint(
        10, (rows,), generator=generator(random)
    )


def replica(params, device):
    """Return copies of `params` on a device, which want gradients."""
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]


def tensors(value, count, name):
    """Return `value`; raise TypeError unless it is a list of `count` tensors."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"{name} must return a list of tensors, got {type(value).__name__}"
        )
    for i, part in enumerate(value):
        if not isinstance(part, torch.Tensor):
            raise TypeError(
                f"{name} returned a {type(part).__name__} at [{i}], not a tensor"
            )
    if len(value) != count:
        raise TypeError(f"{name} returned {len(value)} tensors, not {count}")
    return value


def forms(parts):
    """Return dtype and shape of each tensor, in words; of what is none, its type."""
    return [
        f"{part.dtype} of shape {tuple(part.shape)}"
        if isinstance(part, torch.Tensor)
        else f"a {type(part).__name__}"
        for part in parts
    ]


@contextmanager
def calls_of_lenet(until=None):
    """Yield a list; while the block runs, each call of lenet adds a Call.

    Calls without rows are left out. torch.func hands on tensors without a memory of
    their own: nobody can see whose they are, and the address is None.
    until: a device; the first call with weights there raises.
    """
    calls, conv2d = [], F.conv2d

    def call(X, W, *args, **kwargs):
        if X.shape[1] == 1 and len(X):
            calls.append(_noted(X, W))
            if W.device == until:
                raise RuntimeError("enough was seen")
        return conv2d(X, W, *args, **kwargs)

    with patch.object(F, "conv2d", call):
        yield calls


def _noted(X, W):
    gradients, together = torch.is_grad_enabled(), X.device == W.device
    try:
        pixels = [] if X.is_meta else X[:, 0, 0, 0].tolist()
        return Call(W.data_ptr(), pixels, gradients, together)
    except RuntimeError:
        return Call(None, [], gradients, together)


def rows_seen(calls, replicas, X):
    """Return the rows of X that each replica worked on, and as a last list all others'.

    A row is known by the first pixel of its image, a replica by where its first
    weights lie. Returns None if some call could not be seen.
    """
    if None in [call.address for call in calls]:
        return None
    order = {pixel: row for row, pixel in enumerate(X[:, 0, 0, 0].tolist())}
    addresses = [params[0].data_ptr() for params in replicas]
    seen = [[] for _ in range(len(replicas) + 1)]
    for call in calls:
        rank = -1
        if call.address in addresses:
            rank = addresses.index(call.address)
        seen[rank] += [order[pixel] for pixel in call.pixels if pixel in order]
    return seen


def others_draw(say, before, hint):
    """Compare torch's own generator with its state `before` the call; put it back."""
    unmoved = torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)
    return say(
        "what does torch.rand draw after the call?",
        "as before" if unmoved else "other numbers",
        "as before",
        {hint: True},
    )


def together(work, params, random):
    """Compare: do rows and weights meet in work(X, y, replicas, devices)?

    Each of two replicas in turn is on meta. There torch would compute through its
    compiler, whose import takes seconds, so that the first call ends the work.
    """
    met = []
    for devices in [META, CPU], [CPU, META]:
        replicas = [replica(params, device) for device in devices]
        with calls_of_lenet(until=META) as calls, kept(), suppress(Exception):
            work(*images(random, 4), replicas, devices)
        met += [call.together for call in calls]
    return about("a replica on a device called meta, all else on the CPU")(
        "do rows and weights meet on one device?",
        all(met),
        True,
        {"move each shard to its replica's device: X_shard.to(device)": True},
    )


def moved(function, args, wanted, how):
    """Compare the devices of the tensors, in lists, that `function(*args)` returns."""

    def of(value):
        if isinstance(value, (list, tuple)):
            return [of(part) for part in value]
        return str(value.device) if isinstance(value, torch.Tensor) else "no device"

    try:
        with kept():
            got = of(function(*args))
    except Exception:  # for want of numbers: that tells nothing
        return None
    return about("devices meta, which has no numbers, and cpu")(
        "on which is each tensor?",
        got,
        wanted,
        {f"move each tensor to the device that was given for it: {how}": True},
    )


def summed(
    held,
    after,
    handed=(),
    returned=(),
    views=None,
    where="the tensor on rank {1}",
    cut=lambda row: [row],
    late=(),
):
    """Yield how `after`, the ranks' tensors, are not the sum of all that ranks `held`.

    handed: the list that was handed over. returned: by the answer. views: other
    tensors for the same memory. cut(row): one rank's numbers as parts, which are looked
    at one by one; where: a part's name, given its index and the rank. late: hints that
    are tried last.
    """
    held, after = numbers(held), numbers(after)
    everywhere, given = [_total(held)] * len(held), describe(held)
    rank_0_alone = [everywhere[0], *held[1:]]
    early = {
        **unwritten(held, after, handed, returned, everywhere),
        "only rank 0 has the sum: send it back": close(after, rank_0_alone),
    }
    addends = list(zip(*map(cut, held)))  # for each part, what the ranks held
    places = []
    for rank, row in enumerate(after):
        for i, part in enumerate(cut(row)):
            places.append((where.format(i, rank), part, list(addends[i])))
    yield from sums_at(given, places, early, late)
    yield about(given)("all tensors", after, everywhere, tolerance=LAST)
    if views is not None:
        yield in_memory(given, views, everywhere)


def describe(held):
    """Return what was given, in words."""
    own, each = held[0], " each" if len(held) > 1 else ""
    what = so_many(len(flat(own)), "number")
    if isinstance(own, list) and own and isinstance(own[0], list):
        what = f"parameters of {', '.join(str(len(flat(p))) for p in own)} numbers"
    return f"{so_many(len(held), 'rank')} with {what}{each}"


def unwritten(held, after, handed, returned, *wanted):
    """Return hints for tensors that are as they were; `wanted` may stand elsewhere."""
    handed, returned = numbers(handed), numbers(returned)
    in_list = any(close(handed, value) for value in wanted)
    in_return = any(close(returned, value) for value in wanted)
    as_before = len(held) > 1 and close(after, held)
    return {
        "the list holds the sums, the tensors that were in it do not: list[i] = ... "
        "puts another one there; write into the old one, with add_ or "
        "copy_": in_list and not close(handed, after),
        "the result is returned; it must be written into the tensor": in_return,
        "the tensors hold what they held: tensor = tensor + ... makes a new one, and "
        "so does clone; write into the old one, with add_ or copy_": as_before,
    }


def sums_at(given, places, early, late=()):
    """Compare places, (name, numbers there, each rank's addend), with their sums."""
    for name, got, addends in places:
        yield about(given)(
            f"{name}; ranks 0, 1, ... held {shorten(addends, 200)} there",
            got,
            _total(addends),
            chain(early.items(), _made_of(name, addends, places), dict(late).items()),
            LAST,
        )


def in_memory(given, views, wanted):
    """Compare what stands in the memory that tensors had: `views` of it."""
    return about(given)(
        "the tensors' memory",
        views,
        wanted,
        {
            "its memory is as it was: x.data = ... and set_ put other memory under a "
            "tensor, and whoever holds a view of it sees nothing; write into the old "
            "one, with add_ or copy_": True
        },
        LAST,
    )


def _total(values):
    if isinstance(values[0], list):
        return [_total(part) for part in zip(*values)]
    return sum(values)


def _scaled(value, factor):
    if isinstance(value, list):
        return [_scaled(part, factor) for part in value]
    return value * factor


def _made_of(name, addends, places):
    """Yield hints: how often is each rank's addend in these numbers?"""
    k, times = len(addends), ("", " twice", " 3 times")
    yield "this is the mean; the sum is wanted", _scaled(_total(addends), 1 / k)
    for counts in product((1, 0, 2, 3) if k < 5 else (1, 0, 2), repeat=k):
        terms = []
        for rank, count in enumerate(counts):
            if count:
                terms.append(f"rank {rank}'s{times[count - 1]}")
        held = " + ".join(terms) or "zeros"
        yield (
            f"{name} holds {held}; every rank belongs in it once",
            _total([_scaled(a, n) for a, n in zip(addends, counts)]),
        )
    for other, _, addends in places:
        yield f"{other} should hold these numbers", _total(addends)
