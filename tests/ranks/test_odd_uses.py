"""A table of odd uses: each kind of DDP gives the right gradient, or one error that helps.

Rank r holds the row (1 + r, 1 + r) and the layer has no bias: the gradient of the sum of
its outputs is 1 on rank 0 and 2 on rank 1, and the mean is 1.5.
"""

import contextlib
import copy
import pickle
import sys
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from manual_dp.ranks import DDP, BucketDDP, NaiveDDP, Ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KINDS = {
    "NaiveDDP": NaiveDDP,
    "BucketDDP": BucketDDP,
    "DDP": DDP,
    "DDP, a bucket each": lambda module, **options: DDP(module, 1e-6, **options),
}
ALL = {**KINDS, "torch's": DistributedDataParallel}


@pytest.fixture(scope="module")
def two_ranks():
    with Ranks(2) as ranks:
        # the first one imports torch's compiler: on a busy machine that takes long
        ranks.run(
            "nn = torch.nn\nnn.parallel.DistributedDataParallel(nn.Linear(1, 1))\n0",
            timeout=240,
        )
        yield ranks


def on_both(ranks, function, *args):
    """Call the function in both ranks, which stay; return what they return."""
    ranks.push(function=function, args=args)
    return ranks.run("function(*args)", timeout=30)


def layer():
    linear = nn.Linear(2, 1, bias=False).double()
    nn.init.ones_(linear.weight)
    return linear


def row():
    return torch.full((1, 2), 1.0 + dist.get_rank(), dtype=torch.float64)


def gradient(module):
    return module.weight.grad[0, 0].item()


def net():
    """Return two layers and a tanh, of the same numbers in every process."""
    generator = torch.Generator().manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    for p in layers.parameters():
        p.data = torch.rand(p.shape, dtype=torch.float64, generator=generator) - 0.5
    return layers


def gradients(module):
    return [p.grad.flatten().tolist() for p in module.parameters()]


def told(function, *args):
    """Return what the call returns, or raises, in words."""
    try:
        return function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def failed_half_way(model, module):
    """Let every rank's backward raise an error after the first gradient."""
    handle = module.weight.register_post_accumulate_grad_hook(lambda p: 1 / 0)
    text = told(model(row()).sum().backward)
    handle.remove()
    assert text == "ZeroDivisionError: division by zero"


# programs: `loss` and `back` are of a model's row, `see` notes the gradient of `linear`


def of(program):
    """Return the case that a program is: what it has seen, or else the last gradient."""

    def case(wrap):
        def loss(model, scale=1):
            return scale * model(row()).sum()

        def see(but=0):
            names["seen"].append(gradient(names["linear"]) - but)

        names = {
            "wrap": wrap,
            "linear": layer(),
            "rank": dist.get_rank(),
            "seen": [],
            "loss": loss,
            "back": lambda *of: loss(*of).backward(),
            "see": see,
            "row": row,
            "layer": layer,
            "gradient": gradient,
            "kinds": ALL,
            "failed_half_way": failed_half_way,
            "nn": nn,
            "torch": torch,
            "copy": copy,
            "pickle": pickle,
            "Torchs": DistributedDataParallel,
            "net": net,
            "gradients": gradients,
            "Heads": Heads,
            "Returns": Returns,
            "told": told,
            "checkpoint": checkpoint,
            "SimpleNamespace": SimpleNamespace,
            "suppress": contextlib.suppress,
            "penalty": penalty,
            "Keeps": Keeps,
        }
        exec(program, names)
        found = names["seen"] or gradient(names["linear"])
        names.clear()
        return found

    return case


