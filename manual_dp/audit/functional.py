"""Step out of torch.func: a watch looks at a model in the midst of a forward.

    homes     where the parameters of modules are kept
    outside   while a block runs, no transform is at work, and parameters are at home
    asked     whether a gradient goes to the caller of torch.autograd.grad

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


def asked(p):
    """Return whether torch.autograd.grad asks for p's gradient: it adds up nothing.

    To be called in a hook on p. A layer that is computed once more in backward asks
    so, and hands on to its parameters what it gets: they hear that again.
    """
    try:
        torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(p)[0])
    except RuntimeError:  # for a leaf, only of a backward it is told
        return True
    return False
