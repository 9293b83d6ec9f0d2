"""How the answers of problem set 1 are run: training by hand, on plain tensors."""

import torch

from manual_dp.devices import try_devices
from manual_dp.lenet import init_params, lenet, loss
from manual_dp.school.tools.devices import CPU, META, homes
from manual_dp.school.tools.images import images, rows_seen, together, watched
from manual_dp.school.tools.plain import (
    expect,
    forms,
    memory,
    numbers,
    params_of,
    tensor,
)

# what the notebook's first cell defines
START = dict(torch=torch, try_devices=try_devices, init_params=init_params,
             lenet=lenet, loss=loss)
# and what else it imports, for trying things out
# what torch imports when images go through a network that has no numbers: two seconds
IMPORTS = ["torch._dynamo"]
TRIED = ("check", "load_data")


def get_params(case, get_params):
    """Make replicas, then write into each: who shares memory with whom shows."""
    source = params_of(case)
    places = memory(source)
    replicas = [expect(get_params(source, device), len(source), "get_params")
                for device in try_devices(case["world_size"])]
    made, ready = numbers(replicas), [[_ready(p) for p in rank] for rank in replicas]
    for rank, params in enumerate(replicas):
        for p in params:
            p.detach().add_(10 ** (rank + 1))
    return {"made": made, "ready": ready, "written": replicas, "source": source,
            "source's gradients": [p.grad for p in source],
            "source stays": [p.data_ptr() == place.data_ptr()
                             for p, place in zip(source, places)],
            "source wants gradients": [p.requires_grad for p in source],
            "homes": homes(get_params, params_of(case), META)}


def _ready(p):
    if not p.is_leaf:
        return "no leaf"
    if not p.requires_grad:
        return "wants no gradient"
    return "yes" if p.grad is None else "has a gradient already"


def split_batch(case, split_batch):
    """Split X and y; where they do not fit, return which lengths were refused."""
    X, y = tensor(case["X"]), tensor(case["y"], torch.int64)
    devices = try_devices(case["world_size"])
    if len(X) != len(y):
        rows = min(len(X), len(y))
        return {"refused": [_refused(split_batch, *both, devices) for both in
                            ((X, y[:rows]), (X[:rows], torch.arange(len(X))))],
                "homes": homes(split_batch, X[:rows], y[:rows], [META, CPU, META])}
    result = split_batch(X, y, devices)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError("split_batch must return two lists: X_shards, y_shards")
    X_shards, y_shards = result
    return {"X": X_shards, "y": y_shards,
            "forms": [forms(X_shards), forms(y_shards)]}


def _refused(split_batch, *args):
    try:
        split_batch(*args)
    except ValueError:
        return True
    except AssertionError:
        return "an AssertionError"
    return False


def allreduce(case, allreduce):
    """Call allreduce; keep hold of the tensors and look at them afterwards."""
    # rows do not lie one behind the other
    kept = [tensor(lists).t().contiguous().t() for lists in case["tensors"]]
    handed, places = list(kept), memory(kept)
    returned = allreduce(handed)
    return {"tensors": kept, "list": handed, "memory": places,
            "returned": returned if isinstance(returned, (list, tuple)) else []}


def sgd(case, sgd):
    """Take a step on parameters that hold gradients."""
    params = [tensor(p).requires_grad_() for p in case["params"]]
    for p, grad in zip(params, case["grads"]):
        p.grad = tensor(grad)
    places = memory(params)
    sgd(params, case["lr"], case["batch_size"])
    left = sum(float(p.grad.abs().sum()) for p in params if p.grad is not None)
    return {"params": params, "memory": places, "gradients left": left,
            "want gradients": [p.requires_grad for p in params]}


def train_batch(case, train_batch):
    """Take two steps; return some weights of every replica after each, and the loss."""
    devices = try_devices(case["world_size"])
    params = network(case)
    replicas = [[p.to(device, copy=True).requires_grad_() for p in params]
                for device in devices]
    for p in sum(replicas, []) if "stale" in case else []:
        p.grad = torch.full_like(p, case["stale"])  # as an interrupted step leaves it
    steps = []
    for seed, rows in case["batches"]:
        X, y = images(seed, rows)
        with watched() as calls:
            mean_loss = train_batch(X, y, replicas, devices, case["lr"])
        # a second look at the loss, without gradients, may be anybody's
        calls = [call for call in calls if call.gradients]
        seen = [sorted(set(rows)) for rows in rows_seen(calls, replicas, X)]
        steps.append({"loss": numbers(mean_loss), "seen": seen,
                      "weights": [entries(r, case["places"]) for r in replicas]})

    def step(*args):
        train_batch(*args, case["lr"])
    return {"steps": steps, "together": together(step, params)}


def network(case):
    """Draw the weights that a case starts from."""
    return init_params("he", torch.Generator().manual_seed(case["seed"]), torch.float64)


def entries(params, places):
    """Return the numbers of each parameter that `places` names, one list each."""
    return [p.detach().flatten()[where].tolist() for p, where in zip(params, places)]
