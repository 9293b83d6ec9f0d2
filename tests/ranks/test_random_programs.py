"""Random modules and training programs: each kind of DDP gives what the definition says.

A plan is drawn: a module, and steps that train it. Ranks follow it four times: with
`Definition` below, which is slow and obvious, and with each kind of DDP. Gradients after
each backward, and weights and buffers at the end, must be equal. One error may come
instead, and must where the definition says so: parameters that backward did not reach.

    RANDOM_SEED=1 pytest tests/ranks/test_random_programs.py

draws others than the suite does, and RANDOM_PROGRAMS=20 so many for each kind of block.
"""

import copy
import os
import sys
from collections import namedtuple
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from manual_dp.ranks import DDP, BucketDDP, NaiveDDP, RankError, Ranks

# A rank has no tests to import from: send this file's functions whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEED = os.environ.get("RANDOM_SEED", "0")
# for each kind of block; from 10 on hypothesis draws less at random and copies parts
PROGRAMS = int(os.environ.get("RANDOM_PROGRAMS", "5"))
C = torch.complex128  # all else is float64: the definition is met to 1e-12
KINDS = {"NaiveDDP": NaiveDDP, "BucketDDP": BucketDDP, "DDP": DDP}


# the definition: what a program has to compute, without buckets or overlap


class NotReached(Exception):
    """Say which parameters this rank's backward did not reach, perhaps none."""


class Definition(nn.Module):
    """Start from rank 0's numbers; `average` makes each gradient the mean over ranks."""

    def __init__(self, module, find_unused_parameters):
        super().__init__()
        self.module, self.find_unused = module, find_unused_parameters
        self.sync = self.last_was_synced = True
        self.used = set()  # what took part in a backward since the last average
        copy_from_rank0([*module.parameters(), *module.buffers()])
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.note)

    def note(self, p):
        self.used.add(p)
        p.grad = p.grad.to_dense()

    def forward(self, X):
        if self.last_was_synced:  # when torch's DDP copies buffers, too
            copy_from_rank0(self.module.buffers())
        self.last_was_synced = self.sync and torch.is_grad_enabled()
        return self.module(X)

    @contextmanager
    def no_sync(self):
        self.sync = False
        yield
        self.sync = True

    def average(self):
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        users = torch.tensor([p in self.used for _, p in named], dtype=torch.int64)
        dist.all_reduce(users)
        if not self.find_unused and users.min() < dist.get_world_size():
            raise NotReached(", ".join(n for n, p in named if p not in self.used))
        for (_, p), count in zip(named, users):
            if count > 0:  # what no rank has used stays as it was
                total = torch.zeros_like(p) if p.grad is None else p.grad.clone()
                total = total.detach().contiguous()
                dist.all_reduce(total)
                p.grad = total / dist.get_world_size()
        self.used = set()


@torch.no_grad()
def copy_from_rank0(tensors):
    for tensor in tensors:
        dist.broadcast(numbers := tensor.clone(), 0)
        tensor.data.copy_(numbers)  # .data: an earlier forward's backward may yet come


# modules


class InTurns(nn.Linear):
    """Take part in every other forward; on odd ranks, in the others."""

    calls = 0

    def forward(self, X):
        self.calls += 1
        return super().forward(X) if (self.calls + dist.get_rank()) % 2 else X


class Centred(nn.Module):
    """Hold buffers: floats, a whole number, and one that is in no state dict."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("calls", torch.tensor(dist.get_rank()))
        self.register_buffer("shift", torch.randn(4), persistent=False)

    def forward(self, X):
        self.calls += 1
        self.mean.mul_(0.9).add_(X.detach().mean(0))
        return X - self.mean + self.shift


def linear():
    return nn.Linear(4, 4)


def one_number_and_none():
    return nn.ParameterList([torch.randn(()), torch.zeros(0, 3)])


def add_a_row_of(table, X):
    """Add to each row one of the table's; ranks use rows that are not the same."""
    return X + table((torch.arange(len(X)) + 3 * dist.get_rank()) % 8)


