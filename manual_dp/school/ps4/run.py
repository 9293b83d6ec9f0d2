"""How the answers of problem set 4 are run: DDP by hand, on real ranks.

    Network    a few layers: two tied, one frozen, one that only some rows pass
    network    its numbers drawn from a seed, float64
    row_loss   what one row of a minibatch of so many rows adds to a rank's loss
    state      its parameters and buffers as plain lists, by name
    gradients  those that it has, by name
"""

from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from manual_dp.lenet import init_params
from manual_dp.ranks import run_ranks
from manual_dp.school.tools.plain import numbers, tensor
from manual_dp.school.tools.ranks import attempt, watched

# what torch imports when it is first used: two seconds in every job
IMPORTS = ["torch._dynamo"]
# what the notebook's first cell defines
START = dict(torch=torch, dist=dist, nn=nn, F=F, contextmanager=contextmanager,
             nullcontext=nullcontext, run_ranks=run_ranks, init_params=init_params)
# and what else it imports, for trying things out
TRIED = ("check", "LeNet", "largest_difference", "load_data", "trace")

SECONDS = 6  # that all ranks have: plenty, unless they wait for one another


def start_equal(case, start_equal):
    """Let ranks that begin differently start equal; each then trains on all rows."""
    return _launch(case, partial(_train, case, _called_on(start_equal), _itself))


def average_gradients(case, average_gradients):
    """Train on every rank's own rows; average after each backward."""
    return _launch(case, partial(_train, case, _itself, average_gradients))


def average_in_buckets(case, average_in_buckets):
    """Train as above, with another size of bucket in each step."""
    return _launch(case, partial(_train, case, _itself, average_in_buckets))


def average_in_hooks(case, average_in_hooks):
    """Train as above; only before the first step is the answer called."""
    return _launch(case, partial(_train, case, _called_on(average_in_hooks), _itself))


def DDP(case, DDP):
    """Wrap differing modules; train with several backwards to a step."""
    return _launch(case, partial(_train, case, DDP, _itself))


def _launch(case, work):
    return attempt(work, case["world_size"], SECONDS)


def _train(case, wrap, after):
    """Train what `wrap` returns; after a step's last backward call `after`."""
    rank, world_size, steps = dist.get_rank(), case["world_size"], []
    module = network(case["seeds"][rank], case["spare"])
    params = list(module.parameters())
    model = wrap(module)
    start = state(module)
    for step in case["steps"]:
        *alone, last = step["shards"][rank]
        kept = []
        with watched() as quiet:
            if alone:
                with model.no_sync():
                    for X, y in alone:
                        _loss(model, X, y, step, world_size).backward()
                        kept.append(gradients(module))
            swallowed = "interrupted" in step and _swallows(model.no_sync())
        loss = _loss(model, *last, step, world_size)
        with watched() as seen:
            loss.backward()
            after(module, *step.get("arguments", []))
        _sgd(params, case["lr"])
        steps.append({"alone": kept, "swallowed": swallowed, "quiet": _sent(quiet),
                      "messages": _sent(seen), "weights": state(module)})
    return {"start": start, "steps": steps}


def _swallows(block):
    try:
        with block:
            raise InterruptedError  # what ends a block half-way
    except InterruptedError:
        return False
    return True


def _sent(calls):
    return [call for call in calls if call != "barrier"]  # which sends no numbers


def _loss(model, X, y, step, world_size):
    return row_loss(model, tensor(X), tensor(y), step["rows"], world_size)


@torch.no_grad()
def _sgd(params, lr):
    # torch's own would first import its compiler, in each rank that is forked anew
    for p in params:
        if p.grad is not None:
            p -= lr * p.grad
            p.grad = None


def _called_on(answer):
    def wrap(module):
        answer(module)
        return module
    return wrap


def _itself(module):
    return module


class Network(nn.Module):
    """Map 5 numbers to 2. No two parameters have equally many numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.first = nn.Linear(5, 6)
        self.middle = nn.Linear(6, 6, bias=False)
        self.again = nn.Linear(6, 6, bias=False)
        self.again.weight = self.middle.weight  # tied
        self.frozen = nn.Linear(6, 7)
        self.frozen.weight.requires_grad = False
        self.side = nn.Linear(7, 7, bias=False)
        self.spare = nn.Linear(3, 1, bias=False)  # no row passes it
        self.norm = nn.BatchNorm1d(7, affine=False).eval()  # its statistics are fixed
        self.last = nn.Linear(7, 2)
        self.register_buffer("scale", torch.ones(2), persistent=False)

    def forward(self, X):
        """Send all rows through, and those that begin above 0 through `side`."""
        h = torch.tanh(self.first(X - self.shift))
        h = torch.tanh(self.again(torch.tanh(self.middle(h))))
        h = self.norm(torch.tanh(self.frozen(h)))
        few = X[:, :1] > 0
        if few.any():
            h = h + few * self.side(h)
        return self.last(h) * self.scale


def network(seed, spare=True):
    """Draw a network; without `spare`, some row above 0 uses every parameter."""
    generator = torch.Generator().manual_seed(seed)
    module = Network().double()
    for p in [*module.parameters(), *module.buffers()]:
        if p.is_floating_point():
            p.data.copy_(torch.rand(p.shape, dtype=p.dtype, generator=generator) - 0.5)
        else:
            p.fill_(seed % 1000)
    module.norm.running_var += 1
    if not spare:
        module.spare = None
    return module


def row_loss(model, X, y, rows, world_size):
    """Return the loss for a shard of a minibatch of `rows` rows over all ranks.

    The sum of the shard's own losses, times world_size / rows: then the mean over
    ranks of its gradient is the gradient of the minibatch's mean loss.
    """
    return ((model(X) - y) ** 2).sum() * world_size / rows


def state(module):
    """Return all parameters and buffers by name, tied ones under both names."""
    # not state_dict, which leaves out buffers that are not to be saved
    return {name: numbers(tensor.flatten()) for name, tensor in
            [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]}


def gradients(module):
    """Return the gradients of what wants one, by name; None where there is none."""
    return {name: None if p.grad is None else numbers(p.grad.flatten())
            for name, p in module.named_parameters() if p.requires_grad}