MADE = "model = wrap(linear)\n"
LOOKED_AT = "model = wrap(linear); model(row())\n"
PROGRAMS = {
    # an old wrapper
    "wrapped again": (LOOKED_AT + "model = wrap(linear); back(model)", 1.5),
    "after another kind": (
        """
for first in kinds.values():
    linear = layer(); first(linear)(row()); back(wrap(linear)); see()""",
        [1.5] * 5,
    ),
    "before torch's": ("wrap(linear)(row()); model = Torchs(linear); back(model)", 1.5),
    "after an error in a hook": (
        "failed_half_way(wrap(linear), linear); linear.weight.grad = None\n"
        "back(wrap(linear))",
        1.5,
    ),
    "after an error before any gradient": (
        MADE
        + """
output = model(row()); output.register_hook(lambda grad: 1 / 0)
with suppress(ZeroDivisionError): output.sum().backward()
back(model)""",
        1.5,
    ),
    "old one deleted": (
        LOOKED_AT + "del model; model = wrap(linear); back(model)",
        1.5,
    ),
    "old one called": (MADE + "wrap(linear)(row()); back(model)", 1.5),
    "old and new in turns": (
        MADE
        + """new = wrap(linear)
for one in (model, new, new, model): back(one); see()""",
        [1.5, 3, 4.5, 6],
    ),
    "old loss after the new one was made": (
        "one = loss(wrap(linear)); wrap(linear)(row()); one.backward()",
        1.5,
    ),
    "made in no_sync of the old one": (
        "with wrap(linear).no_sync(): back(wrap(linear))",
        1.5,
    ),
    "the first beside its copy": (
        MADE
        + "back(copy.deepcopy(model)); assert linear.weight.grad is None; back(model)",
        1.5,
    ),
    "a copy of the module": (
        "wrap(linear)(row()); linear = copy.deepcopy(linear); back(wrap(linear))",
        1.5,
    ),
    "a part, then the whole": (
        "whole = nn.Sequential(linear); wrap(linear)(row()); back(wrap(whole))",
        1.5,
    ),
    "the whole, then a part": (
        "whole = nn.Sequential(linear); wrap(whole)(row()); back(wrap(linear))",
        1.5,
    ),
    **{
        f"a copy by {again}": (
            LOOKED_AT + f"other = {again}; back(other); linear = other.module",
            1.5,
        )
        for again in (
            "copy.deepcopy(model)",
            "copy.copy(model)",
            "pickle.loads(pickle.dumps(model))",
        )
    },
    # which backward is averaged
    "two losses": (
        MADE + "one, ten = loss(model), loss(model, 10)\n"
        "one.backward(); see(); ten.backward(); see()",
        [1.5, 16.5],
    ),
    "two losses, the last first": (
        MADE + "one, ten = loss(model), loss(model, 10)\n"
        "ten.backward(); see(); one.backward(); see()",
        [15, 16.5],
    ),
    "three losses and a step": (
        MADE
        + """
losses = [loss(model, scale) for scale in (1, 10, 100)]
losses[0].backward(); linear.zero_grad(); losses[1].backward(); losses[2].backward()""",
        165,
    ),
    "one graph twice": (
        "one = loss(wrap(linear))\nfor again in (True, False): "
        "one.backward(retain_graph=again); see()",
        [1.5, 3],
    ),
    "the sum of two": (MADE + "(loss(model) + loss(model)).backward()", 3),
    # w x, then w w x: with w = 1, as one number, the gradient is 2 x
    "through itself": (
        "linear = nn.Linear(1, 1, bias=False).double()\n"
        "nn.init.ones_(linear.weight)\n"
        + MADE
        + "model(model(row()[:, :1])).sum().backward()",
        3,
    ),
    "a forward in no_grad between": (
        MADE
        + """one = loss(model)
with torch.no_grad(): model(row())
with torch.inference_mode(): model(row())
one.backward()""",
        1.5,
    ),
    "an eval forward between": (
        MADE + "one = loss(model)\n"
        "model.eval(); model(row()); model.train(); one.backward()",
        1.5,
    ),
    "a look before each step": (
        MADE + "for _ in range(2): model(row()); back(model); see()",
        [1.5, 3],
    ),
    "forward in no_sync first": (
        MADE + "with model.no_sync(): back(model)\nsee(rank); back(model); see()",
        [1, 3],
    ),
    "a look between no_sync and its backward": (
        MADE + "with model.no_sync(): one = loss(model)\n"
        "model(row()); one.backward(); see(rank); back(model); see()",
        [1, 3],
    ),
    # torch's averages the next backward: the look armed it
    "a look before no_sync": (
        LOOKED_AT + "with model.no_sync(): back(model)\nsee(rank); back(model); see()",
        [1, 3],
    ),
    "the one inside first": (
        MADE
        + """outside = loss(model)
with model.no_sync(): inside = loss(model, 10)
inside.backward(); see(10 * rank); outside.backward(); see()""",
        [10, 16.5],
    ),
    "the one outside first": (
        MADE
        + """with model.no_sync(): inside = loss(model, 10)
back(model); see(); inside.backward(); see(10 * rank); back(model); see()""",
        [1.5, 11.5, 18],
    ),
    "only backward in no_sync": (
        MADE + "one = loss(model)\nwith model.no_sync(): one.backward()",
        1.5,
    ),
    "the sum of one outside and one inside": (
        MADE
        + """outside = loss(model)
with model.no_sync(): both = outside + loss(model, 10)
both.backward()""",
        16.5,
    ),
    "no_sync in no_sync": (
        MADE
        + """with model.no_sync():
    with model.no_sync(): back(model)
    back(model)
see(2 * rank); back(model); see()""",
        [2, 4.5],
    ),
    "no_sync left by an error": (
        MADE
        + """
with suppress(ZeroDivisionError), model.no_sync(): 1 / 0
back(model)""",
        1.5,
    ),
    "three micro-batches": (
        MADE
        + """for set_to_none in (True, False, True):
    with model.no_sync(): back(model, 1 / 3); back(model, 1 / 3)
    back(model, 1 / 3); see(); model.zero_grad(set_to_none)""",
        [1.5] * 3,
    ),
    "steps without zero_grad": (
        MADE + "for _ in range(3): back(model); see()",
        [1.5, 3, 4.5],
    ),
    "changed in place": ("wrap(linear)(row()).mul_(2).sum().backward()", 3),
    "cut and carried on": (
        """output = wrap(linear)(row())
cut = output.detach().requires_grad_()
(3 * cut).sum().backward(); output.backward(cut.grad)""",
        4.5,
    ),
    "a critic that is frozen for a while": (
        """
critic = nn.Linear(1, 1, bias=False).double(); nn.init.ones_(critic.weight)
make, judge = wrap(linear), wrap(critic)
for learns in (True, False):
    critic.requires_grad_(learns); judge(make(row())).sum().backward(); see()
seen.append(gradient(critic))""",
        [1.5, 3, 3],
    ),
    "two dtypes": (
        """
after = nn.Linear(1, 1, bias=False); nn.init.ones_(after.weight)
after.register_forward_pre_hook(lambda module, args: (args[0].float(),))
back(wrap(nn.Sequential(linear, after))); see(); seen.append(gradient(after))""",
        [1.5, 3],
    ),
    "a new model for each step": (  # the wrapper itself is not kept
        "for _ in range(3): linear = layer(); back(wrap(linear)); see()",
        [1.5] * 3,
    ),
}


