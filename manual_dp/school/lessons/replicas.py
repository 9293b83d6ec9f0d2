"""The exercise of lesson 07: a forward on replicas that autograd can follow.

    forward      run an answer
    EXERCISES    with what is drawn, and what is right
"""

import torch
from torch import nn

from manual_dp.devices import try_devices
from manual_dp.school.exercise import Exercise, about, so_many
from manual_dp.school.tools.linear import draw_layer
from manual_dp.school.tools.plain import numbers, plainly, random_numbers, tensor


def forward(case, forward):
    """Call it on a layer that notes its calls; then send a gradient back."""
    calls, devices = [], try_devices(case["world_size"])

    class Noted(nn.Linear):
        def forward(self, X):
            calls.append((self is module, len(X)))  # this list, in replicas too
            return super().forward(X)

    module = Noted(3, 4, dtype=torch.float64, device=devices[0])
    module.load_state_dict(dict(zip(("weight", "bias"), map(tensor, case["layer"]))))
    outputs = forward(module, devices, tensor(case["X"]).to(devices[0]))
    got = {"outputs": plainly(outputs), **{
        name: sorted((rows for own, rows in calls if own == bare), reverse=True)
        for name, bare in (("bare", True), ("replicas", False))}}
    if isinstance(outputs, torch.Tensor) and outputs.requires_grad:
        (outputs * outputs).sum().backward()
    return {**got, "grad": numbers([p.grad for p in module.parameters()])}


def _draw(random):
    for world_size, rows in (4, 10), (4, 5), (3, 2), (2, 7), (1, 4):
        yield {"world_size": world_size, "layer": draw_layer(random),
               "X": random_numbers(random, rows, 3)}


def _judge(case, got):
    k, n = case["world_size"], len(case["X"])
    weight, bias = (tensor(lists).requires_grad_() for lists in case["layer"])
    right = tensor(case["X"]) @ weight.T + bias
    grads = torch.autograd.grad((right * right).sum(), (weight, bias))
    size, outputs = -(-n // k), got["outputs"]
    shards = [len(shard) for shard in right.split(size)]
    say = about(f"{so_many(n, 'row')}, {so_many(k, 'device')}, a linear layer")
    yield say("what forward returned", outputs, right, [
        ("return the outputs", outputs is None),
        ("these are parts: gather puts them together",
         numbers(list(right.split(size)))),
        ("these are the rows of one device only: gather all outputs",
         numbers(right[:size])),
        ("the outputs are not in the order of the rows",
         sorted(map(str, numbers(right))) == sorted(map(str, outputs or [])))])
    if len(shards) > 1 or got["bare"] != shards:  # on one device either will do
        yield say("rows in each call of the module itself", got["bare"], [], [
            ("the module itself was called: each shard goes through a replica, on the "
             "replica's device", True)])
        yield say("rows in each call of a replica", got["replicas"], shards, [
            ("a device without rows takes no part: leave out its shard, and make only "
             "as many replicas as there are shards", 0 in got["replicas"]),
            ("each replica works on its own shard, once", True)])
    yield say("the gradient in the module, of the sum of the squared outputs",
              got["grad"], list(grads), [
        ("no gradient comes back to the module: its replicas must be copies that "
         "autograd can follow, as those of replicate", got["grad"] == [None, None])])


EXERCISES = [Exercise("07/forward", 0, _draw, _judge)]