def call(layer, X):
    return layer(X)


BLOCKS = {  # kind: (how its layer is made, how the block makes new rows of 4 numbers)
    "linear": (linear, call),
    "tied": (linear, call),
    "frozen": (linear, call),
    "unused": (linear, lambda layer, X: X),
    "even ranks": (linear, lambda layer, X: X if dist.get_rank() % 2 else layer(X)),
    "in turns": (lambda: InTurns(4, 4), call),
    "in place": (linear, lambda layer, X: layer(X).add_(0.1).relu_()),
    "checkpoint": (linear, lambda layer, X: checkpoint(layer, X, use_reentrant=False)),
    "float32": (lambda: linear().float(), lambda layer, X: layer(X.float()).double()),
    "complex": (lambda: nn.Linear(4, 4, dtype=C), lambda f, X: f(X.to(C)).abs()),
    "scaled": (one_number_and_none, lambda layer, X: X * layer[0] + layer[1].sum()),
    "embedding": (lambda: nn.Embedding(8, 4), add_a_row_of),
    "sparse": (lambda: nn.Embedding(8, 4, sparse=True), add_a_row_of),
    "lstm": (lambda: nn.LSTM(4, 4), lambda layer, X: layer(X)[0]),
    "convolution": (lambda: nn.Conv1d(4, 4, 1), lambda layer, X: layer(X.t()).t()),
    "attention": (lambda: nn.MultiheadAttention(4, 2), lambda f, X: f(X, X, X)[0]),
    "weight norm": (lambda: weight_norm(linear()), call),
    "BatchNorm": (lambda: nn.BatchNorm1d(4), call),
    "LayerNorm": (lambda: nn.LayerNorm(4), call),
    "dropout": (lambda: nn.Dropout(0.3), call),
}

Pair = namedtuple("Pair", "a b")


@dataclass
class Scores:
    a: torch.Tensor
    b: list


OUTPUTS = {  # what forward returns of a, the last layer's output, and b from before it
    "tensor": lambda a, b: a,
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [b, a],
    "dict": lambda a, b: {"a": a, "b": b},
    "nested": lambda a, b: {"z": [(a,), {"b": b}], "n": 3, "name": "x", "none": None},
    "dataclass": lambda a, b: Scores(a, [b]),
    "namedtuple": Pair,
    "with what is detached": lambda a, b: (b.detach(), a),
    "twice": lambda a, b: (a, a),
    "view": lambda a, b: a.view(-1, 2),
    "view of a view": lambda a, b: a.view(-1, 2)[1:],
    "transposed": lambda a, b: a.t(),
    "select": lambda a, b: a[:, 0],
    "two slices": lambda a, b: (a[:, :2], a[:, 2:]),
    "chunks": lambda a, b: a.chunk(2, dim=1),
    "one number": lambda a, b: a.square().mean(),
}


class Net(nn.Module):
    """Chain layers; buffers follow the rows of each forward."""

    def __init__(self, blocks, output):
        super().__init__()
        self.first, self.centred, self.last = linear(), Centred(), linear()
        self.blocks, self.output = blocks, output
        self.layers = nn.ModuleList([BLOCKS[kind][0]() for kind in blocks])
        for kind, layer in zip(blocks, self.layers):
            if kind == "tied":
                layer.weight = self.first.weight
            if kind == "frozen":
                layer.weight.requires_grad_(False)

    def forward(self, X):
        X = self.centred(self.first(X))
        for kind, layer in zip(self.blocks, self.layers):
            X = BLOCKS[kind][1](layer, X)
        return OUTPUTS[self.output](self.last(X), X * 2)


# programs: a plan, and what follows it

