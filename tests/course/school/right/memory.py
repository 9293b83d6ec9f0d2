"""Right answers to the exercises of lessons in memory.py."""

from tests.course.school.right import changed

RIGHT = {
    "memory/recompute": {
        "torch's own checkpoint": """
from torch.utils.checkpoint import checkpoint
def recompute(layers, X, y, every):
    for i in range(0, len(layers), every):
        X = checkpoint(layers[i : i + every], X, use_reentrant=False)
    F.cross_entropy(X, y).backward()
""",
        "the last segment runs once, with the loss": """
def recompute(layers, X, y, every):
    segments = [layers[i : i + every] for i in range(0, len(layers), every)]
    inputs = [X.clone()]
    for segment in segments[:-1]:
        with torch.no_grad():
            inputs += [segment(inputs[-1])]
    grad = None
    while segments:
        x = inputs.pop().requires_grad_(True)
        out = segments.pop()(x)
        if grad is None:
            F.cross_entropy(out, y).backward()
        else:
            torch.autograd.backward([out], [grad])
        grad = x.grad
    return grad
""",
        "a segment within a segment": """
def recompute(layers, X, y, every):
    def through(X, i):
        with torch.no_grad():
            out = layers[i : i + every](X)
        if i + every < len(layers):
            grad = through(out, i + every)
        else:
            out.requires_grad_()
            F.cross_entropy(out, y).backward()
            grad = out.grad
        X = X.detach().clone().requires_grad_()
        layers[i : i + every](X).backward(grad)
        return X.grad
    through(X, 0)
""",
        "a Function of autograd": """
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, X):
        ctx.segment = segment
        ctx.save_for_backward(X)
        return segment(X)
    @staticmethod
    def backward(ctx, grad):
        X = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.segment(X)
        out.backward(grad)
        return None, X.grad
def recompute(layers, X, y, every):
    X = X.detach().requires_grad_()
    for segment in [layers[i : i + every] for i in range(0, len(layers), every)]:
        X = Again.apply(segment, X)
    loss = F.cross_entropy(X, y)
    loss.backward()
    return loss.item()
""",
        "autograd.grad, added by hand": changed(
            "memory/recompute",
            BACKWARD="ps = list(layers[i : i + every].parameters()); "
            "*gs, g = torch.autograd.grad(layers[i : i + every](x), ps + [x], grad)\n"
            "        for p, new in zip(ps, gs): "
            "p.grad = new if p.grad is None else p.grad + new\n"
            "        x.grad = g",
        ),
    },
    "sixteen_bits/scaler": {
        "as torch does it": """
class MyScaler:
    def __init__(self, scale, every):
        self.real = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=every)
        self.scale = self.real.scale
    def step(self, optimizer):
        self.real.step(optimizer)
        self.real.update()
""",
        "one long vector": changed(
            "sixteen_bits/scaler",
            DIVIDE="grad.mul_(1 / self.factor)",
            FINE="torch.cat([grad.flatten() for grad in grads]).isfinite().all()",
        ),
    },
    "keep_only_a_part/step": {
        "divided first, and nothing is kept": changed(
            "keep_only_a_part/step",
            MEAN="grads[rank].div_(n)",
            ADD="[grad.div_(n) for grad in grads]; reduce_scatter(grads); grads[rank] *= n",
            GATHER="shard.grad = None; allgather(weights)",
        ),
        "torch's own gather": changed(
            "keep_only_a_part/step",
            GATHER="dist.all_gather(weights, weights[rank].clone())",
        ),
    },
}
