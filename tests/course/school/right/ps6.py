"""Right answers to problem set 6: {exercise: {style: cell}}."""

from tests.course.school.right import changed

RIGHT = {
    "ps6/global_statistics": {
        "gathered, then joined": """
def global_statistics(x):
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, x)
    rows = torch.cat(shards)
    return rows.mean(0), rows.var(0, unbiased=False)
""",
        "by einsum, in a helper, tried in its cell": changed(
            "ps6/global_statistics",
            ("x.sum(0)", 'torch.einsum("nf->f", x)'),
            REDUCE="total = summed(total)",
            VARIANCE="torch.addcmul(squares / count, mean, mean, value=-1)",
        )
        + """
def summed(t):
    dist.all_reduce(t, op=dist.ReduceOp.SUM)
    return t

print(run_ranks(lambda: global_statistics(torch.ones(dist.get_rank() + 1, 2)), 2)[0])
check("ps6/global_statistics", global_statistics)
global_statistics?
""",
    },
    "ps6/two_round_statistics": {
        "own statistics, gathered and put together in one round": """
def two_round_statistics(x):
    own = len(x), x.mean(0), ((x - x.mean(0)) ** 2).sum(0)
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    ranks = [rank for rank in ranks if rank[0]]
    n = sum(count for count, _, _ in ranks)
    mean = sum(count * own for count, own, _ in ranks) / n
    return mean, sum(s + count * (own - mean) ** 2 for count, own, s in ranks) / n
""",
        "asynchronous, by torch's own all-reduce with gradients": changed(
            "ps6/two_round_statistics",
            ("dist.all_reduce(first)", "dist.all_reduce(first, async_op=True).wait()"),
            (
                "dist.all_reduce(squares)",
                "squares = torch.distributed.nn.functional.all_reduce(squares)",
            ),
            ("def", "import torch.distributed.nn\ndef"),
        ),
    },
    "ps6/allreduce_sum": {
        "one helper for both ways": """
def summed(t):
    t = t.detach().clone().contiguous()
    dist.all_reduce(t)
    return t

class AllReduceSum(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: summed(x))
    backward = staticmethod(lambda ctx, gradient: summed(gradient))
""",
        "gathered, and backward by itself": changed(
            "ps6/allreduce_sum",
            COPY="[torch.empty_like(x) for _ in range(dist.get_world_size())]",
            FORWARD="dist.all_gather(total, x.contiguous()); total = sum(total)",
            OTHER="AllReduceSum.apply(gradient)",
            BACKWARD="pass",
        )
        + "display(AllReduceSum)",
    },
    "ps6/sync_batch_norm": {
        "squares around the mean": changed(
            "ps6/sync_batch_norm",
            VARIANCE="AllReduceSum.apply((x - mean).pow(2).sum(0)) / count",
            RESULT="torch.addcmul(self.bias, (x - mean) * torch.rsqrt(var + self.eps), "
            "self.weight)",
        ),
        "torch's own all-reduce with gradients, and its own in eval mode": changed(
            "ps6/sync_batch_norm",
            ("class", "import torch.distributed.nn as dnn\nclass"),
            ("self.running_mean = self.running_mean.lerp(", "self.running_mean.lerp_("),
            ("self.running_var = self.running_var.lerp(", "self.running_var.lerp_("),
            EVAL="return super().forward(x)",
            REDUCE="total = dnn.functional.all_reduce(total)",
        ),
    },
    "ps6/accumulate": {
        "gradients divided at the end": changed(
            "ps6/accumulate",
            ("+= share.item()", "+= share.item() / rows"),
            SHARE="loss(model(X), y) * len(X)",
            RESULT="torch.tensor(mean_loss)",
            STEP="[p.grad.div_(rows) for p in model.parameters() if p.grad is not None]\n"
            "    optimizer.step()",
        ),
        "a Fraction, of losses without gradients, tried in its cell": changed(
            "ps6/accumulate",
            THEN="with torch.no_grad(): print(loss(model(X), y).item())",
            RESULT="Fraction(mean_loss)",
        )
        + """
from fractions import Fraction
model = nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(accumulate(model, F.cross_entropy, [(torch.ones(2, 3), torch.tensor([0, 1]))],
                 optimizer))
check("ps6/accumulate", accumulate)
%time sum(range(9))
""",
    },
    "ps6/accumulate_ddp": {
        "the flag by hand": changed(
            "ps6/accumulate_ddp",
            (
                "        with nullcontext():",
                """\
        model.require_backward_grad_sync = i == n - 1
        with nullcontext():""",
            ),
            QUIET="nullcontext()",
        ),
        "gradients scaled at the end": changed(
            "ps6/accumulate_ddp",
            SHARE="loss(model(X), y) * len(y)",
            BEFORE="[p.grad.mul_(k / rows) for p in model.parameters()]",
        ),
    },
}
