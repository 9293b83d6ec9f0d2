"""Numbers as they travel between a check and a learner's code: plain nested lists.

    random_numbers   distinct, continuous, as nested lists
    tensor           a new tensor, from lists
    batches          pairs of tensors, from pairs of lists
    params_of        a case's parameters, in the middle of training or not
    numbers          lists, from tensors
    plainly          the same of what may be anything: only what JSON can hold
    listed           a list, or one thing as a list
    expect           refuse what is not a list of so many tensors
    forms            dtype and shape of each tensor of a list
    memory           another look at each tensor's memory
"""

from decimal import Decimal
from numbers import Integral, Real

import torch


def random_numbers(random, *shape):
    """Draw nested lists of `shape`: float64 numbers from -1 to 1, no two the same."""
    if not shape:
        return random.uniform(-1, 1)
    return [random_numbers(random, *shape[1:]) for _ in range(shape[0])]


def tensor(lists, dtype=torch.float64):
    """Return a new tensor with the numbers of `lists`."""
    return torch.tensor(lists, dtype=dtype)


def batches(pairs):
    """Turn pairs of lists into pairs of tensors: rows and labels."""
    return [(tensor(X), tensor(y, torch.int64)) for X, y in pairs]


def params_of(case):
    """Return new parameters; if they are being trained, with gradients that are 1."""
    params = [tensor(p).requires_grad_(case["trained"]) for p in case["params"]]
    for p in params:
        p.grad = torch.ones_like(p) if case["trained"] else None
    return params


def numbers(value):
    """Return a tensor, or lists or a dict of tensors, as nested lists of numbers.

    Numbers of other kinds (numpy's, Fraction, Decimal) become Python's own.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, (list, tuple)):
        return [numbers(part) for part in value]
    if isinstance(value, dict):
        return {str(key): numbers(part) for key, part in value.items()}
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(type(value), "tolist"):  # numpy's arrays and numbers, without numpy
        return numbers(value.tolist())
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, (Real, Decimal)) else value


def plainly(value):
    """Return what `numbers` does; what JSON cannot hold is told by its type."""
    value = numbers(value)
    if isinstance(value, list):
        return [plainly(part) for part in value]
    if isinstance(value, dict):
        return {key: plainly(part) for key, part in value.items()}
    known = value is None or isinstance(value, (bool, int, float, str))
    return value if known else f"a {type(value).__name__}"


def listed(value):
    """Return `value` if it is a list or a tuple, else a list that holds it."""
    return value if isinstance(value, (list, tuple)) else [value]


def expect(value, count, name):
    """Return `value`; raise TypeError unless it is a list of `count` tensors."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must return a list of tensors, "
                        f"got {type(value).__name__}")
    for i, part in enumerate(value):
        if type(part) not in (torch.Tensor, torch.nn.Parameter):  # others can lie
            raise TypeError(f"{name} returned a {type(part).__name__} at [{i}], "
                            "not a tensor")
    if len(value) != count:
        raise ValueError(f"{name} returned {len(value)} tensors, not {count}")
    return value


def forms(tensors):
    """Return dtype and shape of each tensor, in words; of what is none, its type."""
    return [f"{part.dtype} of shape {tuple(part.shape)}"
            if isinstance(part, torch.Tensor) else f"a {type(part).__name__}"
            for part in tensors]


def memory(tensors):
    """Return another tensor for the memory of each: p.data = ... does not reach it."""
    return [tensor.detach() for tensor in tensors]
