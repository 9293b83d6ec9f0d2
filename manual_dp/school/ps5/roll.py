"""How the answers of problem set 5 that need ranks are run, and watched.

    Roll       in a rank: no collective begins before all ranks have come to it
    linear     a linear model with given numbers
    batches    tensors, from lists
    clues      what a learner's clue says for every k of a case

A collective that some rank never calls would hang. Here every rank first signs for it
in the group's store, and looks who else has signed: a missing rank is a number.
"""

import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from manual_dp.school.tools.plain import numbers, tensor

COLLECTIVES = ["all_reduce", "reduce", "broadcast", "barrier", "all_gather", "gather",
               "scatter", "reduce_scatter", "all_gather_into_tensor", "all_to_all",
               "reduce_scatter_tensor", "all_gather_object", "gather_object",
               "broadcast_object_list", "scatter_object_list", "all_to_all_single"]
PATIENCE, LIMIT = 15, 40  # seconds: for ranks that never come; for a whole launch


class Roll:
    """Watch the collectives of this rank's process, DDP's too, until it ends.

    sizes: how many numbers each all-reduce was handed. absent: how many ranks had not
    come to a collective when another was done with everything, or patience ran out.
    """

    def __init__(self):
        self.store = dist.distributed_c10d._get_default_store()
        self.scope, self.sizes, self.absent = 0, [], 0
        for name in COLLECTIVES:
            setattr(dist, name, partial(self._collective, name, getattr(dist, name)))
        init = DDP.__init__

        def watched(model, *args, **kwargs):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            init(model, *args, **kwargs)
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        DDP.__init__ = watched

    def call(self, function, *args):
        """Return `function(*args)`; or None, if it waited for an absent rank."""
        self.scope += 1
        self.calls, self.sizes, self.absent = 0, [], 0
        try:
            return function(*args)
        except Exception:
            if not self.absent:
                raise
        finally:
            self.store.add(f"{self.scope} done", 1)

    def _collective(self, name, real, *args, **kwargs):
        if self.scope:  # not before the first call
            self._sign(name)
        if name == "all_reduce":
            self.sizes.append((args[0] if args else kwargs["tensor"]).numel())
        return real(*args, **kwargs)

    def _sign(self, name):
        self.calls += 1
        end, ranks = time.monotonic() + PATIENCE, dist.get_world_size()
        anywhere = f"{self.scope} {self.calls}"  # some may be in another collective
        here = f"{anywhere} {name}"
        self.store.add(here, 1)
        self.store.add(anywhere, 1)
        while True:
            over = (self.store.add(f"{self.scope} done", 0) or time.monotonic() > end
                    or self.store.add(anywhere, 0) == ranks)
            absent = ranks - self.store.add(here, 0)
            if not absent:
                return
            if over:
                self.absent = absent
                raise RuntimeError(f"{absent} ranks do not call {name}")
            time.sleep(0.001)


def on_ranks(case, work):
    """Return what `work(problem, rank)` returns, [rank][problem], and who was absent.

    Every problem's result is a dict; it gets the entries "absent" and "sent".
    """
    from manual_dp.ranks import run_ranks
    results = run_ranks(partial(_rank, work, case["problems"]), case["world_size"],
                        timeout=LIMIT)
    if "blank" in results:
        raise NotImplementedError
    return results


def _rank(work, problems):
    roll, results = Roll(), []
    for problem in problems:
        try:
            result = roll.call(work, problem, dist.get_rank())
        except NotImplementedError:
            return "blank"
        results.append({**(result or {}), "absent": roll.absent,
                        "sent": sum(roll.sizes)})
    return results


def hook(case, clue_3, repaired_3):
    """Look at the gradients after a backward, and after a second one on top."""
    said = clues(case, clue_3)

    def work(problem, rank):
        model = nn.Sequential(linear(problem["first"]), nn.Tanh(),
                              linear(problem["second"]))
        model[0].bias.requires_grad_(False)
        repaired_3(model)
        grads = []
        for X, y in batches(problem["batches"][rank]):
            F.cross_entropy(model(X), y).backward()
            grads.append([numbers(p.grad) for p in model.parameters()])
        return {"grads": grads, "params": numbers(list(model.parameters()))}
    return {"clues": said, "ranks": on_ranks(case, work)}


def double_averaging(case, clue_7, repaired_7):
    """Train a model that each rank has drawn for itself."""
    said = clues(case, clue_7)

    def work(problem, rank):
        model = linear(problem["params"][rank])
        repaired_7(model, batches(problem["batches"][rank]), problem["lr"])
        return {"params": numbers(list(model.parameters()))}
    return {"clues": said, "ranks": on_ranks(case, work)}


def no_sync(case, clue_8, repaired_8):
    """Take steps of several microbatches each with a model in DDP."""
    said = clues(case, clue_8)

    def work(problem, rank):
        model = DDP(linear(problem["params"]))
        optimizer = torch.optim.SGD(model.parameters(), problem["lr"])
        rows = rows_at_once(model)
        for microbatches in problem["steps"][rank]:
            repaired_8(model, optimizer, batches(microbatches))
        return {"params": numbers(list(model.parameters())), "rows": rows}
    return {"clues": said, "ranks": on_ranks(case, work)}


def rank_zero_only(case, clue_9, repaired_9):
    """Ask every rank for the accuracy; keep what each of them returns."""
    said = clues(case, clue_9)

    def work(problem, rank):
        X, y = tensor(problem["X"]), tensor(problem["y"], torch.int64)
        sizes = problem["sizes"]
        accuracy = repaired_9(linear(problem["params"]), X.split(sizes)[rank],
                              y.split(sizes)[rank])
        return {"accuracy": numbers(accuracy)}
    return {"clues": said, "ranks": on_ranks(case, work)}


def linear(params):
    """Return a linear model whose weight and bias hold the numbers of `params`."""
    weight, bias = map(tensor, params)
    model = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    model.load_state_dict({"weight": weight, "bias": bias})
    return model


def batches(pairs):
    """Turn pairs of lists into pairs of tensors: rows and labels."""
    return [(tensor(X), tensor(y, torch.int64)) for X, y in pairs]


def rows_at_once(model):
    """Return a list; each forward of `model` from now on adds how many rows it has."""
    rows = []
    model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    return rows


def clues(case, clue):
    """Return [row, number] for each k of the case."""
    said = []
    for k in case["k"]:
        answer = clue(k)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise TypeError(f"a clue is two things, row and number; got {answer!r}")
        said.append(numbers(list(answer)))
    return said
