"""Mixed precision's step on ranks: what is drawn, and what would be right.

Steps come in three kinds, told apart by their bound on the norm and by their rows: one
that is not clipped, one that is, and one whose scaled gradients overflow. The truth of
the first is problem set 6's: a step with the gradient of the mean loss of all rows.
"""

import torch

from manual_dp.school.exercise import about, close, each, failed, unequal
from manual_dp.school.ps6 import accumulate
from manual_dp.school.tools.linear import draw_batch, gradients
from manual_dp.school.tools.plain import numbers, random_numbers, tensor

LOOSE, TIGHT = 1e9, 0.02  # bounds on the norm of the gradient
CLIPPED = 1e-5  # tolerance: torch adds 1e-6 to the norm
GROWS = 2       # good steps after which the scale is doubled
STUCK = [
    ("scaler.update() ends every step, also one that was skipped",
     "after step"),
    ("scaler.unscale_(optimizer) is called once a step, after the last backward",
     "since the last update"),
    ("scaler.update() needs the step before it: scaler.step(optimizer)",
     "No inf checks|inf"),
    ("every rank must call the same collectives: leave them to DDP", "timeout|gloo")]


def draw(random):
    """Draw weights and steps for ranks; in a step all have as many microbatches."""
    for world_size in (3, 1):
        pieces = [random.choice([2, 3]), random.choice([2, 3]), 2, 1]
        steps = [[[draw_batch(random, random.randint(1, 5)) for _ in range(number)]
                  for _ in range(world_size)] for number in pieces]
        weight = random_numbers(random, 4, 3)
        steps[2][-1][0] = _too_large(weight, *steps[2][-1][0])
        yield {"optimizer": "SGD", "lr": random.uniform(0.3, 1),
               "weight": weight,
               "stale": random_numbers(random, 4, 3), "steps": steps,
               "scale": float(2 ** random.randint(14, 16)),
               "max_norms": [LOOSE, TIGHT, LOOSE, TIGHT]}


def _too_large(weight, X, y):
    """Make the first row so large that its scaled gradient is no number any more."""
    row = [1e307 if value > 0 else -1e307 for value in X[0]]
    scores = (tensor(weight) @ tensor(row)).tolist()
    return [row, *X[1:]], [scores.index(min(scores)), *y[1:]]  # a wrong answer


def judge(case, got):
    """Compare every rank's weights, messages and scale after each step."""
    k = len(case["steps"][0])
    yield failed(f"{k} ranks", got, "weights after four steps", STUCK)
    returned = [each(steps, "returned") for steps in got["ranks"]]
    yield about(f"{k} ranks, four steps")(
        "what each step returns", returned, [["nothing"] * 4] * k,
        [("nothing is returned: the step is taken in place", True)])
    weight, scale, good = tensor(case["weight"]), case["scale"], 0
    for number, step in enumerate(case["steps"]):
        results = each(got["ranks"], number)
        overflow = number == 2
        if overflow:
            yield from _judge_overflow(case, weight, results)
        elif case["max_norms"][number] == LOOSE:
            weight = yield from accumulate.judge_step_of_ranks(
                {**case, "stale": (tensor(case["stale"]) / scale).tolist()}, number,
                step, weight, results)
        else:
            weight = yield from _judge_clipped(case, number, weight, results, scale)
        good = 0 if overflow else good + 1
        scale = scale / 2 if overflow else scale * (1 + (good == GROWS))
        good %= GROWS
        yield about(f"{k} ranks, step {number + 1}")(
            "the scale afterwards", each(results, "scale"), [scale] * k,
            [("call scaler.update() once at the end of each step", True)])


def _judge_overflow(case, weight, results):
    k = len(results)
    yield about(f"{k} ranks; a scaled gradient is too large for a number")(
        "the weights on each rank", each(results, "weight"), [weight] * k, [
            ("this step must be skipped: scaler.step(optimizer) does so, "
             "optimizer.step() does not", True)])


def _judge_clipped(case, number, weight, results, scale):
    """Compare a step whose gradient was clipped; return the weights as they are."""
    ranks, lr, bound = case["steps"][number], case["lr"], case["max_norms"][number]
    k, n, total = len(ranks), len(ranks[0]), sum(
        len(y) for pieces in ranks for _, y in pieces)
    weights = each(results, "weight")

    def gradient(pieces, factor):
        return gradients([weight], pieces, [factor] * len(pieces))[0]

    def moved(g):
        return [weight - lr * g] * k
    whole = gradient(sum(ranks, []), 1 / total)
    own = [gradient(pieces, k / total) for pieces in ranks]
    sizes = [[len(y) for _, y in pieces] for pieces in ranks]
    right = moved(_clip(whole, bound))
    say = about(f"{k} ranks, microbatches of {sizes} rows, lr {lr:.3f}, max_norm "
                f"{bound}, step {number + 1}")
    yield say("the weights on each rank", weights, right, [
        ("nothing has moved", close(weights, numbers([weight] * k), 1e-12)),
        ("the gradient is not clipped", moved(whole)),
        ("this was clipped before it was unscaled: the norm was that of the scaled "
         "gradient, so nearly nothing is left. First scaler.unscale_(optimizer)",
         [weight - lr * _clip(whole * scale, bound) / scale] * k),
        ("each parameter was clipped alone: the norm is that of all gradients "
         "together. Hand all parameters to clip_grad_norm_ at once",
         moved(torch.cat([_clip(half, bound) for half in whole.chunk(2)]))),
        ("each rank has clipped a gradient of its own, before the average: the norm "
         "is that of the averaged gradient. Clip after the last backward",
         moved(sum(_clip(g, bound) for g in own) / k)),
        ("replicas differ: clip what DDP has averaged, the same on all ranks",
         unequal(weights)),
        ("the gradient is longer than max_norm: clip once, after the last backward "
         "and after scaler.unscale_(optimizer)", n > 1)], CLIPPED)
    return tensor(weights[0])


def _clip(g, bound):
    return g * min(1, bound / g.norm().item())