# what forward returns, and what the loss is made of


class Returns(nn.Module):
    """Return what `change` makes of the layer's output."""

    def __init__(self, change):
        super().__init__()
        self.weight, self.change = layer().weight, change

    def forward(self, X):
        return self.change(X @ self.weight.t())


class Keeps(Returns):
    """Keep a loss that is not made of what is returned."""

    def __init__(self, change=lambda y: y):
        super().__init__(change)

    def forward(self, X):
        self.loss = (X @ self.weight.t()).sum()
        return super().forward(X)


@dataclass
class Scores:
    y_hat: torch.Tensor
    name: str = "scores"


@dataclass(slots=True)
class Slots:
    y_hat: torch.Tensor


Pair = namedtuple("Pair", "y_hat other")
OUTPUTS = {
    "a tuple": (lambda y: (y, None), lambda out: out[0]),
    "a list in a dict": (lambda y: {"y": [1, y]}, lambda out: out["y"][1]),
    "a dataclass": (Scores, lambda out: out.y_hat),
    "a dataclass with slots": (Slots, lambda out: out.y_hat),
    "a namedtuple": (lambda y: Pair(y, 2.0), lambda out: out.y_hat),
    "all in one": (
        lambda y: Scores([(Pair(y, None), {"a": 1})]),
        lambda out: out.y_hat[0][0].y_hat,
    ),
}


def returning(change, pick):
    def case(wrap):
        module, seen = Returns(change), []
        model = wrap(module)
        for _ in range(2):
            pick(model(row())).sum().backward()
            seen.append(gradient(module))
        return seen

    return case


