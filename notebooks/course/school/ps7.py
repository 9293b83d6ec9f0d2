"""Problem set 7, the judge: a learner's test is worth what it catches.

Each test is asked about planted programs, without their names and in an order drawn
anew. A bug that it catches is worth half a point. A test that accuses a right program
gets nothing. With the exercises stands what learners and programs have in common.
"""

import os
import random as python_random
import tempfile
from functools import partial
from itertools import chain, count, repeat
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import manual_dp
from course.school.checks import Partly, about, exercise, numbers, remember
from course.school.planted import MACHINES, programs
from course.school.ranks import COLLECTIVES, Roll, attempt, failed

A_BUG, BUGS, RIGHT = 0.5, 7, 3  # points, and how many programs each exercise has
POINTS, GIVEN = A_BUG * BUGS, f"{BUGS} planted bugs and {RIGHT} right programs"
WANTED = f"{BUGS} bugs caught, no right program accused"
WORLD_SIZE, SECONDS = 3, 40
MOST = 2800  # bytes: a tenth of the model of `assert_same`

# what the notebook's first cell imports, and the programs use


def draw_params(seed, dtype=torch.float64):
    """Return the weights and biases of two layers: 5 numbers in, 3 classes out."""
    of = dict(dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return [
        (torch.rand(shape, **of) - 0.5).to(dtype)
        for shape in [(4, 5), (4,), (3, 4), (3,)]
    ]


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


def sum_gradients(replicas):
    """Give every replica the sum of all replicas' gradients."""
    for same in zip(*replicas):
        manual_dp.allreduce([p.grad for p in same])


@torch.no_grad()
def descend(params, rate):
    """Move down the gradient, in place."""
    for p in params:
        p -= rate * p.grad


def _define(source):
    """Return the function or the class that `source` defines."""
    space = {**vars(manual_dp), **globals(), "random": python_random}
    exec(compile(source, "<program>", "exec"), space)
    return space["program"]


def _drawn(random, kinds):
    """Return (what it does, program, is it right?) of all programs, in a new order."""
    planted = [
        (words, program, right)
        for kind, right in zip(kinds, (True, False))
        for words, program in kind.items()
    ]
    random.shuffle(planted)
    return planted


def _earned(planted, verdicts):
    """Return None, or the points, and what was accused and right, or else got away."""
    accused, away = [], []
    for (words, _, right), same in zip(planted, verdicts, strict=True):
        if right and not same:
            accused.append(words)
        if same and not right:
            away.append(words)
    if not accused and not away:
        return None
    caught = BUGS - len(away)
    points, hint = A_BUG * caught, f"got away: {'; '.join(sorted(away))}"
    if accused:
        points, hint = 0, f"accused, and right: {'; '.join(sorted(accused))}"
    names = "bugs caught", "right programs accused", "points"
    got = dict(zip(names, (caught, len(accused), points)))
    wanted = dict(zip(names, (BUGS, 0, POINTS)))
    return Partly(about(GIVEN)("your test", got, wanted, {hint: True}), points)


def _verdict(said):
    """Return True or False; raise TypeError for what is neither."""
    if said in (True, False):
        return bool(said)
    raise TypeError(
        "a verdict is True or False; the answer returned "
        f"{'nothing' if said is None else type(said).__name__}"
    )


def _asked(random, kinds, ask, define=_define):
    planted = _drawn(random, kinds)
    return _earned(planted, [_verdict(ask(define(one))) for _, one, _ in planted])


@exercise("ps7/same_step", points=POINTS)
def same_step(random, same_step):
    """Ask about functions that take a step."""
    yield _asked(random, programs("same_step"), same_step)


@exercise("ps7/same_weights", points=POINTS)
def same_weights(random, same_weights):
    """Ask about functions that train."""
    yield _asked(random, programs("same_weights"), same_weights)


@exercise("ps7/same_on_ranks", points=POINTS, seconds=SECONDS)
def same_on_ranks(random, same_on_ranks):
    """Ask on every rank about functions that take a step on ranks."""
    planted = _drawn(random, programs("same_on_ranks"))

    def work():
        def ask(source):
            return _verdict(same_on_ranks(_define(source)))

        with Roll() as roll:  # a rank that is left waiting for others says None
            return [(roll.call(ask, one), roll.absent) for _, one, _ in planted]

    ranks, error = attempt(work, WORLD_SIZE, SECONDS)
    yield failed(GIVEN, error, WANTED)
    said, absent = [], []  # of each program
    for one in zip(*ranks):
        verdicts, missed = zip(*one)
        said.append(all(verdict is True for verdict in verdicts))
        absent.append(max(missed))
    yield about(GIVEN)(
        "programs at which a rank waited in vain for another, in `step` or in `spread`",
        sum(ranks > 0 for ranks in absent),
        0,
        {
            "a rank that returns early leaves the others waiting: let every rank call "
            "`step` and `spread` equally often, whatever it has seen": True
        },
    )
    yield _earned(planted, said)


@exercise("ps7/assert_same", points=POINTS, seconds=SECONDS)
def assert_same(random, assert_same):
    """Change a model on every rank; see if the answer raises, and what it sends."""
    planted, seed = _drawn(random, programs("assert_same")), random.randrange(10**6)

    def work():
        with Roll() as roll:
            return [_seen(roll, assert_same, _model(seed), *one) for one in planted]

    ranks, error = attempt(work, WORLD_SIZE, SECONDS)
    yield failed(
        GIVEN,
        error,
        WANTED,
        {"this is no verdict: an AssertionError is one": "^raised"},
    )
    raised, sent, changed = zip(*(zip(*programs) for programs in ranks))
    of_program, say = [set(one) for one in zip(*raised)], about(GIVEN)
    yield next(filter(None, sum(changed, ())), None)
    yield say(
        f"does a rank send more than {MOST} bytes?",
        max(map(max, sent)) > MOST,
        False,
        {
            "it sends the model itself: send something short that tells "
            "models apart": True
        },
    )
    yield say(
        "bugs at which one rank raises and another goes on",
        sum(len(one) > 1 for one in of_program),
        0,
        {
            "a rank that goes on alone waits for ever in the next collective: every "
            "rank has to raise": True
        },
    )
    yield _earned(planted, [True not in one for one in of_program])


@exercise("ps7/same_after_kill", points=POINTS)
def same_after_kill(random, same_after_kill):
    """Ask about trainings that save and resume; files lie in a folder that goes."""

    def ask(Training):
        with tempfile.TemporaryDirectory() as folder:
            return same_after_kill(Training, os.path.join(folder, "checkpoint"))

    yield _asked(random, programs("same_after_kill"), ask)


@exercise("ps7/faster", points=POINTS)
def faster(random, faster):
    """Ask about pairs of programs on machines with a fake clock."""
    yield _asked(
        random,
        MACHINES,
        lambda machine: faster(*machine),
        lambda claim: _machine(random, *claim),
    )


def _model(seed):
    """Return a network of 28,520 bytes with gradients, the same on all ranks."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(40, 40),
        nn.BatchNorm1d(40),
        nn.Tanh(),
        nn.Linear(40, 40),
        nn.Linear(40, 5),
    ).double()
    for p in model.parameters():
        p.grad = torch.rand_like(p) - 0.5
    return model


def _seen(roll, assert_same, model, words, source, right):
    """Return whether a changed model is refused, and how many bytes that sends.

    Last comes None, or the message if the model is not as it was before.
    """
    _define(source)(model, dist.get_rank(), WORLD_SIZE)
    sent, same, grads = [], remember(model=model), _gradients(model)

    def count(real, begin, *args, **kwargs):
        sent.append(_bytes([*args[begin:], *kwargs.values()]))
        return real(*args, **kwargs)

    def refused():
        try:
            assert_same(model)
        except AssertionError:
            return True

    with patch.multiple(
        dist,
        **{  # the first of all_gather* is a place for what comes
            name: partial(count, getattr(dist, name), name.startswith("all_gather"))
            for name in COLLECTIVES
        },
    ):
        raised = roll.call(refused)
    say = about(GIVEN)
    changed = [
        *same(say),
        say(
            "is every gradient as it was before, or missing as before?",
            _gradients(model) == grads,
            True,
            {"p.grad has to stay as it is, too: None, if it was None": True},
        ),
    ]
    return raised, sum(sent), next(filter(None, changed), None)


def _gradients(model):
    """Return all gradients as text, in which NaN is NaN."""
    return repr([numbers(p.grad) for p in model.parameters()])


def _bytes(value):
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value))
    if isinstance(value, (str, bytes)):
        return len(value)
    return getattr(value, "nbytes", 0)


def _machine(random, a, b, speed=(1.0,)):
    """Return a, b, synchronize and clock: time passes only when they are called.

    speed: how much slower the machine is at each call of either. Last numbers repeat.
    """
    now, busy, speeds = 1000.0, 0.0, chain(speed, repeat(speed[-1]))

    def program(seconds=1e-2, noise=0.02, launch=None, first=(), every=(1, 1)):
        """Return a program; launch: what a call takes that only starts the work."""
        n, factor = every
        calls, turn = count(), random.randrange(n)

        def call():
            nonlocal now, busy
            i = next(calls)
            usual = 1 + random.uniform(-noise, noise)
            if i % n == turn:
                usual *= factor
            slower = next(speeds) * (first[i] if i < len(first) else usual)
            busy = max(now, busy) + seconds * slower
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
