"""Who counts whom: the matrix C with used = C came, and how to read it.

    Mixed      what one update is made of: sketches of all ranks
    matrix     C[r][k]: how often rank r applies the gradient of rank k
    read       the finding that a matrix is
    by_pieces, by_parameter   the same, a column a micro-batch, a matrix a parameter

                         rank 0 applies      rank 1 applies      one device counts
    right                [.5, .5]            the same            [.5, .5]
    mean of means        [.5, .5]            the same            [.6, .4]
    summed               [1, 1]              the same            [.5, .5]
    model.module called  [1, 0]              [0, 1]              [.5, .5]
    broadcast            [1, 0]              the same            [.5, .5]
    rank 1 left out      [.5, 0]             the same            [.5, .5]

No guess is tried: the matrix is the diagnosis.
"""

import math
from dataclasses import dataclass, field

from manual_dp.audit2.report import finding
from manual_dp.audit2.sketch import mixture
from manual_dp.ranks.launch.verdict import listed

ROUNDING = 1e-6  # of numbers in C
SAME = 1e-5      # numbers that are equal, where they were divided
MOST = 64        # columns


@dataclass
class Mixed:
    """Hold what came back to each rank in an update, and what each applied."""

    came: list                # a sketch for each rank
    used: list
    held: list                # places of parameters, for each rank
    pieces: list = field(default_factory=list)  # sketches, of each rank's backwards
    alone: object = None      # what one device applies, None if nobody knows
    close: float = 1e-7
    noise: float = 0.0
    by_hand: bool = False     # is `used` the step, of unknown rate?
    clipped: bool = False     # did some rank clip?
    early: bool = False       # before the ranks' sum?
    past: bool = False        # did no forward go through the wrapper that sums?

    def __post_init__(self):
        """Note which ranks have any gradient."""
        self.world_size = len(self.came)
        self.live = [k for k, c in enumerate(self.came) if float(c.norm()) > 0]
        self.near = max(ROUNDING, self.close)

    def fit(self, r, parts, made=None):
        """Return the numbers that make of `parts` what rank r used; or None."""
        rows = self.held[r]
        made = self.used[r] if made is None else made
        return mixture(made[rows], [part[rows] for part in parts], self.close,
                       self.noise)


def matrix(mixed):
    """Return C, a list for each rank; None for a rank that no numbers explain."""
    return [mixed.fit(r, mixed.came) for r in range(mixed.world_size)]


def read(C, one, mixed):
    """Return the finding that C is, None if it may be right.

    one: how often a single device counts each rank's gradient, None if nobody knows.
    """
    if mixed.world_size == 1:
        return None
    size = max(abs(x) for c in C for x in c)
    zero = [[abs(x) <= mixed.near * size for x in c] for c in C]
    if any(abs(x - y) > 10 * mixed.near * size for c in C for x, y in zip(c, C[0])):
        return _other_rows(C, zero, size, mixed)
    counted = [k for k in mixed.live if not zero[0][k]]
    missing = [k for k in mixed.live if zero[0][k]]
    if missing:
        only = f"all ranks apply the gradient of {listed(counted)} alone"
        if len(counted) > 1 or _is_share(C[0][counted[0]], one and one[counted[0]],
                                         mixed.world_size):
            only = f"the sum leaves out {listed(missing)}"
        return finding("rank-left-out", only, missing[0])
    if mixed.early:
        return finding("clip", "gradients are clipped before they are summed")
    return _beside_one(C[0], one, mixed) if one else None


def _is_share(number, one, world_size):
    """Return whether one of two ranks counts as often as if the other did, too."""
    return world_size == 2 and math.isclose(number, one or 0.5, rel_tol=SAME)


def _other_rows(C, zero, size, mixed):
    """Return the finding on a matrix whose rows differ."""
    live, everyone = mixed.live, range(mixed.world_size)
    own = [r for r in live if not zero[r][r] and all(zero[r][k] for k in live if k != r)]
    if own and len(live) > 1:
        back = [r for r in everyone if r not in own and not any(zero[r])]
        says = f"{listed(own)} applied the gradient of their own rows alone" if len(
            own) > 1 else f"rank {own[0]} applied the gradient of its own rows alone"
        if back:
            says += f"; {listed(back)} have the sum, which was not sent back"
        return finding("not-synchronised", says + mixed.past * (
            ": no forward went through the wrapper that sums"), own[0])
    times = [{round(x / y, 5) for x, y in zip(c, C[0]) if abs(y) > mixed.near * size}
             for c in C]
    if all(len(one) == 1 for one in times):
        says = "ranks apply different multiples of one gradient: " + _numbers(
            [one.pop() for one in times])
        return finding("clip" if mixed.clipped or mixed.early else "gradient", says)
    return finding("gradient", "ranks apply different mixtures of their gradients: "
                   f"rank 0 counts them {_numbers(C[0])} times, rank 1 {_numbers(C[1])}")


