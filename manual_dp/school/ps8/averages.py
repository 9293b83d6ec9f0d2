"""Local SGD on ranks: what is drawn, and what would be right.

The truth is a simulation: a network for each rank in one process, and their mean.
"""

import torch
from torch.nn import functional as F

from manual_dp.school.exercise import about, each, failed, unequal
from manual_dp.school.ps8.run import network
from manual_dp.school.tools.linear import draw_batch
from manual_dp.school.tools.plain import batches, random_numbers

STUCK = [
    ("every rank must call the same collectives, and as often", "timeout|gloo"),
    ("num_batches_tracked is a whole number: it counts, the same on all ranks. "
     "Average what is floating point", "Long|long int|Float can't be cast|dtype")]
BUFFERS, COUNTER = ("1.running_mean", "1.running_var"), "1.num_batches_tracked"


def draw(random):
    """Draw a network, another one for each rank, and batches of different sizes."""
    for world_size, every, steps in ((2, 3, 5), (3, 2, 6), (2, 1, 3), (1, 2, 3)):
        yield {"lr": random.uniform(0.2, 0.6), "every": every,
               "starts": [_draw_start(random) for _ in range(world_size)],
               "batches": [[draw_batch(random, random.randint(3, 6))
                            for _ in range(steps)] for _ in range(world_size)]}


def _draw_start(random):
    shapes = {"0.weight": (4, 3), "1.bias": (4,), "1.running_mean": (4,),
              "2.weight": (4, 4), "2.bias": (4,)}
    return {**{name: random_numbers(random, *shape) for name, shape in shapes.items()},
            **{name: [random.uniform(0.5, 2) for _ in range(4)]
               for name in ("1.weight", "1.running_var")}}


def simulate(case, start=0, first=1, last=True, buffers=True, factor=1,
             gradients=False, every=None):
    """Return every rank's numbers after the training; the arguments are mistakes."""
    starts, k = case["starts"], len(case["starts"])
    every = every or case["every"]
    models = [network(starts[rank if start is None else start]) for rank in range(k)]
    data, steps = [batches(own) for own in case["batches"]], len(case["batches"][0])
    for step in range(steps):
        for model, own in zip(models, data):
            X, y = own[step]
            model.zero_grad()
            F.cross_entropy(model(X), y).backward()
        if gradients:
            _average([[p.grad for p in model.parameters()] for model in models])
        with torch.no_grad():
            for model in models:
                for p in model.parameters():
                    p -= case["lr"] * p.grad
        due = (step + first) % every == 0 or last and step == steps - 1
        if due and not gradients:
            _average([[*model.parameters(), *(_floats(model) if buffers else [])]
                      for model in models], factor)
    return [dict(model.state_dict()) for model in models]


def _floats(model):
    return [b for b in model.buffers() if b.is_floating_point()]


@torch.no_grad()
def _average(replicas, factor=1):
    for same in zip(*replicas):
        mean = sum(same) / len(same) * factor
        for p in same:
            p.copy_(mean)


def judge(case, got):
    """Compare weights, then buffers, then when there were messages."""
    k, steps, every = len(case["starts"]), len(case["batches"][0]), case["every"]
    given = f"{k} ranks, {steps} batches each, every = {every}, lr {case['lr']:.3f}"
    yield failed(given, got, "weights", STUCK)
    ranks, say = got["ranks"], about(given)
    right, names = simulate(case), [name for name in ranks[0] if "." in name
                                    and "num" not in name and name not in BUFFERS]

    def weights(states):
        return [[state[name] for name in names] for state in states]

    def like(**mistake):
        return weights(simulate(case, **mistake))
    got_weights = weights(ranks)
    hints = [
        ("nothing has moved", weights([network(start).state_dict()
                                       for start in case["starts"]])),
        ("the ranks begin with different weights: first give all of them rank 0's",
         k > 1 and like(start=None)),
        (f"the ranks begin with rank {k - 1}'s numbers: rank 0's are wanted",
         k > 1 and like(start=k - 1)),
        ("gradients are averaged, in each step: this is DDP. Here each rank takes "
         "steps of its own, and weights are averaged", k > 1 and like(gradients=True)),
        ("weights are averaged once, at the end", k > 1 and like(every=10 ** 6)),
        ("the ranks' weights are added up: the mean is wanted",
         k > 1 and like(factor=k)),
        ("weights are averaged before the first step counts: after steps "
         f"{every}, {2 * every}, ..., counted from 1", k > 1 and like(first=0)),
        ("weights are averaged a step too early",
         k > 1 and every > 1 and like(first=2)),
        (f"weights are averaged after each {every + 1} steps",
         k > 1 and like(every=every + 1)),
        ("the ranks end with different weights: after the last step they are averaged "
         "too", k > 1 and like(last=False)),
        ("the ranks end with different weights", unequal(got_weights))]
    yield say("the weights on each rank", got_weights, weights(right), hints)
    own = [[state[name] for name in BUFFERS] for state in simulate(case, buffers=False)]
    wanted = [[state[name] for name in BUFFERS] for state in right]
    buffers = [[state[name] for name in BUFFERS] for state in ranks]
    yield say("running mean and variance on each rank", buffers, wanted, [
        ("buffers are forgotten: average the running statistics with the weights", own),
        ("the ranks' buffers differ: those that are floating point are averaged, and "
         "begin as rank 0's", unequal(buffers)),
        ("buffers begin as rank 0's, and are averaged with the weights", True)])
    yield from _judge_messages(say, steps, every, each(ranks, "before"))
    yield say("num_batches_tracked on each rank", each(ranks, COUNTER), [steps] * k, [
        ("it counts the forwards, on all ranks alike: leave it as it is", True)])


def _judge_messages(say, steps, every, before):
    """Look for messages in front of forwards where no average was due."""
    for counts in before:
        idle = [step + 1 for step in range(1, len(counts))
                if step % every and counts[step] > counts[step - 1]]
        yield say("forwards on a rank", len(counts), steps,
                  [("one forward for each batch", True)])
        yield say("steps before which a rank communicates, and need not", idle, [], [
            ("communicate only when an average is due: that is what local SGD saves",
             True)])
