"""Wrong answers to the exercises of lessons in memory.py.

<<NAME: code>> is right code in its place. Each entry of the dict below an answer puts a
mistake in place of some; its key is how the message to the learner begins.
"""

WRONG = {
    "memory/recompute": (
        """
def recompute(layers, X, y, every):
    starts = <<STARTS: range(0, len(layers), every)>>
    inputs, more = [], []
    with <<OFF: torch.no_grad()>>:
        for i in starts:
            <<KEEP: inputs.append(X)>>
            <<FORWARD: X = layers[i : i + every](X)>>
    X = <<LAST: X.detach().requires_grad_()>>
    F.cross_entropy(X, <<LABELS: y>>).backward()
    grad = X.grad
    <<BEFORE: pass>>
    for i in <<ORDER: reversed(starts)>>:
        x = <<INPUT: inputs.pop().detach().requires_grad_()>>
        <<BACKWARD: layers[i : i + every](x).backward(grad)>>
        grad = x.grad
""",
        {
            "a segment's output is no single": {
                "BACKWARD": "layers[i : i + every](x).backward()"
            },
            "a segment's output is no single number": {
                "INPUT": "inputs.pop().detach()"
            },
            "nothing here asks": {"LAST": "X.detach()"},
            "no weight has a gradient": {"ORDER": "[]"},
            "the last layers never ran": {
                "STARTS": "range(0, len(layers) - every + 1, every)"
            },
            "backward() adds to what is": {"BEFORE": "layers.zero_grad()"},
            "the last segment is right": {
                "BACKWARD": "layers[i : i + every](x).sum()."
                "backward() if more else layers[i : i + every](x).backward(grad); "
                "more.append(i)"
            },
            "the last segment is right, those": {
                "BACKWARD": "layers[i : i + every](x).backward(X.grad)"
            },
            "begin with the last segment": {
                "ORDER": "starts",
                "INPUT": "inputs.pop(0).detach().requires_grad_()",
            },
            "cross_entropy takes the mean": {"LABELS": "y, reduction='sum'"},
            "run each segment from its own": {
                "INPUT": "inputs.pop(0).detach().requires_grad_()"
            },
            "requires_grad was switched": {"INPUT": "inputs.pop().requires_grad_()"},
            "twice is enough": {
                "KEEP": "inputs = inputs or [X]",
                "INPUT": "torch.no_grad()(layers[:i])(inputs[0])"
                ".detach().requires_grad_()",
            },
            "gradients were on": {"OFF": "torch.enable_grad()"},
            "keep the input of each segment": {
                "FORWARD": "for layer in layers[i : i + every]: "
                "more.append(X := layer(X))",
            },
            "all segments ran again": {
                "BEFORE": "again = [x.detach().requires_grad_() for x in inputs]; "
                "more = [layers[i : i + every](x) for i, x in zip(starts, again)]",
                "INPUT": "again[i // every]",
                "BACKWARD": "more[i // every].backward(grad)",
            },
        },
    ),
    "sixteen_bits/scaler": (
        """
class MyScaler:
    def __init__(self, scale, every):
        self.factor, self.every, self.good = scale, every, 0

    def scale(self, loss):
        return <<LOSS: loss * self.factor>>

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]
                 if p.grad is not None]
        for grad in grads:
            <<DIVIDE: grad /= self.factor>>
        if <<FINE: all(grad.isfinite().all() for grad in grads)>>:
            <<STEP: optimizer.step()>>
            self.good += 1
        else:
            <<SKIP: pass>>
            self.factor /= <<HALF: 2>>
            <<ANEW: self.good = 0>>
        if <<GROW: self.good == self.every>>:
            self.factor, self.good = 2 * self.factor, <<COUNT: 0>>
""",
        {
            "scale(loss) returns": {"LOSS": "loss"},
            "a skipped step halves": {"HALF": "1"},
            "after `every` good": {"GROW": "False"},
            "count anew": {"ANEW": "pass"},
            "skip, if any": {"FINE": "not any(grad.isinf().any() for grad in grads)"},
            "skip, if any gradient": {"FINE": "grads[-1].isfinite().all()"},
            "weight decay moves": {
                "SKIP": "[grad.zero_() for grad in grads]; optimizer.step()"
            },
            "divide the gradients": {"DIVIDE": "pass"},
        },
    ),
    "keep_only_a_part/step": (
        """
from manual_dp.ranks.collectives import allgather, reduce_scatter, ring_allreduce

def step(weights, grads, shard, optimizer):
    rank, n = dist.get_rank(), dist.get_world_size()
    <<ADD: reduce_scatter(grads)>>
    <<MEAN: grads[rank] /= n>>
    shard.grad = grads[<<CHUNK: rank>>]
    <<UPDATE: optimizer.step()>>
    <<GATHER: allgather(weights)>>
""",
        {
            "all ranks must call": {"GATHER": "rank and allgather(weights)"},
            "a sum is not a mean": {"MEAN": "pass"},
            "all are zero": {"UPDATE": "pass"},
            "each rank's own chunk": {
                "UPDATE": "allgather(weights)",
                "GATHER": "optimizer.step()",
            },
            "each rank uses its own": {"ADD": "pass"},
            "rank r has": {"CHUNK": "0"},
            "only rank 0's chunk": {"UPDATE": "rank or optimizer.step()"},
            "these are": {"UPDATE": "shard.data -= 0.5 * shard.grad"},
            "a copy of the chunk": {"MEAN": "grads[rank] = grads[rank] / n"},
            "an all-reduce gives every rank": {
                "ADD": "[dist.all_reduce(grad) for grad in grads]"
            },
            "an all-reduce gives every rank all sums": {
                "ADD": "[ring_allreduce(grad) for grad in grads]"
            },
        },
    ),
}
