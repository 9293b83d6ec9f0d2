"""Mixed precision on a device: float16 and a scaler on a GPU, bfloat16 on a CPU.

    losses    a short training: the losses, the scale, the types of weight and score
    skip      what the scaler does with a step whose gradient is not finite
    clip      the length of a gradient that was clipped, in both orders
"""

import torch
from torch import nn

from course.lab.trainer.methods import Mixed, short_type
from course.lab.trainer.step import make_scaler, train_step
from manual_dp.lenet import init_params
from manual_dp.models.lenet import LeNet

SCALE = 2.0**10  # where the two small experiments begin


def losses(device, steps=20, rows=64, lr=0.05, max_norm=1.0):
    """Train LeNet in mixed precision on one minibatch; return what is seen, a dict.

    "losses": the mean loss of each step. "skipped": steps that the scaler left out.
    "scale": its scale in the end. "weights": their type; "products": that of a
    matrix product in the network.
    """
    generator = torch.Generator().manual_seed(0)
    net = LeNet(init_params("he", generator)).to(device)
    X = torch.rand(rows, 1, 28, 28, generator=generator).to(device)
    y = torch.randint(10, (rows,), generator=generator).to(device)
    dtype = short_type(device)
    model = Mixed(net, dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    scaler = make_scaler(dtype, device)
    seen, scales = [], [scaler.get_scale()]
    for _ in range(steps):
        total = train_step(model, [(X, y)], rows, optimizer, scaler, max_norm)
        seen.append(total.item() / rows)
        scales.append(scaler.get_scale())
    W = net.params[6]
    with torch.autocast(device.type, dtype=dtype):
        product = W.T @ W
    return {"losses": seen, "scale": scales[-1],
            "skipped": sum(b < a for a, b in zip(scales, scales[1:])),
            "weights": _name(W),
            "products": _name(product)}


def skip(device):
    """Give the scaler a gradient that is inf; return {"moved", "scale"}.

    moved: whether the weight has changed. scale: the new scale divided by the old.
    """
    w = nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return {"moved": bool((w != 1).any()), "scale": scaler.get_scale() / SCALE}


def clip(device, max_norm=1.0):
    """Clip a gradient of length 5; return its length in the end, for both orders.

    "unscale, clip" is right: the length is max_norm. "clip, unscale" divides what was
    already clipped by the scale.
    """
    return {order: _length(device, order, max_norm)
            for order in ("unscale, clip", "clip, unscale")}


def _length(device, order, max_norm):
    w = nn.Parameter(torch.zeros(2, device=device))
    optimizer = torch.optim.SGD([w], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    scaler.scale(w @ torch.tensor([3.0, 4.0], device=device)).backward()
    for what in order.split(", "):
        if what == "clip":
            nn.utils.clip_grad_norm_([w], max_norm)
        else:
            scaler.unscale_(optimizer)
    return w.grad.norm().item()


def _name(tensor):
    return str(tensor.dtype).removeprefix("torch.")