PROGRAMS |= {
    "two outputs, one by one": (
        """linear = Returns(lambda y: (y, 10 * y))
for output in wrap(linear)(row()): output.sum().backward(retain_graph=True); see()""",
        [1.5, 16.5],
    ),
    # adds 2 w
    "a parameter beside the output too": (
        "(wrap(linear)(row()).sum() + linear.weight.square().sum()).backward()",
        3.5,
    ),
    # the sum of outputs is 2 and 4, the factor of `shift` 3 and 4
    # adds 2 w as well, and is not averaged until the next backward that is
    "a penalty of weights first": (
        MADE
        + """output = model(row())
linear.weight.square().sum().backward(); output.sum().backward(); see(); back(model)
see()""",
        [3.5, 5],
    ),
    "a penalty of weights afterwards": (
        MADE
        + "back(model); linear.weight.square().sum().backward(); see(); back(model)\n"
        "see()",
        [3.5, 5],
    ),
    "a loss that is kept, beside the output's": (
        """linear = Keeps(); model = wrap(linear)
for _ in range(2): (model(row()).sum() + linear.loss).backward(); see()""",
        [3, 6],
    ),
    "classes instead of scores, in eval": (
        "linear = Returns(lambda y: y if linear.training else y.argmax(1))\n"
        + MADE
        + "model.eval(); model(row()); model.train(); back(model)",
        1.5,
    ),
    "nothing, in no_sync": (
        "linear = Keeps(lambda y: None); model = wrap(linear)\n"
        "with model.no_sync(): model(row()); linear.loss.backward()\n"
        "see(rank)",
        1,
    ),
    "frozen for a while, on data alone": (
        MADE
        + """
linear.requires_grad_(False); model(row()); linear.requires_grad_(True); back(model)""",
        1.5,
    ),
    "parameters only beside the output": (
        """linear = Returns(lambda y: y)
linear.scale, linear.shift = (nn.Parameter(torch.ones(1).double()) for _ in range(2))
model = wrap(linear)
for _ in range(3):
    (model(row()).sum() * linear.scale + linear.shift * (3 + rank)).backward()
    see(); seen += [linear.scale.grad.item(), linear.shift.grad.item()]""",
        [1.5, 3, 3.5, 3, 6, 7, 4.5, 9, 10.5],
    ),
    "inputs that want a gradient": (
        """X = row().requires_grad_()
wrap(linear)(X).sum().backward(); see(); seen.append(X.grad[0, 0].item())""",
        [1.5, 1],
    ),
}


# What forward returned, changed in place: a view then gets a new node in autograd's
# graph, and hooks on its old one are never called.


def part_of_another(y):
    whole = torch.zeros(1, 6, dtype=y.dtype)
    whole[:, 1:5] = y
    return whole[:, 1:3]


def add(out):
    out += 1


def fill(out):
    out[:, 0] = -9


def divide(out):
    out /= 2


def clamp(out):
    out.clamp_(-1, 1)


def reshape_and_add(out):
    out.squeeze_().unsqueeze_(0).add_(1)


def add_without_gradients(out):
    with torch.no_grad():
        out += 1


def change_the_first(out):
    out[0].mul_(3)


IN_PLACE = {
    "squeezed": (lambda y: y.squeeze(0), add),
    "a slice": (lambda y: y[:, 1:], fill),
    "a slice of a slice": (lambda y: y[:, 1:][:, 1:], divide),
    "transposed": (lambda y: y.t(), clamp),
    "viewed": (lambda y: y.view(2, 2), reshape_and_add),
    "a slice, in no_grad": (lambda y: y[:, 1:], add_without_gradients),
    "one of two parts": (lambda y: (y[:, :2], y[:, 2:]), change_the_first),
    "a slice of what it was written into": (part_of_another, divide),
    "a slice in a checkpoint": (
        lambda y: checkpoint(lambda y: y[:, 1:], y, use_reentrant=False),
        add,
    ),
    "no view": (lambda y: y, fill),
}