IN_PLACE = {  # what the caller does to a tensor that forward returned
    "nothing": lambda out: None,
    "add": lambda out: out.add_(1),
    "divide": lambda out: out.div_(2),
    "mask": lambda out: out[..., 0].fill_(-1e9),
    "clamp": lambda out: out.clamp_(-0.5, 0.5),
    "a view": lambda out: out[..., 1:].mul_(3),
    "a view of a view": lambda out: out[1:][..., 0].mul_(3),
    "transposed": lambda out: out.transpose(0, -1).add_(1),
    "another shape": lambda out: out.unsqueeze_(0),
}
UNCHANGED = ["chunks", "one number"]  # torch forbids the first; the other has no parts
LOSSES = {  # for each backward, the tensors that its loss is made of
    "all": lambda parts: [parts],
    "all and parameters": lambda parts: [parts],
    "all, twice": lambda parts: [parts, parts],
    "the first": lambda parts: [parts[:1]],
    "the last": lambda parts: [parts[-1:]],
    "one by one": lambda parts: [[part] for part in parts],
}
OPTIMIZERS = {  # eps: a gradient of 1e-17 in the place of 0 must not make a step
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-3),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01, eps=1e-3),
}
LOOKS = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "on": nullcontext}


def one_of(choices):
    return st.sampled_from(list(choices))


def some(parts, least, most):
    return st.lists(parts, min_size=least, max_size=most)


MICRO_BATCH = {
    "forwards in no_sync": some(st.booleans(), 1, 2),
    "backward in no_sync": st.booleans(),
    "in place": one_of(IN_PLACE),
    "which": one_of([0, -1]),  # of the tensors that forward returned
    "loss": one_of(LOSSES),
}
STEP = {
    "zero": one_of(["None", "None", "zeros", "keep"]),
    "look": one_of(["no look", *LOOKS]),
    "eval": st.booleans(),
    "micro-batches": some(st.fixed_dictionaries(MICRO_BATCH), 1, 3),
    "clip": st.booleans(),
    "reload": st.booleans(),
}
PLAN = {
    "world_size": one_of([2, 3]),
    "blocks": some(one_of(BLOCKS), 0, 3),
    "output": one_of(OUTPUTS),
    "optimizer": one_of(OPTIMIZERS),
    "bucket_cap_mb": one_of([25, 1e-4, 1e-6]),
    "find_unused": one_of([True, True, False]),
    "steps": some(st.fixed_dictionaries(STEP), 1, 2),
    "kinds": st.permutations(list(KINDS)),
}


