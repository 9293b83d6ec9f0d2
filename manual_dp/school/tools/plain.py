"""Numbers as they travel between a check and a learner's code: plain nested lists.

    tensor     a new tensor, from lists
    numbers    lists, from tensors
    expect     refuse what is not a list of so many tensors
"""

import torch


def tensor(lists, dtype=torch.float64):
    """Return a new tensor with the numbers of `lists`."""
    return torch.tensor(lists, dtype=dtype)


def numbers(value):
    """Return a tensor, or lists of tensors, as nested lists of numbers."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, (list, tuple)):
        return [numbers(part) for part in value]
    return value


def expect(value, count, name):
    """Return `value`; raise TypeError unless it is a list of `count` tensors."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must return a list of tensors, "
                        f"got {type(value).__name__}")
    for i, part in enumerate(value):
        if not isinstance(part, torch.Tensor):
            raise TypeError(f"{name} returned a {type(part).__name__} at [{i}], "
                            "not a tensor")
    if len(value) != count:
        raise ValueError(f"{name} returned {len(value)} tensors, not {count}")
    return value
