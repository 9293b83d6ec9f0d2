"""Who counts whom: the matrix C with used = C came, and how to read it.

                         rank 0 applies      rank 1 applies      one device counts
    right                [.5, .5]            the same            [.5, .5]
    mean of means        [.5, .5]            the same            [.6, .4]
    summed               [1, 1]              the same            [.5, .5]
    model.module called  [1, 0]              [0, 1]              [.5, .5]
    broadcast            [1, 0]              the same            [.5, .5]
    rank 1 left out      [.5, 0]             the same            [.5, .5]

No guess is tried: the matrix is the diagnosis. Where there is none, `by_pieces` has a
column for each micro-batch, and `by_parameter` a matrix for each parameter.
"""

import math
from dataclasses import dataclass

import torch

from manual_dp.audit.report import finding, numbers
from manual_dp.audit.sketch import mixture
from manual_dp.ranks.launch.verdict import listed

SAME = 1e-5  # numbers of C are equal, so far apart
MOST = 64    # columns


@dataclass
class Mixed:
    """Hold what came back to each rank in an update, and what each applied."""

    came: list                # a sketch for each rank
    used: list
    held: list                # places of parameters
    pieces: list = ()         # sketches, of each rank's backwards
    alone: object = None      # what one device applies, None if nobody knows
    close: float = 1e-7
    noise: float = 0.0
    by_hand: bool = False     # is `used` the step, of unknown rate?
    clipped: bool = False     # did some rank clip?
    past: bool = False        # did no forward go through the wrapper that sums?

    def __post_init__(self):
        """Note which ranks have any gradient, and how near numbers of C must be."""
        self.world_size, self.near = len(self.came), max(SAME, 10 * self.close)
        self.live = [k for k, c in enumerate(self.came) if float(c.norm()) > 0]

    def fit(self, r, parts, made=None):
        """Return the numbers that make of `parts` what rank r used; or None."""
        rows, made = self.held[r], self.used[r] if made is None else made
        return mixture(made[rows], [part[rows] for part in parts], self.close,
                       self.noise)

    def matrix(self):
        """Return C: rank r applies rank k's gradient C[r][k] times; or C[r] is None."""
        return [self.fit(r, self.came) for r in range(self.world_size)]

    def alike(self, c):
        """Return whether all ranks count alike in a row of C."""
        c = [c[k] for k in self.live]
        return max(c) - min(c) <= self.near * max(map(abs, c))


def read(C, one, mixed):
    """Return the finding that C is, None if it may be right.

    one: how often a single device counts each rank's gradient, None if nobody knows.
    """
    size = max(abs(x) for c in C for x in c)
    zero = [[abs(x) <= mixed.near * size for x in c] for c in C]
    if mixed.world_size == 1:
        return None
    if any(abs(x - y) > mixed.near * size for c in C for x, y in zip(c, C[0])):
        return _other_rows(C, zero, mixed)
    counted = [k for k in mixed.live if not zero[0][k]]
    if missing := [k for k in mixed.live if zero[0][k]]:
        only, expected = counted[0], one[counted[0]] if one else 0.5
        if len(counted) > 1 or mixed.world_size == 2 and math.isclose(
                C[0][only], expected, rel_tol=mixed.near):
            return finding("rank-left-out", f"the sum leaves out {listed(missing)}",
                           missing[0])
        return finding("rank-left-out", f"all ranks apply rank {only}'s gradient", only)
    if one is None or any(abs(one[k]) <= 1e-9 for k in mixed.live):
        return None
    times = [C[0][k] / one[k] for k in mixed.live]
    if max(times) - min(times) <= SAME * max(map(abs, times)):
        return scaled(times[0], mixed)
    if mixed.alike(C[0]):
        least = min(one[k] for k in mixed.live)
        return finding("uneven-shards", "ranks' gradients count alike, on a single "
                       f"device {numbers(one[k] / least for k in mixed.live)} times")
    return finding("gradient", "beside a single device ranks count "
                   f"{numbers(times)} times")