def follow(kind, plan):
    """Train on this rank; return what it saw, or what backward did not reach."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(dist.get_rank())  # weights, buffers and rows are each rank's own
    options = {"find_unused_parameters": plan["find_unused"]}
    if kind in ("BucketDDP", "DDP"):
        options["bucket_cap_mb"] = plan["bucket_cap_mb"]
    wrap = KINDS.get(kind, Definition)
    model = wrap(Net(plan["blocks"], plan["output"]), **options)
    optimizer = OPTIMIZERS[plan["optimizer"]](model.parameters())
    seen = []
    try:
        for step in plan["steps"]:
            seen += take_step(model, optimizer, step)
    except NotReached as error:
        return str(error)
    return flat([*seen, *model.parameters()])


def take_step(model, optimizer, step):
    """Return gradients after each backward, and buffers."""
    before, seen = copy.deepcopy(model.state_dict()), []
    if step["zero"] != "keep":
        optimizer.zero_grad(set_to_none=step["zero"] == "None")
    if step["look"] != "no look":
        model.train(not step["eval"])
        with LOOKS[step["look"]]():
            model(rows())
        model.train()
    for micro_batch in step["micro-batches"]:
        seen += forward_and_backward(model, micro_batch)
        seen += [buffer.clone() for buffer in model.buffers()]
    if step["clip"]:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step["reload"]:
        model.load_state_dict(before)
    return seen


def rows():
    return torch.randn(3 + dist.get_rank(), 4)


def forward_and_backward(model, plan):
    """Return the gradients after each backward."""
    parts, seen = [], []
    for in_no_sync in plan["forwards in no_sync"]:
        with model.no_sync() if in_no_sync else nullcontext():
            outputs = tensors(model(rows()))
        if model.module.output not in UNCHANGED:
            IN_PLACE[plan["in place"]](outputs[plan["which"]])
        parts += [(output, in_no_sync) for output in outputs]
    backwards = LOSSES[plan["loss"]](parts)
    with model.no_sync() if plan["backward in no_sync"] else nullcontext():
        for number, through in enumerate(backwards, 1):
            loss = sum(output.square().mean() for output, _ in through)
            if plan["loss"] == "all and parameters":
                loss = loss + sum(p.abs().square().sum() for p in model.parameters())
            loss.backward(retain_graph=number < len(backwards))
            # one forward outside no_sync is enough; where backward is does not matter
            synced = not all(in_no_sync for _, in_no_sync in through)
            if synced and isinstance(model, Definition):
                model.average()
            for p in model.parameters():
                seen.append(None if p.grad is None else p.grad.clone())
    return seen


def tensors(output):
    """Return those in what forward returned that backward can come through."""
    output = vars(output) if isinstance(output, Scores) else output
    leaves = torch.utils._pytree.tree_leaves(output)
    return [leaf for leaf in leaves if getattr(leaf, "grad_fn", None)]


def flat(them):
    """Return which of them there are, and all their numbers, in two tensors."""
    there = [tensor is not None for tensor in them]
    numbers = []
    for tensor in them:
        if tensor is not None:
            dense = tensor.detach().to_dense()
            real = torch.view_as_real(dense) if dense.is_complex() else dense
            numbers.append(real.double().flatten())
    return torch.tensor(there), torch.cat(numbers)


# the test


@pytest.fixture(scope="module")
def running():
    """Return a dict of the ranks that run, by world size; they stay."""
    running = {}
    yield running
    for ranks in running.values():
        ranks.close()


def outcome(running, kind, plan):
    """Return by rank what `follow` returned, or else the RankError."""
    size = plan["world_size"]
    if size not in running:
        running[size] = Ranks(size)
        running[size].push(follow=follow)
        # the first optimizer imports it: on a busy machine that takes long
        running[size].run("import torch._dynamo", timeout=240)
    try:
        return running[size].run(f"follow({kind!r}, {plan!r})", timeout=30)
    except RankError as error:
        # messages may still be on their way: the next program gets new ranks
        running.pop(size).close()
        return error


def check_error(error, missing):
    """Check that the error names what that rank's backward did not reach."""
    assert isinstance(error, RankError), f"no error, although missing: {missing}"
    names = missing[error.rank]
    says = f"backward did not reach {names}; if that is meant, pass find_unused_param"
    assert error.kind == "raised" and names and says in str(error), error


def check(running, plan):
    right = outcome(running, "Definition", plan)
    assert not isinstance(right, RankError), right
    # in float32 a third of a sum is not the sum of thirds
    rough = "float32" in plan["blocks"] and plan["world_size"] == 3
    tolerance = 1e-5 if rough else 1e-12
    for kind in plan["kinds"]:
        ours = outcome(running, kind, plan)
        if isinstance(right[0], str):
            check_error(ours, right)
            return  # each of the other kinds would take new ranks
        assert not isinstance(ours, RankError), ours
        torch.testing.assert_close(ours, right, rtol=tolerance, atol=tolerance)


# What only this sees: uses together that nobody has thought of. Each of a hundred programs
# is run four times: half a minute.
@pytest.mark.parametrize("block", BLOCKS)
def test_random_programs_give_what_the_definition_says(running, block):
    @seed(f"{block} {SEED}")
    # without the phase that explains a failure, which takes minutes
    @settings(max_examples=PROGRAMS, phases=[Phase.generate, Phase.shrink])
    @given(st.fixed_dictionaries(PLAN))
    def try_one(plan):
        check(running, plan | {"blocks": [block, *plan["blocks"]]})

    try_one()
