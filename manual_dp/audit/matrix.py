"""Who counts whom: the matrix C with used = C came, and how to read it.

                         rank 0 applies      rank 1 applies      one device counts
    right                [.5, .5]            the same            [.5, .5]
    mean of means        [.5, .5]            the same            [.6, .4]
    summed               [1, 1]              the same            [.5, .5]
    model.module called  [1, 0]              [0, 1]              [.5, .5]
    broadcast            [1, 0]              the same            [.5, .5]
    rank 1 left out      [.5, 0]             the same            [.5, .5]

No guess is tried: the matrix is the diagnosis. Where there is none, `by_microbatch` has
a column for each micro-batch.
"""

import math

from manual_dp.audit.report import finding, numbers
from manual_dp.audit.sketch import mixture
from manual_dp.ranks.launch.verdict import ranks_in_words

# Why a rank applied its own gradient, by how its last forward began (private.way): DDP
# sums in the backward of that one what all backwards left. "past": the forward was not
# DDP's, though the model is in DDP.
WHY = {
    "past": {
        "cause": "a forward went past DDP: model.module was called",
        "repair": "call DDP's model",
        "see": "past-the-wrapper",
    },
    "off": {
        "cause": "DDP's sync was off when a forward began: by no_sync, or "
        "require_backward_grad_sync",
        "repair": "switch it on before the forward of the last micro-batch",
        "see": "flag-too-late",
    },
    "on": {
        "cause": "not seen: DDP was called, with its sync on. A type changed after "
        "DDP, a communication hook, autograd.grad?",
        "repair": "change the type before DDP; let the hook sum; call backward()",
        "see": "changed-after-wrapping",
    },
    "": {
        "cause": "no sum over ranks before the step; or ranks average weights later "
        "(local SGD, which more steps show)",
        "repair": "wrap the model in DDP, or sum every gradient and wait for the sums",
        "see": "past-the-wrapper",
    },
}
SAME = 1e-5  # numbers of C are equal, so far apart
MOST = 64  # columns


class Gradients:
    """Hold what came back to each rank in an update, and what each applied.

    us: the update of each rank. alone: one device's, None if nobody knows it.
    """

    def __init__(self, us, alone=None, close=1e-7):
        held = us[0].held
        self.came = [u.came[held] for u in us]
        self.used = [u.used[held] for u in us]
        self.pieces = [[piece[held] for piece in u.pieces] for u in us]
        self.alone = alone and alone.used[held]
        self.clipped = any(u.clips for u in us)
        self.world_size, self.close = len(us), close
        self.why = [WHY[u.way] for u in us]
        self.near = max(SAME, 10 * close)
        self.live = [k for k, c in enumerate(self.came) if float(c.norm()) > 0]

    def matrix(self):
        """Return C: rank r applies rank k's gradient C[r][k] times; or C[r] is None."""
        return [mixture(used, self.came, self.close) for used in self.used]

    def alike(self, c):
        """Return whether all ranks count alike in a row of C."""
        c = [c[k] for k in self.live]
        return max(c) - min(c) <= self.near * max(map(abs, c))


def diagnose(C, gradients):
    """Return the finding that C is, None if it may be right."""
    size = max(abs(x) for c in C for x in c)
    zero = [[abs(x) <= gradients.near * size for x in c] for c in C]
    others = [
        r
        for r, c in enumerate(C)
        if any(abs(x - y) > gradients.near * size for x, y in zip(c, C[0]))
    ]
    if others:
        return _other_rows(C, zero, others[0], gradients)
    if missing := [k for k in gradients.live if zero[0][k]]:
        return finding(
            "not-synchronised",
            f"no rank applies the gradient of {ranks_in_words(missing)}",
            missing[0],
        )
    if gradients.alone is None:
        return None
    one = mixture(gradients.alone, gradients.came, gradients.close)
    if one is None:
        return finding(
            "gradient",
            "all ranks apply the same mixture of their gradients,"
            " and one device's gradient is no mixture of them",
        )
    if any(abs(one[k]) <= 1e-9 for k in gradients.live):
        return None
    times = [C[0][k] / one[k] for k in gradients.live]
    if max(times) - min(times) <= SAME * max(map(abs, times)):
        return scaled(times[0], gradients)
    if gradients.alike(C[0]):
        least = min(one[k] for k in gradients.live)
        return finding(
            "uneven-shards",
            "ranks' gradients count alike, on a single "
            f"device {numbers(one[k] / least for k in gradients.live)} times",
        )
    return finding(
        "gradient", f"beside a single device ranks count {numbers(times)} times"
    )


def _other_rows(C, zero, who, gradients):
    """Return the finding on a matrix of which row `who` is not row 0."""
    live = gradients.live
    own = [r for r in live if [k for k in live if not zero[r][k]] == [r]]
    if own and len(live) > 1:
        found = finding(
            "not-synchronised",
            f"{ranks_in_words(own)} applied the gradient of "
            f"{'its' if len(own) == 1 else 'their'} own rows alone",
            own[0],
        )
        return found._replace(**gradients.why[own[0]])
    return finding(
        "clip" if gradients.clipped else "not-synchronised",
        "rank 0 counts the "
        f"ranks' gradients {numbers(C[0])} times, rank {who} "
        f"{numbers(C[who])}",
        who,
    )


def scaled(times, gradients):
    """Return the finding on a gradient that is so many times one device's."""
    W, says = (
        gradients.world_size,
        f"the gradient is {times:.4g} times a single device's",
    )
    for code, factor, of in [
        ("sum", W, ": the world size"),
        ("averaged-twice", 1 / W, ": the world size, inverted"),
    ]:
        if factor != 1 and math.isclose(times, factor, rel_tol=SAME):
            return finding(code, says + of)
    return None if math.isclose(times, 1, rel_tol=1e-6) else finding("gradient", says)


def by_microbatch(gradients):
    """Return the finding where micro-batches are not summed over ranks, or None."""
    columns = [
        (k, m, piece)
        for k, mine in enumerate(gradients.pieces)
        for m, piece in enumerate(mine)
    ]
    count = max(map(len, gradients.pieces))
    if count < 2 or len(columns) > MOST:
        return None
    alone = {}  # of each rank, the micro-batches of which it applied its own gradient
    for r, used in enumerate(gradients.used):
        found = mixture(used, [piece for *_, piece in columns], gradients.close)
        if found is None:
            break
        tiny = gradients.near * max(map(abs, found))
        heard = {(k, m) for (k, m, _), x in zip(columns, found) if abs(x) > tiny}
        summed = {m for k, m in heard if k != r}
        if own := sorted(m for k, m in heard if k == r and m not in summed):
            alone[r] = ", ".join(str(m + 1) for m in own)
    if not alone:
        return None
    first, which = next(iter(alone.items()))
    everyone = list(alone.values()) == [which] * len(gradients.used)
    found = finding(
        "not-synchronised",
        f"{'each rank' if everyone else f'rank {first}'} applied its own gradient of "
        f"micro-batch {which} of {count}: no sum over ranks",
        first,
    )
    return found._replace(**gradients.why[first])
