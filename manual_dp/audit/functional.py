"""Step out of torch.func: a watch looks at a model in the midst of a forward.

    homes     where the parameters of modules are kept
    outside   while a block runs, no transform is at work, and parameters are at home

torch.func.functional_call puts other tensors in the place of a module's parameters, and
under grad or vmap whatever is made of a tensor is one of theirs.
"""

from contextlib import contextmanager

import torch
from torch import nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack


def homes(modules):
    """Return (dict, name, parameter) for each place of a parameter in the modules."""
    return [(part._parameters, name, p) for module in modules
            for part in module.modules() for name, p in part._parameters.items()]


@contextmanager
def outside(homes):
    """Leave torch.func while the block runs."""
    away = [(home, name, p, home[name]) for home, name, p in homes
            if torch.is_tensor(home.get(name))
            and not isinstance(home[name], nn.Parameter)]
    with temporarily_clear_interpreter_stack():
        for home, name, p, _ in away:
            home[name] = p
        try:
            yield
        finally:
            for home, name, _, other in away:
                home[name] = other