def _other_rows(C, zero, mixed):
    """Return the finding on a matrix whose rows differ."""
    live, everyone = mixed.live, range(mixed.world_size)
    own = [r for r in live if [k for k in live if not zero[r][k]] == [r]]
    if own and len(live) > 1:
        back = [r for r in everyone if r not in own and not any(zero[r])]
        says = f"{listed(own)} applied the gradient of own rows alone"
        says += f"; the sum is on {listed(back)}, and was not sent back" if back else ""
        return finding("not-synchronised", says + mixed.past * (
            ": no forward went through the wrapper that sums"), own[0])
    if part := [r for r in everyone if any(zero[r][k] for k in live)]:
        these = listed([k for k in live if not zero[part[0]][k]] or part[:1])
        return finding("not-synchronised", f"rank {part[0]} applied the gradient of "
                       f"{these} alone, and others another one", part[0])
    times = [{round(x / y, 5) for x, y, none in zip(c, C[0], zero[0]) if not none}
             for c in C]
    if all(len(one) == 1 for one in times):
        return finding("clip" if mixed.clipped else "gradient", "ranks apply different "
                       f"multiples of one gradient: {numbers(map(min, times))}")
    return finding("gradient", "ranks apply different mixtures of their gradients: "
                   f"rank 0 counts them {numbers(C[0])} times, rank 1 {numbers(C[1])}")


def scaled(times, mixed):
    """Return the finding on a gradient that is so many times one device's."""
    W, M = mixed.world_size, max(map(len, mixed.pieces), default=1)
    says = f"the gradient is {times:.4g} times a single device's"
    for code, factor, of in [("sum", W, ": the world size"),
                             ("averaged-twice", 1 / W, ": the world size, inverted"),
                             ("accumulation", M, ": the number of micro-batches")]:
        if factor != 1 and math.isclose(times, factor, rel_tol=SAME):
            return finding(code, says + of)
    return None if math.isclose(times, 1, rel_tol=1e-6) else finding("gradient", says)


def by_pieces(mixed):
    """Return the finding where micro-batches do not count alike, or None."""
    columns = [(k, m, piece) for k, mine in enumerate(mixed.pieces)
               for m, piece in enumerate(mine)]
    count = max(map(len, mixed.pieces), default=0)
    if count < 2 or len(columns) > MOST:
        return None
    for r in range(mixed.world_size):
        found = mixed.fit(r, [piece for *_, piece in columns])
        if found is None:
            return None
        tiny = mixed.near * max(map(abs, found))
        of = {(k, m): x for (k, m, _), x in zip(columns, found) if abs(x) > tiny}
        mine = [m for k, m in of if k == r]
        alone = [m for m in mine if all(k == r for k, n in of if n == m)]
        if alone and mixed.world_size > 1:
            return finding("not-synchronised", f"rank {r} applied its own gradient of "
                           f"micro-batch {', '.join(str(m + 1) for m in alone)} of "
                           f"{count}: no sum over ranks", r)
        each = [of[r, m] for m in mine]
        if each and max(map(abs, each)) > min(map(abs, each)) * (1 + mixed.near):
            return finding("clip" if mixed.clipped else "accumulation",
                           f"micro-batches count {numbers(each)} times", r)
    return None


def by_parameter(mixed, names):
    """Return the finding where each rank applies its own gradient of a parameter."""
    found = []
    for i in mixed.held[0]:
        came, used = [[x[i:i + 1] for x in of] for of in (mixed.came, mixed.used)]
        far = max(float((u - used[0]).norm()) for u in used)
        one_way = any(mixture(c, came[:1], mixed.close) for c in came[1:])
        if far > 10 * mixed.close * float(used[0].norm()) and all(
                map(torch.any, came)) and not one_way and any(
                mixture(u, [c], mixed.close) for u, c in zip(used, came)):
            found.append(names[i])
    more = f" and {len(found) - 1} more" * (len(found) > 1)
    return finding("not-synchronised", "each rank applied its own gradient of "
                   f"{found[0]}{more}") if found else None
