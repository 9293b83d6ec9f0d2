"""Right answers to problem set 6, by style: {exercise: {style: cell}}."""

STATISTICS = """
def global_statistics(x):
    f = x.shape[1]
    total = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
    dist.all_reduce(total)
    mean = total[:f] / total[-1]
    return mean, total[f:2 * f] / total[-1] - mean ** 2
"""
SUM = """
class AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g
"""
NORM = """
class SyncBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        if self.training:
            n = AllReduceSum.apply(x.new_tensor([len(x)]))
            mean = AllReduceSum.apply(x.sum(0)) / n
            var = AllReduceSum.apply(((x - mean) ** 2).sum(0)) / n
            UPDATE
        return RESULT
"""
UPDATE = """with torch.no_grad():
                m = self.momentum
                self.running_mean.mul_(1 - m).add_(m * mean)
                self.running_var.mul_(1 - m).add_(m * var * n / (n - 1))"""
RESULT = "(x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias"
STEP = """
def accumulate(model, loss, microbatches, optimizer):
    rows = sum(len(y) for _, y in microbatches)
    optimizer.zero_grad()
    total = 0.0
    for X, y in microbatches:
        BODY
    optimizer.step()
    return RESULT
"""
BODY = """l = loss(model(X), y) * len(y) / rows
        l.backward()
        total += l.item()"""
ON_RANKS = """
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    optimizer.zero_grad()
    n = dist.get_world_size()
    for i, (X, y) in enumerate(microbatches):
        last = i == len(microbatches) - 1
        with nullcontext() if last else model.no_sync():
            (loss(model(X), y) * len(y) * n / rows).backward()
    optimizer.step()
"""
TRIED = """
def try_it():
    torch.manual_seed(0)
    x = torch.rand(4, 2, dtype=torch.float64)[dist.get_rank():]
    return CALL

try:
    print(run_ranks(try_it, 2)[0])
except RankError as error:
    print(error)
"""


def _norm(update=UPDATE, result=RESULT, before="", after=""):
    return before + NORM.replace("UPDATE", update).replace("RESULT", result) + after


def _step(body=BODY, result="total", before="", after=""):
    return before + STEP.replace("BODY", body).replace("RESULT", result) + after


