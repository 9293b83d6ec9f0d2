"""An optimizer that was handed a closure: forward and backward run inside its step.

    at_update   call a function when the gradients of a step are there

Lightning trains so. torch's optimizers call the closure once, before they change a
weight: then such a step is like any other. LBFGS calls it as often as it needs to, and
so may an optimizer of one's own: their steps are noted from the outside.
"""

from torch.optim import LBFGS


def at_update(update, optimizer, args, kwargs):
    """Call update(optimizer) now, or at the end of the closure that `step` was handed.

    A hook before `step`: returns what it shall be called with, or None for the same.
    """
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    torchs = type(optimizer).__module__.startswith("torch.optim.")
    if closure is None or not torchs or isinstance(optimizer, LBFGS):
        update(optimizer)
        return None

    def then_update():
        loss = closure()
        update(optimizer)
        return loss
    rest = {name: value for name, value in kwargs.items() if name != "closure"}
    return (args[0], then_update, *args[2:]), rest
