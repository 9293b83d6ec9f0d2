"""How the answers of problem set 6 are run: on ranks that have uneven shards.

    global_statistics, allreduce_sum, sync_batch_norm    one launch for each case
    accumulate                                           in this process
    accumulate_ddp                                       with torch's own DDP
"""

import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from manual_dp.ranks import RankError, run_ranks
from manual_dp.school.tools.optimizers import optimizer
from manual_dp.school.tools.plain import batches, expect, numbers, tensor
from manual_dp.school.tools.ranks import on_ranks, watched

# what torch imports when it is first used: two seconds in every job
IMPORTS = ["torch._dynamo"]
# what the notebook's first cell defines
START = dict(torch=torch, dist=dist, nn=nn, F=F, run_ranks=run_ranks,
             RankError=RankError, DDP=nn.parallel.DistributedDataParallel)
# and what else it imports, for trying things out
TRIED = ("check", "largest_difference", "trace")

SECONDS = 20  # that all ranks have


def global_statistics(case, global_statistics):
    """Ask each rank for the statistics of all rows; count what it sends."""
    def work():
        x = rows(case, case["shards"])[dist.get_rank()]
        with watched() as calls:
            mean, var = expect(global_statistics(x), 2, "global_statistics")
        return {"mean": mean, "var": var, "calls": len(calls)}
    return on_ranks(work, len(case["shards"]), SECONDS)


def allreduce_sum(case, AllReduceSum):
    """Sum over ranks, then go back; beside the sum the gradient has another way."""
    def work():
        x, t, weights = (tensor(case[name][dist.get_rank()])
                         for name in ("x", "t", "weights"))
        x.requires_grad_()
        t.requires_grad_()
        beside = t * 1  # made before the sum, so backward comes here after it
        y, = expect([AllReduceSum.apply(x)], 1, "AllReduceSum.apply")
        ((y + beside) * weights).sum().backward()
        return {"y": y, "x": x, "x.grad": x.grad, "t.grad": t.grad}
    return on_ranks(work, len(case["x"]), SECONDS)


def sync_batch_norm(case, SyncBatchNorm):
    """Train for some steps on ranks, then evaluate: there, and where no ranks are."""
    def work():
        norm, steps = layer(case, SyncBatchNorm), []
        for step in case["steps"]:
            x, factors = (rows(case, step[name])[dist.get_rank()]
                          for name in ("x", "factors"))
            norm.zero_grad()
            y = norm(x.requires_grad_())
            (y * factors).sum().backward()
            steps.append(numbers({
                "y": y, "x.grad": x.grad, "weight.grad": norm.weight.grad,
                "bias.grad": norm.bias.grad, "running_mean": norm.running_mean,
                "running_var": norm.running_var}))
        norm.train(False)
        with watched() as calls:
            norm(tensor(case["test"]))
        return {"steps": steps, "calls": len(calls),
                "on a graph": bool(norm.running_mean.requires_grad
                                   or norm.running_var.requires_grad)}
    ranks = on_ranks(work, len(case["steps"][0]["x"]), SECONDS)
    norm = layer(case, SyncBatchNorm, "running_mean", "running_var")
    norm.train(False)
    try:
        alone = norm(tensor(case["test"]))
    except (RuntimeError, ValueError) as error:  # no ranks to talk to
        alone = f"{type(error).__name__}: {error}"
    return {"ranks": ranks, "alone": alone,
            "kept": [norm.running_mean, norm.running_var]}


def layer(case, BatchNorm, *more):
    """Return a layer of the class BatchNorm with the numbers of the case."""
    norm = BatchNorm(case["features"], eps=case["eps"],
                     momentum=case["momentum"]).double()
    norm.load_state_dict({name: tensor(case[name])
                          for name in ("weight", "bias", *more)}, strict=False)
    return norm