ANSWERS = {
    "global_statistics": {
        "one flat tensor": STATISTICS,
        "stacked": """
def global_statistics(x):
    total = torch.stack([x.sum(dim=0), (x ** 2).sum(dim=0),
                         torch.full_like(x.sum(0), x.shape[0])])
    dist.all_reduce(total)
    s, q, n = total
    return s / n, q / n - (s / n) ** 2
""",
        "a list is returned": STATISTICS.replace("return mean, ", "return [mean, ").rstrip()
        + "]\n",
        "gathered, then joined": """
def global_statistics(x):
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, x)
    everything = torch.cat(shards)
    return everything.mean(0), everything.var(0, unbiased=False)
""",
        "by einsum, in a helper": """
def sums(x):
    ones = torch.ones(len(x), dtype=x.dtype)
    return torch.cat([torch.einsum("n,nf->f", ones, x), torch.einsum("nf,nf->f", x, x),
                      ones.sum().reshape(1)])

def global_statistics(x):
    t = sums(x)
    dist.all_reduce(t, op=dist.ReduceOp.SUM)
    mean, square = t[:-1].div(t[-1]).chunk(2)
    return (mean, torch.addcmul(square, mean, mean, value=-1))
""",
        "tried in its cell": STATISTICS + TRIED.replace("CALL", "global_statistics(x)") + """
check("ps6/global_statistics", global_statistics)
global_statistics?
""",
    },
    "allreduce_sum": {
        "two clones": SUM,
        "one helper for both ways": """
def summed(t):
    t = t.detach().clone().contiguous()
    dist.all_reduce(t)
    return t

class AllReduceSum(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: summed(x))
    backward = staticmethod(lambda ctx, gradient: summed(gradient))
""",
        "backward by itself": SUM.replace("        g = g.clone()\n        dist.all_reduce(g)\n"
                                          "        return g\n",
                                          "        return AllReduceSum.apply(g)\n"),
        "plus zero": SUM.replace("x.clone()", "x + 0").replace("g.clone()", "g * 1"),
        "tried in its cell": SUM + TRIED.replace("CALL", "AllReduceSum.apply(x[-1:])")
        + "display(AllReduceSum)\n",
        "gathered": """
class AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return AllReduceSum.total(x)

    @staticmethod
    def backward(ctx, gradient):
        return AllReduceSum.total(gradient)

    @staticmethod
    def total(t):
        parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, t.contiguous())
        return sum(parts)
""",
    },
    "sync_batch_norm": {
        "mean first, then squares around it": _norm(),
        "running statistics by lerp_": _norm(
            """self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_((var * n / (n - 1)).detach(), self.momentum)"""),
        "copy_ into the running statistics": _norm("""with torch.no_grad():
                m = self.momentum
                self.running_mean.copy_((1 - m) * self.running_mean + m * mean)
                self.running_var.copy_((1 - m) * self.running_var + m * var * n / (n - 1))"""),
        "rsqrt and addcmul": _norm(result="torch.addcmul(self.bias, (x - mean) * "
                                          "torch.rsqrt(var + self.eps), self.weight)"),
        "F.batch_norm in eval mode": """
class SyncBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        f = x.shape[1]
        t = AllReduceSum.apply(torch.cat([x.sum(0), (x * x).sum(0), x.new_ones(1) * len(x)]))
        n = t[-1].detach()
        mean, var = t[:f] / n, t[f:-1] / n - (t[:f] / n) ** 2
        with torch.no_grad():
            self.running_mean += self.momentum * (mean - self.running_mean)
            self.running_var += self.momentum * (var * n / (n - 1) - self.running_var)
        return (x - mean) / (var + self.eps) ** 0.5 * self.weight + self.bias
""",
        "a sum of its own": _norm(before=SUM.replace("AllReduceSum", "Total"),).replace(
            "AllReduceSum", "Total"),
        "tried in its cell": _norm(after="""
print(SyncBatchNorm(3).eval()(torch.ones(2, 3)))
check("ps6/sync_batch_norm", SyncBatchNorm)
""" + TRIED.replace("CALL", "SyncBatchNorm(2).double()(x).sum()")),
        "a method of its own": """
class SyncBatchNorm(nn.BatchNorm1d):
    def statistics(self, x):
        n = AllReduceSum.apply(torch.tensor(float(len(x)), dtype=x.dtype))
        mean = AllReduceSum.apply(x.sum(0)) / n
        var = AllReduceSum.apply((x - mean).pow(2).sum(0)) / n
        return n, mean, var

    def forward(self, x):
        if self.training:
            n, mean, var = self.statistics(x)
            for old, new in ((self.running_mean, mean), (self.running_var, var * n / (n - 1))):
                old.copy_((1 - self.momentum) * old + self.momentum * new.detach())
        else:
            mean, var = self.running_mean, self.running_var
        return self.weight * (x - mean) / (var + self.eps).sqrt() + self.bias
""",
    },
    "accumulate": {
        "shares": _step(),
        "sums, divided at the end": _step("""l = loss(model(X), y)
        (l * len(y) / rows).backward()
        total += l.item() * len(y)""", "total / rows"),
        "a tensor is returned": _step("""l = loss(model(X), y) * (len(y) / rows)
        l.backward()
        total += l.detach()"""),
        "numpy's numbers": _step(result="np.float64(total)", before="import numpy as np\n"),
        "numpy's float32": _step(result="np.float32(total)", before="import numpy as np\n"),
        "a Fraction": _step(result="Fraction(total)", before="from fractions import Fraction\n"),
        "the loss a second time, without gradients": _step(
            """(loss(model(X), y) * len(y) / rows).backward()
        with torch.no_grad():
            total += loss(model(X), y).item() * len(y) / rows"""),
        "gradients divided at the end": """
def accumulate(model, loss, microbatches, optimizer):
    model.zero_grad()
    rows = total = 0
    for X, y in microbatches:
        l = loss(model(X), y) * len(X)
        l.backward()
        rows, total = rows + len(X), total + float(l)
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= rows
    optimizer.step()
    return total / rows
""",
        "recursion": """
def accumulate(model, loss, microbatches, optimizer):
    rows = sum(X.shape[0] for X, _ in microbatches)
    def walk(rest):
        if not rest:
            return 0.0
        (X, y), *others = rest
        part = loss(model(X), y) * X.shape[0] / rows
        part.backward()
        return part.item() + walk(others)
    optimizer.zero_grad(set_to_none=False)
    mean = walk(microbatches)
    optimizer.step()
    return mean
""",
        "tried in its cell": _step(after="""
model = nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = [p.detach().clone() for p in model.parameters()]
print(accumulate(model, F.cross_entropy, [(torch.ones(2, 3), torch.tensor([0, 1]))], optimizer))
print(largest_difference(before, [p.detach() for p in model.parameters()]))
check("ps6/accumulate", accumulate)
%time sum(range(9))
"""),
    },
    "accumulate_ddp": {
        "nullcontext for the last": "from contextlib import nullcontext\n" + ON_RANKS,
        "an ExitStack": """
from contextlib import ExitStack
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches, 1):
        with ExitStack() as stack:
            if i < len(microbatches):
                stack.enter_context(model.no_sync())
            l = loss(model(X), y)
            (l * (len(y) * dist.get_world_size() / rows)).backward()
    optimizer.step()
""",
        "the last one apart": """
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    factor = dist.get_world_size() / rows
    *first, last = microbatches
    optimizer.zero_grad(set_to_none=True)
    with model.no_sync():
        for X, y in first:
            (factor * len(y) * loss(model(X), y)).backward()
    X, y = last
    (factor * len(y) * loss(model(X), y)).backward()
    optimizer.step()
""",
        "the flag by hand": """
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        model.require_backward_grad_sync = i == len(microbatches) - 1
        y_hat = model(X)
        (loss(y_hat, y) * len(y) * dist.get_world_size() / rows).backward()
    optimizer.step()
""",
        "gradients scaled at the end": """
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    optimizer.zero_grad()
    with model.no_sync():
        for X, y in microbatches[:-1]:
            (loss(model(X), y) * len(y)).backward()
    X, y = microbatches[-1]
    (loss(model(X), y) * len(y)).backward()
    for p in model.parameters():
        p.grad *= dist.get_world_size() / rows
    optimizer.step()
""",
        "tried in its cell": "from contextlib import nullcontext\n" + ON_RANKS + """
def step_on_ranks():
    torch.manual_seed(0)
    model = DDP(nn.Linear(3, 4).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = [(torch.rand(2, 3, dtype=torch.float64), torch.tensor([0, 1]))] * 2
    with trace.all_reduces() as sizes:
        accumulate_ddp(model, F.cross_entropy, batches, 8, optimizer)
    return len(sizes)

print(run_ranks(step_on_ranks, 2))
check("ps6/accumulate_ddp", accumulate_ddp)
""",
    },
}