class Wide(nn.Module):
    """Return what `change` makes of four outputs."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(2, 4).double(), change
        for p in self.linear.parameters():
            nn.init.constant_(p, 0.3)

    def forward(self, X):
        return self.change(self.linear(X))


def squares(out):
    parts = out if isinstance(out, tuple) else [out]
    return sum(part.square().sum() for part in parts)


def changing(change, act):
    """Return a case: two forwards, both outputs changed in place, then two backwards."""

    def case(wrap):
        module, seen = Wide(change), []
        model = wrap(module)
        outputs = [model(row()), model(2 * row())]
        for out in outputs:
            act(out)
        for out in outputs:
            squares(out).backward()
            seen.append([p.grad.flatten().tolist() for p in module.parameters()])
        return seen

    return case


def with_compile(wrap):
    """Return gradients of a compiled wrapper whose output is a view, changed in place."""
    module = Wide(lambda y: y[:, 1:])
    model = torch.compile(wrap(module), backend="aot_eager")
    for _ in range(2):
        out = model(row())
        out += 1
        out.square().sum().backward()
    return [p.grad.flatten().tolist() for p in module.parameters()]


# gradients of gradients, checkpoints and others: what torch's or one device gives


def penalty(model, X):
    (grad,) = torch.autograd.grad(model(X).sum(), X, create_graph=True)
    return (grad.norm() - 1).square()


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(layer() for _ in range(3))

    def forward(self, X, which):
        return sum(self.heads[i](X) for i in which)


def of_dtype(dtype):
    def case(wrap):
        linear = nn.Linear(2, 1, bias=False).to(dtype)
        nn.init.ones_(linear.weight)
        model = wrap(linear)
        model(row().to(dtype)).abs().sum().backward()
        return torch.view_as_real(linear.weight.grad.cfloat()).flatten().tolist()

    return case


NET = "layers = net(); model = wrap(layers)\n"
SQUARES = "model(row()).square().sum().backward"
SEEN = "\nseen += gradients(layers)"
SPARSE = """
embed = nn.Embedding(3, 1, sparse=True).double(); model = wrap(embed)
def back(): model(torch.tensor([0, rank])).sum().backward()
{}
back(); seen += embed.weight.grad.to_dense().flatten().tolist()"""
PENALTY = """layers, X = net(), row().requires_grad_()
model = wrap(layers, find_unused_parameters=True)
"""
LIKE_ONE_DEVICE = {
    "a penalty in the loss": PENALTY
    + ("(model(X).square().sum() + penalty(model, X)).backward()")
    + SEEN,
    # the last bias has no part in it
    "a penalty alone": """layers, X = net(), row().requires_grad_()
layers[2].bias.requires_grad_(False); penalty(wrap(layers), X).backward()
seen += gradients(layers[:2]) + [layers[2].weight.grad.flatten().tolist()]""",
    "a penalty alone, of one layer": """X = row().requires_grad_(); model = wrap(linear)
(penalty(model, X) * (1 + rank)).backward(); seen += gradients(linear)""",
    "losses, then a penalty": PENALTY
    + """for _ in range(2):
    model(X).square().sum().backward(); penalty(model, X).backward()
    seen += gradients(layers)""",
    "a Hessian times a vector": NET
    + """
grads = torch.autograd.grad(model(row()).square().sum(), [*layers.parameters()],
                            create_graph=True)
sum(grad.sum() for grad in grads).backward()"""
    + SEEN,
    "tied weights": """
layers = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
for p in layers.parameters(): nn.init.constant_(p, 0.5)
layers[2].weight = layers[0].weight; model = wrap(layers)
"""
    + f"{SQUARES}()"
    + SEEN,
    "create_graph in backward": NET + f"{SQUARES}(create_graph=True)" + SEEN,
    "autograd.grad, then backward": NET
    + """
loss = model(row()).square().sum()
torch.autograd.grad(loss, [*layers.parameters()], retain_graph=True)
loss.backward()"""
    + SEEN,
    "a checkpoint": """
layers = net(); first, *rest = layers
layers.forward = lambda X: checkpoint(nn.Sequential(*rest), first(X), use_reentrant=False)
model = wrap(layers)
"""
    + f"{SQUARES}()"
    + SEEN,
    "the model in a checkpoint": NET
    + ("checkpoint(model, row(), use_reentrant=False).square().sum().backward()")
    + SEEN,
}
LIKE_TORCHS = {
    # what is frozen when the module is wrapped is left alone, as torch's leaves it
    "frozen and unfrozen later": """
layers = net(); layers[0].requires_grad_(False); model = wrap(layers); back(model)
layers[0].requires_grad_(True); back(model)"""
    + SEEN,
    # no averaging: this backward comes through no output of the wrapper
    "through module": NET + "back(model.module)" + SEEN,
    "after a forward through module": NET
    + ("with torch.no_grad(): model.module(row())\nback(model)")
    + SEEN,
    "two forwards through batch norm": """