def accumulate(case, accumulate):
    """Take steps; note when the model is called, with how many rows, and backward."""
    (model, optimizer), events, kept, steps = _linear(case), [], [], []
    graph = Graph()

    def note(module, args, y_hat):
        if y_hat.requires_grad:
            events.append(f"forward {len(y_hat)}")
            y_hat.register_hook(lambda gradient: events.append("backward"))
        elif len(y_hat) > most:  # a second look at the loss needs memory, too
            events.append(f"forward {len(y_hat)}")
    model.register_forward_pre_hook(lambda *_: kept.append(graph.tensors()))
    model.register_forward_hook(note)
    for step in case["steps"]:
        most = max(len(y) for _, y in step)
        with graph:
            result = accumulate(model, F.cross_entropy, batches(step), optimizer)
        steps.append({"weight": numbers(model.weight), "loss": numbers(result),
                      "events": list(events), "kept": max(kept, default=0)})
        events.clear()
        kept.clear()
    return steps


class Box:
    """Hold a tensor; autograd lets go of the box together with the graph."""

    def __init__(self, tensor):
        self.tensor = tensor

    def open(self):
        """Return the tensor."""
        return self.tensor


class Graph(saved_tensors_hooks):
    """Know which of the tensors that autograd has saved in a block are still there."""

    def __init__(self):
        self.saved = []
        super().__init__(self._pack, Box.open)

    def _pack(self, tensor):
        box = Box(tensor)
        self.saved.append(weakref.ref(box))
        return box

    def tensors(self):
        """Return how many there are."""
        return sum(box() is not None for box in self.saved)


def accumulate_ddp(case, accumulate_ddp):
    """Take steps on ranks with torch's DDP; count averages, and what is kept."""
    def work():
        kept = []

        def step(model, own, rows, number, optimizer):
            graph, held = Graph(), [0]
            watch = model.register_forward_pre_hook(
                lambda *_: held.append(graph.tensors()))
            with graph:
                accumulate_ddp(model, F.cross_entropy, own, rows, optimizer)
            watch.remove()
            kept.append(max(held))
        return [{**done, "kept": most} for done, most in
                zip(ddp_steps(case, step), kept)]
    return list(zip(*on_ranks(work, len(case["steps"][0]), SECONDS)))


def ddp_steps(case, step, layer=None):
    """Take the steps of a case on this rank; return weights and messages after each.

    step(model, microbatches, rows, number, optimizer) takes one; `model` is torch's DDP
    around a linear layer, `rows` are those of all ranks. layer: a function of the case
    that makes the layer, with old gradients.
    """
    import torch._dynamo  # noqa: F401  (the first DDP needs it; the grader has it)
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    module = (layer or _layer)(case)
    rule = optimizer(case["optimizer"], module.parameters(), case["lr"])
    averaged, steps = [], []
    model = nn.parallel.DistributedDataParallel(module)

    def note(state, bucket):
        averaged.append(bucket.index())
        return allreduce_hook(None, bucket)
    model.register_comm_hook(None, note)
    for number, pieces in enumerate(case["steps"]):
        rows = sum(len(y) for rank in pieces for _, y in rank)
        with watched() as calls:
            step(model, batches(pieces[dist.get_rank()]), rows, number, rule)
        steps.append({"weight": numbers(module.weight), "averaged": len(averaged),
                      "others": len(calls) - len(averaged)})
        averaged.clear()
    return steps


def _linear(case):
    """Return a model that has a gradient already, and its optimizer."""
    model = _layer(case)
    return model, optimizer(case["optimizer"], model.parameters(), case["lr"])


def _layer(case):
    model = nn.Linear(3, 4, bias=False, dtype=torch.float64)
    model.load_state_dict({"weight": tensor(case["weight"])})
    model.weight.grad = tensor(case["stale"])
    return model


def rows(case, shards):
    """Return the rows of each rank; there may be none."""
    return [tensor(shard).reshape(-1, case["features"]) for shard in shards]
