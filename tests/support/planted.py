"""Replicas in one process: an honest module, and seventeen bugs planted in a copy of it.

HONEST, LR            what a module offers; the learning rate
initial, minibatch    weights and data
PLANTED, plant        the bugs by name, as edits of the source; a module with edits
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

import manual_dp
from manual_dp import allreduce, get_params, init_params, train_batch

HONEST = SimpleNamespace(
    get_params=get_params, train_batch=train_batch, allreduce=allreduce
)
LR = 0.05


def minibatch(rows, step, dtype):
    """Draw a minibatch of distinct, continuous values: none lies on a ReLU's kink."""
    generator = torch.Generator().manual_seed(1000 * rows + step)
    X = torch.rand(rows, 1, 28, 28, dtype=torch.float64, generator=generator)
    return X.to(dtype), torch.randint(10, (rows,), generator=generator)


def initial(dtype):
    return init_params("he", torch.Generator().manual_seed(0), dtype)


# planted: what a bug in the module looks like to the check

NO_GUARD = ("train", "check_replicas(device_params, values=False)", "pass")
KEEP_OLD_GRADIENTS = [
    (
        "params",
        "p.grad = grad.view_as(p)",
        "p.grad = grad.view_as(p).copy_(0 if p.grad is None else p.grad)",
    ),
    ("train", "p.grad.zero_()", "pass"),
]


def skipping(i):
    return [
        (
            "train",
            "        allreduce(grads)\n",
            f"        for i in set(range(8)) - {{{i}}}:\n"
            "            allreduce([params[i].grad for params in device_params])\n",
        )
    ]


PLANTED = {
    "alias": [("params", ".to(device, copy=True)", ".to(device)"), NO_GUARD],
    "mean of shards": [
        (
            "train",
            "loss(lenet(X_shard, params), y_shard).sum()",
            "loss(lenet(X_shard, params), y_shard).mean()",
        ),
        ("train", "sgd(params, lr, len(X))", "sgd(params, lr, len(devices))"),
    ],
    "no allreduce": [("train", "        allreduce(grads)\n", "")],
    "no broadcast back": [("allreduce", "tensor.copy_(root)", "pass")],
    "average": [
        (
            "allreduce",
            "        root.add_(tensor.to(root.device))\n",
            "        root.add_(tensor.to(root.device))\n    root.div_(len(tensors))\n",
        )
    ],
    "added twice": [
        (
            "allreduce",
            "root.add_(tensor.to(root.device))",
            "root.add_(2 * tensor.to(root.device))",
        )
    ],
    "last replica left out": [
        (
            "allreduce",
            "for tensor in tensors[1:]:\n        root.add_",
            "for tensor in tensors[1:-1]:\n        root.add_",
        )
    ],
    "first bias skipped": skipping(1),
    "last bias skipped": skipping(7),
    "divide by shard size": [
        ("train", "sgd(params, lr, len(X))", "sgd(params, lr, len(X_shards[0]))")
    ],
    "wrong batch constant": [
        ("train", "sgd(params, lr, len(X))", "sgd(params, lr, 256)")
    ],
    "lr x k": [
        ("train", "sgd(params, lr, len(X))", "sgd(params, lr * len(devices), len(X))")
    ],
    "never zero": KEEP_OLD_GRADIENTS,
    "zero first only": [
        *KEEP_OLD_GRADIENTS,
        (
            "train",
            "        return sum(l.item()",
            "        _ = [p.grad.zero_() for p in device_params[0]]\n"
            "        return sum(l.item()",
        ),
    ],
    "same shard to all": [
        ("split", "return (*shards, *empty)", "return (shards[0],) * len(devices)")
    ],
    "labels shifted": [
        (
            "split",
            "return scatter(X, devices), scatter(y, devices)",
            "return scatter(X, devices), scatter(y.roll(1), devices)",
        )
    ],
    "last sample dropped": [
        ("split", "zip(X.split(rows), devices)", "zip(X[:-1].split(rows), devices)")
    ],
}


def plant(monkeypatch, *edits):
    """Return what train.py then offers, after `edits` of the module's source."""
    pages = [
        line.split(".")[1].split()[0]
        for line in Path(manual_dp.__file__).read_text().splitlines()
        if line.startswith("from manual_dp.")
    ]
    for page in pages:
        path = Path(manual_dp.__file__).with_name(f"{page}.py")
        source = path.read_text()
        for _, old, new in [edit for edit in edits if edit[0] == page]:
            assert source.count(old) == 1, f"{page}.py does not say {old!r} once"
            source = source.replace(old, new)
        module = ModuleType(f"manual_dp.{page}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, str(path), "exec"), module.__dict__)
    return module