layers = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
for p in layers.parameters(): nn.init.constant_(p, 0.5)
model, X = wrap(layers), torch.cat([row(), 3 * row()])
(model(X).square().sum() + model(2 * X).square().sum()).backward()"""
    + SEEN,
    "clipped": MADE
    + """for scale in (1, 10):
    back(model, scale); nn.utils.clip_grad_norm_(model.parameters(), 1); see()""",
    "hooks of the learner's": """
layers = net(); layers[0].weight.register_hook(lambda grad: grad * 2); model = wrap(layers)
layers[2].weight.register_hook(lambda grad: grad * 3); back(model)"""
    + SEEN,
    "no gradient from a backward of one's own": """
heads = Heads(); model = wrap(heads, find_unused_parameters=True)
for never in (True, False):  # in the second step, on rank 1 alone
    class Gives(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight): return weight.clone()
        @staticmethod
        def backward(ctx, grad): return None if never or rank else grad
    heads.heads[1].forward = lambda X: X @ Gives.apply(heads.heads[1].weight).t()
    model(row(), [0, 1]).sum().backward()
    seen += [p.grad if p.grad is None else p.grad[0, 0].item() for p in heads.parameters()]""",
    "a sparse embedding": SPARSE.format("back()"),
    "a sparse embedding in no_sync": SPARSE.format("with model.no_sync(): back()"),
}
DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]

CASES = {
    **{name: (of(program), right) for name, (program, right) in PROGRAMS.items()},
    **{name: (of(program), None) for name, program in LIKE_TORCHS.items()},
    **{name: (of(program), "one device") for name, program in LIKE_ONE_DEVICE.items()},
    **{
        f"returns {name}": (returning(*pair), [1.5, 3])
        for name, pair in OUTPUTS.items()
    },
    **{
        f"changed in place: {name}": (changing(*pair), "one device")
        for name, pair in IN_PLACE.items()
    },
    **{str(dtype): (of_dtype(dtype), None) for dtype in DTYPES},
}


def with_each_kind(case):
    """Return for each kind what the case returns, as a flat list, or raises, in words."""
    return {
        name: told(lambda wrap=wrap: flat(case(wrap))) for name, wrap in ALL.items()
    }


def on_one_device(case):
    """Return what the case returns with the bare module: the mean over both ranks' rows."""
    with pytest.MonkeyPatch.context() as patch:
        results = []
        for rank in range(2):
            patch.setattr(dist, "get_rank", lambda rank=rank: rank)
            results.append(flat(case(lambda module, **options: module)))
    return [sum(numbers) / 2 for numbers in zip(*results)]


def flat(numbers):
    if isinstance(numbers, list):
        return [number for part in numbers for number in flat(part)]
    return [float("nan") if numbers is None else numbers]


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_right(two_ranks, name):
    case, right = CASES[name]
    right = on_one_device(case) if right == "one device" else right
    for results in on_both(two_ranks, with_each_kind, case):
        right_here = results["torch's"] if right is None else flat(right)
        for kind in KINDS:
            assert results[kind] == pytest.approx(
                right_here, rel=0, abs=1e-12, nan_ok=True
            ), kind


def test_a_compiled_wrapper_is_right(two_ranks):
    # 5 s: what torch's compiler does with hooks on outputs is seen here alone
    right = on_one_device(with_compile)
    for grads in on_both(two_ranks, lambda: flat(with_compile(DDP))):
        assert grads == pytest.approx(right, rel=0, abs=1e-12)


# one error, on every rank


def two_wrappers_in_one_loss(wrap):
    seen = []
    for other in KINDS.values():
        linear = layer()
        models = wrap(linear), other(linear)
        loss = sum(model(row()).sum() for model in models)
        seen.append(told(loss.backward) or gradient(linear))
    return [seen]


def a_gradient_that_a_hook_replaced(wrap):
    linear = layer()
    model = wrap(linear)
    linear.weight.register_post_accumulate_grad_hook(
        lambda p: setattr(p, "grad", p.grad.clone())
    )
    model(row()).sum().backward()
    return gradient(linear)


