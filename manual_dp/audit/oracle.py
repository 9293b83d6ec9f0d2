"""What a single device would have done: gradients of forwards that are run once more.

    gradient    of the sum over a rank's rows of their loss, forward by forward

The module is called with copies of its parameters and buffers, so its own stay as they
are, and no hook that averages gradients hears of it.
"""

import torch
from torch.func import functional_call


def gradient(watch, forwards, loss, terms):
    """Return the gradient, a list with None where a parameter was not used.

    watch: a `Watch`, whose `before` are the weights to take. loss: of outputs and
    targets, a mean; here every forward's counts terms(forward) times.
    """
    params = {name: p.clone().requires_grad_(q.requires_grad) for name, p, q in
              zip(watch.names, watch.before, watch.params)}
    wanted = [p for p in params.values() if p.requires_grad]
    for forward in forwards:
        if not forward.rows:
            continue
        try:
            y_hat = _again(watch, params, forward)
            (terms(forward) * loss(y_hat, forward.targets)).backward(inputs=wanted)
        except Exception as error:
            raise RuntimeError(f"audit: the loss of the model's output cannot be had "
                               f"({error}); give the `loss` of (output, y)") from error
    return [p.grad for p in params.values()]


def _again(watch, params, forward):
    module = watch.modules[forward.model]
    modules = list(module.modules())
    modes = [m.training for m in modules]
    buffers = {name: b.clone() for name, b in forward.buffers.items()}
    watch.quiet = True
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(forward.rng)
            for m, mode in zip(modules, forward.training):
                m.training = mode
            return functional_call(module, (params, buffers), forward.args,
                                   forward.kwargs)
    finally:
        watch.quiet = False
        for m, mode in zip(modules, modes):
            m.training = mode
