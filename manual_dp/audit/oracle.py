"""What a single device would have done: gradients of forwards that are run once more.

    gradient    of the sum over a rank's rows of their loss, forward by forward
    on_rows     of the same loss, on rows of X in one forward: batch norm sees them all

The module is called with copies of its parameters and buffers, so its own stay as they
are, and no hook that averages gradients hears of it.
"""

import torch
from torch.func import functional_call


def gradient(watch, forwards, loss, count):
    """Return the gradient, a list with None where a parameter was not used.

    watch: a `Watch`, whose `before` are the weights to take. loss: of outputs and
    targets, a mean; here every forward's counts count(targets) times.
    """
    params = {name: p.clone().requires_grad_(q.requires_grad) for name, p, q in
              zip(watch.names, watch.before, watch.params)}
    wanted = [p for p in params.values() if p.requires_grad]
    for forward in forwards:
        y = forward.targets
        if not len(y):
            continue
        y_hat = _again(watch, params, forward)
        try:
            (count(y) * loss(y_hat, y)).backward(inputs=wanted)
        except Exception as error:
            raise RuntimeError(f"audit: the loss of the model's output cannot be had "
                               f"({error}); give the `loss` of (output, y)") from error
    return [p.grad for p in params.values()]


def on_rows(watch, rows, loss, count):
    """Return the gradient on rows of X that one forward takes together, or None.

    None where the forwards had other inputs than X, or other places' weights.
    """
    for first in watch.forwards[:1]:
        if len(first.args) == 1 and not first.kwargs and torch.is_tensor(first.args[0]):
            X = watch.X[rows].to(first.args[0].device)
            whole = first._replace(args=(X,), rows=rows, targets=watch.y[rows])
            return gradient(watch, [whole], loss, count)
    return None


def _again(watch, params, forward):
    modules = list(watch.module.modules())
    modes = [m.training for m in modules]
    buffers = {name: b.clone() for name, b in forward.buffers.items()}
    watch.quiet = True
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(forward.rng)
            for m, mode in zip(modules, forward.training):
                m.training = mode
            y_hat = functional_call(watch.module, (params, buffers), forward.args,
                                    forward.kwargs)
            watch.random |= not torch.equal(torch.get_rng_state(), forward.rng)
            return y_hat
    finally:
        watch.quiet = False
        for m, mode in zip(modules, modes):
            m.training = mode