NOT_REACHED = (
    "RuntimeError: backward did not reach {}; if that is meant, pass "
    "find_unused_parameters=True"
)
NOT_ENDED = (
    "RuntimeError: a backward has not ended: after an error, set gradients to None and "
    "wrap the module again; in torch.utils.checkpoint, say use_reentrant=False"
)
RETURNED = (
    "TypeError: the module returned a {}: return new tensors, alone or in lists, "
    "tuples, dicts or a dataclass"
)
TWICE = (
    "ValueError: the module or a part of it is wrapped already: wrap what is inside, its "
    ".module"
)
CHANGED = (
    "RuntimeError: a parameter changed during backward, before gradients were averaged: "
    "call optimizer.step() when backward has returned, not in a hook"
)
NOTHING = (
    "TypeError: the module returned nothing that leads to its parameters, so no backward "
    "could average their gradients: return the loss, or what it is made of; where nothing "
    "is learned, call it under torch.no_grad()"
)
PASSED_BY = (
    "RuntimeError: the last backward did not come through what forward returned, so its "
    "gradients were not averaged: let forward return the loss, or what it is made of, "
    "and wrap the module again"
)
HEADS = "heads = Heads(); model = wrap(heads)\n"
ERRORS = {
    "it goes on after an error": (
        MADE
        + """failed_half_way(model, linear)
linear.weight.grad = None; back(model)""",
        NOT_ENDED,
    ),
    "it goes on after parameters were missing": (
        HEADS
        + """
told(model(row(), [0]).sum().backward); model(row(), [0, 1, 2]).sum().backward()""",
        NOT_ENDED,
    ),
    "frozen later": (
        HEADS
        + """
heads.heads[1].requires_grad_(False); model(row(), [0, 1, 2]).sum().backward()""",
        NOT_REACHED.format("heads.1.weight"),
    ),
    "a head that all skip": (
        HEADS + "model(row(), [0, 2]).sum().backward()",
        NOT_REACHED.format("heads.1.weight"),
    ),
    "only one parameter asked for": (
        HEADS
        + """
model(row(), [0, 1, 2]).sum().backward(inputs=[heads.heads[0].weight])""",
        NOT_REACHED.format("heads.1.weight, heads.2.weight"),
    ),
    "a re-entrant checkpoint": (
        """
layers = net(); first, *rest = layers
layers.forward = lambda X: checkpoint(nn.Sequential(*rest), first(X), use_reentrant=True)
back(wrap(layers))""",
        NOT_ENDED,
    ),
    "itself in a re-entrant checkpoint": (
        """
model = wrap(nn.Linear(1, 1, bias=False).double()); X = row()[:, :1].requires_grad_()
model(checkpoint(model, X, use_reentrant=True)).sum().backward()""",
        NOT_ENDED,
    ),
    "an object": (
        "wrap(Returns(lambda y: SimpleNamespace(y_hat=y)))(row())",
        RETURNED.format("SimpleNamespace"),
    ),
    "an object in a list": (
        "wrap(Returns(lambda y: [y, object()]))(row())",
        RETURNED.format("object"),
    ),
    "a loss that is kept, and nothing": ("wrap(Keeps(lambda y: None))(row())", NOTHING),
    "a loss that is kept, and scores without a gradient": (
        "wrap(Keeps(lambda y: y.detach()))(row())",
        NOTHING,
    ),
    "a loss that is kept": (
        """
linear = Keeps(); model = wrap(linear); model(row()); linear.loss.backward()
see(rank); model(row())""",
        PASSED_BY,
    ),
    "a loss that is kept, and classes, in eval": (
        """
linear = Keeps(lambda y: y.argmax(1)); model = wrap(linear).eval(); model(row())
linear.loss.backward(); see(rank); model(row())""",
        PASSED_BY,
    ),
    "a loss that is kept, in a copy": (
        """
linear = Keeps(); model = copy.deepcopy(wrap(linear)); model(row())
model.module.loss.backward(); linear.weight.grad = model.module.weight.grad
see(rank); model(row())""",
        PASSED_BY,
    ),
    "a step in a hook": (
        MADE
        + """
optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
def step(p): optimizer.step(); optimizer.zero_grad()
linear.weight.register_post_accumulate_grad_hook(step); back(model)""",
        CHANGED,
    ),
    "a step in a hook that was there first": (
        """
optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
linear.weight.register_post_accumulate_grad_hook(lambda p: optimizer.step())
back(wrap(linear))""",
        CHANGED,
    ),
    "a parameter itself": (
        "linear.forward = lambda X: (X, linear.weight)\nwrap(linear)(row())",
        RETURNED.format("Parameter"),
    ),
    "wrapped in itself": ("wrap(nn.Sequential(wrap(linear)))", TWICE),
    "wrapped in another": ("wrap(Torchs(linear))", TWICE),
    "wrapped in torch's": (
        "Torchs(wrap(linear))",
        "RuntimeError: DistributedDataParallel is not needed when a module "
        "doesn't have any parameter that requires a gradient.",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_to_do(two_ranks, name):
    program, error = ERRORS[name]
    for results in on_both(two_ranks, with_each_kind, of(program)):
        assert [results[kind] for kind in KINDS] == [error] * len(KINDS)


def test_two_wrappers_in_one_loss_are_right_or_an_error(two_ranks):
    replaced = (
        "RuntimeError: the gradient of weight was replaced in backward, by a second "
        "wrapper or a hook"
    )
    for results in on_both(two_ranks, with_each_kind, two_wrappers_in_one_loss):
        for kind in KINDS:
            assert len(results[kind]) == len(KINDS)
            assert all(result in (3, replaced) for result in results[kind]), kind
        assert results["NaiveDDP"][:2] == [3, 3] and results["DDP"][2] == replaced


def test_a_gradient_that_a_hook_replaced_is_an_error_or_averaged(two_ranks):
    for results in on_both(two_ranks, with_each_kind, a_gradient_that_a_hook_replaced):
        assert results["NaiveDDP"] == results["BucketDDP"] == [1.5]
        assert (
            results["DDP"]
            == results["DDP, a bucket each"]
            == (
                "RuntimeError: the gradient of weight was replaced in backward, by a second "
                "wrapper or a hook"
            )
        )


# over time


def kept(wrap, **options):
    """Return what a list of gradients of three steps holds at the end."""
    linear, log = layer(), []
    model = wrap(linear, **options)
    for scale in (1, 10, 100):
        model.zero_grad()
        (scale * model(row()).sum()).backward()
        log.append(linear.weight.grad)
    return [grad[0, 0].item() for grad in log]


def test_a_kept_gradient_is_a_part_of_the_bucket_as_in_torch_where_it_is_a_view(
    two_ranks,
):
    for results in on_both(two_ranks, with_each_kind, kept):
        assert results["NaiveDDP"] == results["torch's"] == [1.5, 15, 150]
        assert results["BucketDDP"] == results["DDP"] == [150] * 3
    for last_two in on_both(
        two_ranks,
        lambda: kept(DistributedDataParallel, gradient_as_bucket_view=True)[1:],
    ):
        assert last_two == [150] * 2  # torch's buckets are new after the first step


@pytest.mark.parametrize("kind", [NaiveDDP, BucketDDP, DDP])
def test_cells_that_are_run_again_are_right(two_ranks, kind):
    on_both(two_ranks, lambda: None)  # the ranks are there
    two_ranks.push(kind=kind, layer=layer, row=row, gradient=gradient)
    two_ranks.run("linear = layer()")
    for _ in range(2):
        two_ranks.run("model = kind(linear)")
        two_ranks.run("loss = model(row()).sum()")
        assert two_ranks.run(
            "model.zero_grad()\nmodel(row()).sum().backward()\ngradient(linear)"
        ) == [1.5, 1.5]
    assert two_ranks.run("loss.backward()\ngradient(linear)") == [3, 3]


def test_a_pickled_wrapper_is_right_in_new_ranks(two_ranks, tmp_path):
    # numbers of backwards begin again there
    def write(path):
        model = DDP(layer())
        for _ in range(5):
            model(row()).sum().backward()
        torch.save(model, f"{path}/{dist.get_rank()}")

    def read(path):
        model = torch.load(f"{path}/{dist.get_rank()}", weights_only=False)
        model(row()).sum().backward()
        return gradient(model.module)

    on_both(two_ranks, write, str(tmp_path))
    with Ranks(2) as new:
        assert on_both(new, read, str(tmp_path)) == [1.5, 1.5]
