"""Problem set 7, the judge: a learner's test is worth what it catches.

Each test is asked about planted programs, without their names and in an order drawn
anew. A bug that it catches is worth half a point. A test that accuses a right program
gets nothing. With the exercises stands what learners and programs have in common.
"""

import os
import random as python_random
import tempfile
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course.school.checks import Partly, exercise
from course.school.compare import about, so_many
from course.school.planted import MACHINES, programs
from course.school.ranks import COLLECTIVES, Roll, attempt, failed

WORDS = {"words": 4}  # points that a person gives, by grade id
A_BUG, BUGS, RIGHT = 0.5, 8, 4  # points, and how many programs each exercise has
GIVEN = f"{BUGS} planted bugs and {RIGHT} right programs"
WANTED = f"{BUGS} bugs caught, no right program accused"
CALLS = 600  # of a program on a machine with a fake clock
WORLD_SIZE, SECONDS = 3, 40
MOST = 2800  # bytes: a tenth of the model of `assert_same`

# what the notebook's first cell imports, and the programs use

def draw_params(seed, dtype=torch.float64):
    """Return the weights and biases of two layers: 5 numbers in, 3 classes out."""
    of = dict(dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return [(torch.rand(shape, **of) - 0.5).to(dtype)
            for shape in [(4, 5), (4,), (3, 4), (3,)]]


def draw_batch(rows, seed, dtype=torch.float64):
    """Return X, shape (rows, 5), and the labels y."""
    generator = torch.Generator().manual_seed(1000 + seed)
    X = torch.rand(rows, 5, dtype=torch.float64, generator=generator).sub(0.5).mul(4)
    return X.to(dtype), torch.randint(3, (rows,), generator=generator)


def copy_params(params):
    """Return new tensors with the numbers of `params`, which want a gradient."""
    return [p.detach().clone().requires_grad_() for p in params]


def loss(params, X, y):
    """Return the loss of each row, shape (rows,)."""
    W1, b1, W2, b2 = params
    return F.cross_entropy(torch.tanh(X @ W1.T + b1) @ W2.T + b2, y, reduction="none")


def spread(same):
    """Return on every rank whether `same` is true on all of them."""
    verdict = torch.tensor(float(bool(same)))
    dist.all_reduce(verdict, dist.ReduceOp.MIN)
    return bool(verdict)


def cut(rows, k):
    """Return k shards of ceil(n / k) rows, the last ones shorter or empty."""
    size = -(-len(rows) // k)
    return [rows[rank * size:(rank + 1) * size] for rank in range(k)]


def sum_gradients(replicas):
    """Give every replica the sum of all replicas' gradients."""
    for same in zip(*replicas):
        total = sum(p.grad for p in same)
        for p in same:
            p.grad = total.clone()


def sum_over_ranks(params):
    """Replace the gradients by their sums over ranks, in one message."""
    bucket = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(bucket)
    for p, part in zip(params, bucket.split([p.numel() for p in params])):
        p.grad = part.view_as(p)


@torch.no_grad()
def descend(params, rate):
    """Move down the gradient, in place."""
    for p in params:
        p -= rate * p.grad


def _define(source):
    """Return the function or the class that `source` defines."""
    space = {**globals(), "random": python_random}
    exec(compile(source, "<program>", "exec"), space)
    return space["program"]


def _drawn(random, kinds):
    """Return (what it does, program, is it right?) of all programs, in a new order."""
    planted = [(words, program, right) for kind, right in zip(kinds, (True, False))
               for words, program in kind.items()]
    random.shuffle(planted)
    return planted


def _earned(planted, verdicts):
    """Return None, or the points, and what was accused and right, or else got away."""
    said = list(zip(planted, verdicts, strict=True))
    accused = sorted(words for (words, _, right), same in said if right and not same)
    away = sorted(words for (words, _, right), same in said if not right and same)
    if not accused and not away:
        return None
    caught, points = BUGS - len(away), 0 if accused else A_BUG * (BUGS - len(away))
    return Partly(
        f"given   {GIVEN}\ngot     {so_many(caught, 'bug')} caught, "
        f"{so_many(len(accused), 'right program')} accused: "
        f"{points:g} of {A_BUG * BUGS:g} points\nwanted  {WANTED}\n"
        f"perhaps {'accused, and right' if accused else 'got away'}: "
        f"{'; '.join(accused or away)}", points)


def _verdict(said):
    """Return True or False; raise TypeError for what is neither."""
    if isinstance(said, torch.Tensor) and said.numel() == 1 or (
            type(said).__name__ in ("bool", "bool_")):
        return bool(said)
    raise TypeError("a verdict is True or False; the answer returned "
                    f"{'nothing' if said is None else type(said).__name__}")


def _asked(random, kinds, ask, define=_define):
    planted = _drawn(random, kinds)
    return _earned(planted, [_verdict(ask(define(one))) for _, one, _ in planted])


@exercise("ps7/same_step", points=4)
def same_step(random, same_step):
    """Ask about functions that take a step."""
    yield _asked(random, programs("same_step"), same_step)


@exercise("ps7/same_weights", points=4)
def same_weights(random, same_weights):
    """Ask about functions that train."""
    yield _asked(random, programs("same_weights"), same_weights)


@exercise("ps7/same_on_ranks", points=4, seconds=SECONDS)
def same_on_ranks(random, same_on_ranks):
    """Ask on every rank about functions that take a step on ranks."""
    planted = _drawn(random, programs("same_on_ranks"))

    def work():
        def ask(source):
            return _verdict(same_on_ranks(_define(source)))
        with Roll() as roll:  # a rank that is left waiting for others says None
            return [roll.call(ask, source) for _, source, _ in planted]
    ranks, error = attempt(work, WORLD_SIZE, SECONDS)
    yield failed(GIVEN, error, WANTED, {
        "a program was handed no rows: every rank hands over the whole minibatch":
        "ZeroDivisionError"})
    # a rank that waited for one that had its verdict already was no witness
    yield _earned(planted, [all(one is True for one in verdicts)
                            for verdicts in zip(*ranks)])


@exercise("ps7/assert_same", points=4, seconds=SECONDS)
def assert_same(random, assert_same):
    """Change a model on every rank; see if the answer raises, and what it sends."""
    planted, seed = _drawn(random, programs("assert_same")), random.randrange(10 ** 6)

    def work():
        found = []
        with Roll() as roll:
            for _, source, _ in planted:
                model = _model(seed)
                _define(source)(model, dist.get_rank(), dist.get_world_size())
                before = _bits(model)
                with _counted() as sent:
                    raised = roll.call(_raised, assert_same, model)
                found.append((raised, sum(sent), _bits(model) != before))
        return found
    ranks, error = attempt(work, WORLD_SIZE, SECONDS)
    yield failed(GIVEN, error, WANTED)
    say, found = about(GIVEN), [one for rank in ranks for one in rank]
    yield say(f"does a rank send more than {MOST} bytes?",
              any(sent > MOST for _, sent, _ in found), False, {
        "it sends the model itself: send something short that tells models apart":
        True})
    yield say("is the model another one afterwards?",
              any(changed for _, _, changed in found), False, {
        "a check that runs in every step must leave the model as it is": True})
    raised = [[one for one, _, _ in of_ranks] for of_ranks in zip(*ranks)]
    yield say("bugs at which one rank raises and another goes on",
              sum(any(one) != all(one) for one in raised), 0, {
        "a rank that goes on alone waits for ever in the next collective: every rank "
        "has to raise": True})
    crashes = [text for (_, _, right), one in zip(planted, raised) if right
               for text in one if text and not text.startswith("AssertionError")]
    yield say("raised where all ranks hold the same", crashes[:1], [], {
        "this is no verdict, it is an error in the answer itself": True})
    yield _earned(planted, [not any(one) for one in raised])


@exercise("ps7/same_after_kill", points=4)
def same_after_kill(random, same_after_kill):
    """Ask about trainings that save and resume; files lie in a folder that goes."""
    def ask(Training):
        with tempfile.TemporaryDirectory() as folder:
            return same_after_kill(Training, os.path.join(folder, "checkpoint"))
    yield _asked(random, programs("same_after_kill"), ask)


@exercise("ps7/faster", points=4)
def faster(random, faster):
    """Ask about pairs of programs on machines with a fake clock."""
    yield _asked(random, MACHINES, lambda machine: faster(*machine),
                 lambda claim: _machine(random, *claim))


def _model(seed):
    """Return a network of 28,520 bytes with gradients, the same on all ranks."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 40), nn.BatchNorm1d(40), nn.Tanh(),
                          nn.Linear(40, 40), nn.Linear(40, 5)).double()
    for p in model.parameters():
        p.grad = torch.rand_like(p) - 0.5
    return model


def _bits(model):
    return [None if t is None else t.detach().numpy().tobytes()
            for p in model.parameters() for t in (p, p.grad)]


def _raised(assert_same, model):
    """Return what the answer raises, as text, or nothing."""
    try:
        assert_same(model)
    except NotImplementedError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


@contextmanager
def _counted():
    """Yield a list; each call of a collective adds how many bytes it is handed."""
    sent, real = [], {name: getattr(dist, name) for name in COLLECTIVES}

    def call(name, *args, **kwargs):
        begin = name.startswith("all_gather")  # the first is a place for what comes
        sent.append(sum(map(_bytes, [*args[begin:], *kwargs.values()])))
        return real[name](*args, **kwargs)
    with patch.multiple(dist, **{name: partial(call, name) for name in real}):
        yield sent


def _bytes(value):
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return len(value) if isinstance(value, (str, bytes)) else 0


def _machine(random, a, b, speed=(1.0,)):
    """Return a, b, synchronize and clock: time passes only when they are called.

    speed: how much slower the machine is at each call of either. Last numbers repeat.
    """
    now, busy, speeds = 1000.0, 0.0, chain(speed, repeat(speed[-1]))

    def program(seconds=1e-2, noise=0.02, launch=None, first=(), every=None):
        """Return a program; launch: what a call takes that only starts the work."""
        times = [seconds * (1 + random.uniform(-noise, noise)) for _ in range(CALLS)]
        times[:len(first)] = [seconds * factor for factor in first]
        if every:
            n, factor = every
            for i in range(random.randrange(n), CALLS, n):
                times[i] *= factor
        times = chain(times, repeat(times[-1]))

        def call():
            nonlocal now, busy
            busy = max(now, busy) + next(times) * next(speeds)
            now = busy if launch is None else now + launch
        return call

    def synchronize():
        nonlocal now
        now = max(now, busy) + 1e-6

    def clock():
        nonlocal now
        now += 1e-7
        return now
    return program(**a), program(**b), synchronize, clock