def _beside_one(c, one, mixed):
    """Return the finding on equal rows c, where one device counts `one`."""
    if any(abs(one[k]) <= 1e-9 for k in mixed.live):
        return None
    times = [c[k] / one[k] for k in mixed.live]
    if max(times) - min(times) <= SAME * max(map(abs, times)):
        return scaled(times[0], mixed)
    if max(c[k] for k in mixed.live) - min(c[k] for k in mixed.live) <= 10 * (
            mixed.near * max(map(abs, c))):
        least = min(one[k] for k in mixed.live)
        return finding("uneven-shards", "ranks' gradients count alike, on a single "
                       f"device they count {_numbers([one[k] / least for k in mixed.live])}"
                       " times")
    least = min(times, key=abs)
    return finding("gradient", "ranks count " + _numbers([x / least for x in times])
                   + " times as often as on one device")


def scaled(times, mixed):
    """Return the finding on a gradient that is so many times one device's."""
    W, M = mixed.world_size, max(map(len, mixed.pieces), default=1)
    says = f"the gradient is {times:.4g} times a single device's"
    if abs(times - 1) < ROUNDING:
        return None
    if math.isclose(times, W, rel_tol=SAME):
        return finding("sum", f"{says}: the world size")
    if math.isclose(times, 1 / W, rel_tol=SAME):
        return finding("averaged-twice", f"{says}: the world size, inverted")
    if M > 1 and math.isclose(times, M, rel_tol=SAME):
        return finding("accumulation", f"{says}: the number of micro-batches")
    return finding("gradient", says)


def by_pieces(mixed):
    """Return the finding where micro-batches do not count alike, or None."""
    columns = [(k, m, piece) for k, mine in enumerate(mixed.pieces)
               for m, piece in enumerate(mine)]
    count = max(map(len, mixed.pieces), default=0)
    if count < 2 or len(columns) > MOST:
        return None
    for r in range(mixed.world_size):
        numbers = mixed.fit(r, [piece for *_, piece in columns])
        if numbers is None:
            return None
        of = {(k, m): x for (k, m, _), x in zip(columns, numbers)}
        tiny = mixed.near * max(map(abs, numbers))
        mine = [m for m in range(count) if abs(of.get((r, m), 0)) > tiny]
        alone = [m for m in mine if all(abs(of.get((k, m), 0)) <= tiny
                                        for k in range(mixed.world_size) if k != r)]
        if alone and mixed.world_size > 1:
            numbered = ", ".join(str(m + 1) for m in alone)
            return finding("not-synchronised", f"rank {r} applied its own gradient of "
                           f"micro-batch {numbered} of {count}: it was not summed", r)
        each = [of[r, m] for m in mine]
        if each and max(map(abs, each)) > min(map(abs, each)) * (1 + 10 * mixed.near):
            if mixed.clipped:
                return finding("clip", "gradients are clipped in each micro-batch")
            return finding("accumulation", f"micro-batches count {_numbers(each)} times",
                           r)
    return None


def by_parameter(mixed, names):
    """Return the finding where some parameters are mixed otherwise than others."""
    if mixed.early:
        return finding("clip", "gradients are clipped before they are summed")
    own, wrong, ranks = [], [], range(mixed.world_size)
    for i in mixed.held[0]:
        came = [c[i:i + 1] for c in mixed.came]
        used = [u[i:i + 1] for u in mixed.used]
        few = min(int((c != 0).sum()) for c in came) < 2 * mixed.world_size
        if few and not all(bool((c != 0).any()) for c in came):
            continue
        alone = [mixture(used[r], [came[r]], mixed.close) is not None for r in ranks]
        some = [mixture(one, came, mixed.close) for one in used]
        if all(float((u - used[0]).norm()) <= 10 * mixed.close * float(used[0].norm())
               for u in used):
            continue
        if any(alone):
            own.append((i, alone.index(True)))
        elif None in some:
            wrong.append(i)
    if own:
        i, rank = own[0]
        return finding("not-synchronised", f"each rank applied its own gradient of "
                       f"{_and_more(names, [i for i, _ in own])}", rank)
    if wrong:
        return finding("gradient", f"{_and_more(names, wrong)} got, on each rank, what "
                       "no mixture of the ranks' gradients explains")
    return None


def _and_more(names, places):
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{names[places[0]]}{more}"


def _numbers(numbers):
    return ", ".join(f"{x:.4g}" for x in numbers[:6]) + (
        ", ..." if len(numbers) > 6 else "")
