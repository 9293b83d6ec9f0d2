"""A linear model to train in an exercise: batches, gradients, steps.

draw_layer   a weight and a bias
draw_batch   rows and labels; draw_batches: several
loss         of batches, each with a factor
gradients    of that, by autograd
optimizer    one of a kind, by name; KINDS has one for each of four cases
descend      the parameters after each of some steps
averaged     those of ranks that step alone, and average them now and then
layer        a module with given numbers
cloned, whole    copies of batches; the factors of the mean over their rows
Forwards, one_by_one    what goes through a model at once: watch it, compare it
STEPPED      what to say if they are right with plain SGD only
"""

import weakref

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from course.school.draws import rand

# a right answer leaves the step to whichever it is handed
KINDS = ("SGD", "SGD", "Adam", "SGD with momentum")
STEPPED = {
    "the step is the optimizer's, whichever it is: see that p.grad holds the "
    "gradient of the mean, then call optimizer.step() once, and leave its rate "
    "alone": True
}


def draw_layer(random, inputs=3, outputs=4):
    """Draw a weight and a bias."""
    return [rand(random, outputs, inputs), rand(random, outputs)]


def draw_batch(random, rows, classes=4):
    """Draw rows of three numbers each, and their labels."""
    return rand(random, rows, 3), torch.tensor(
        random.choices(range(classes), k=rows), dtype=torch.int64
    )


def draw_batches(random, count, rows, most=None):
    """Draw batches of so many rows each; with `most`, of `rows` to `most`."""
    return [
        draw_batch(random, random.randint(rows, most) if most else rows)
        for _ in range(count)
    ]


def loss(params, batches, factors=None):
    """Return the sum over batches of a factor times the losses of all rows.

    params: a weight, or weight and bias for each layer; between layers stands tanh.
    factors: if there are none, the mean of the batches' mean losses is returned.
    """
    factors = factors or [1 / len(batches) / len(y) for _, y in batches]
    total = 0
    for (X, y), factor in zip(batches, factors, strict=True):
        h = X
        for i in range(0, len(params), 2):
            h = F.linear(h.tanh() if i else h, *params[i : i + 2])
        total += factor * F.cross_entropy(h, y, reduction="sum")
    return total


def gradients(params, batches, factors=None):
    """Return the gradient of `loss` for each of `params`, tensors or lists."""
    leaves = [
        torch.as_tensor(p, dtype=torch.float64).detach().requires_grad_()
        for p in params
    ]
    return torch.autograd.grad(loss(leaves, batches, factors), leaves)


def optimizer(kind, params, lr):
    """Return a new optimizer for `params`."""
    if kind == "Adam":
        return torch.optim.Adam(params, lr=lr)
    return torch.optim.SGD(params, lr=lr, momentum=0 if kind == "SGD" else 0.9)


def descend(params, steps, lr, kind="SGD", factors=None):
    """Return the parameters after each of `steps`, which are lists of batches.

    kind: of the optimizer. factors(batches): those of `loss`, if they are others.
    """
    now = [p.detach().clone().requires_grad_() for p in params]
    rule, after = optimizer(kind, now, lr), []
    for batches in steps:
        for p, grad in zip(now, gradients(now, batches, factors and factors(batches))):
            p.grad = grad
        rule.step()
        after.append([p.detach().clone() for p in now])
    return after


def averaged(params, batches, lr, due):
    """Return every rank's parameters; after step i they are averaged if due(i)."""
    for i, rows in enumerate(zip(*batches), 1):
        params = [  # by hand: the first optimizer imports torch's compiler
            [p - lr * grad for p, grad in zip(own, gradients(own, [batch]))]
            for own, batch in zip(params, rows)
        ]
        if due(i):
            params = [[sum(same) / len(params) for same in zip(*params)]] * len(params)
    return params


def layer(weight, bias=None, grad=None):
    """Return a linear layer with these numbers, and a gradient of its weight."""
    model = nn.Linear(*weight.shape[::-1], bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        for p, values in zip(model.parameters(), (weight, bias)):
            p.copy_(values)
    model.weight.grad = None if grad is None else grad.clone()
    return model


def cloned(batches):
    """Return the pairs of tensors as copies."""
    return [(X.clone(), y.clone()) for X, y in batches]


def whole(batches):
    """Return the factors of the mean over all rows of the batches."""
    return [1 / sum(len(y) for _, y in batches)] * len(batches)


class Forwards(saved_tensors_hooks):
    """Note how many rows go through a model, and what autograd holds then.

    seen: of the last block, "rows" of its largest forward, and "held", the most tensors
    that autograd had saved in it, and still had when another forward began.
    """

    def __init__(self, model):
        model.register_forward_pre_hook(self._note)
        super().__init__(self._pack, lambda box: box())

    def __enter__(self):
        self.saved, self.seen = [], {"rows": 0, "held": 0}
        super().__enter__()

    def _pack(self, tensor):
        kept = tensor.detach()  # whose graph would hold the box that holds it

        def box():  # autograd lets go of it together with the graph
            return kept

        self.saved.append(weakref.ref(box))
        return box

    def _note(self, model, args):
        now = {
            "rows": len(args[0]),
            "held": sum(box() is not None for box in self.saved),
        }
        self.seen = {name: max(now[name], most) for name, most in self.seen.items()}


def one_by_one(say, most, got):
    """Compare: did microbatches, of at most so many rows, go one by one?

    got: for each rank, what Forwards have seen.
    """
    yield say(
        f"rows of the largest forward, of the {most} that are needed",
        [max(one["rows"], most) for one in got],
        [most] * len(got),
        {"more rows at once need more memory: there is none for that": True},
    )
    yield say(
        "tensors that autograd still holds when a forward begins",
        [one["held"] for one in got],
        [0] * len(got),
        {
            "call backward after each forward, and leave out retain_graph: until then "
            "its graph is kept": True
        },
    )
