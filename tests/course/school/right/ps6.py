"""Right answers to problem set 6: {exercise: {style: cell}}."""

STEP = """
def accumulate(model, loss, microbatches, optimizer):
    rows = sum(len(y) for _, y in microbatches)
    optimizer.zero_grad()
    total = 0.0
    for X, y in microbatches:
        l = loss(model(X), y) * len(y) / rows
        l.backward()
        total += l.item()
    optimizer.step()
    return total
"""

RIGHT = {
    "ps6/global_statistics": {
        "gathered, then joined": """
def global_statistics(x):
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, x)
    rows = torch.cat(shards)
    return rows.mean(0), rows.var(0, unbiased=False)
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
    return [mean, torch.addcmul(square, mean, mean, value=-1)]
""",
        "tried in its cell": """
def global_statistics(x):
    total = torch.stack([x.sum(0), (x ** 2).sum(0), 0 * x.sum(0) + len(x)])
    dist.all_reduce(total)
    s, q, n = total
    return s / n, q / n - (s / n) ** 2

print(run_ranks(lambda: global_statistics(torch.ones(dist.get_rank() + 1, 2)), 2)[0])
check("ps6/global_statistics", global_statistics)
global_statistics?
"""},
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
        "gathered, and backward by itself": """
class AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return sum(parts)

    @staticmethod
    def backward(ctx, gradient):
        return AllReduceSum.apply(gradient)
display(AllReduceSum)
"""},
    "ps6/sync_batch_norm": {
        "squares around the mean, in a method of its own": """
class SyncBatchNorm(nn.BatchNorm1d):
    def statistics(self, x):
        n = AllReduceSum.apply(torch.tensor(float(len(x)), dtype=x.dtype))
        mean = AllReduceSum.apply(x.sum(0)) / n
        return n, mean, AllReduceSum.apply((x - mean).pow(2).sum(0)) / n

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        if self.training:
            n, mean, var = self.statistics(x)
            m, new = self.momentum, (mean, var * n / (n - 1))
            for old, now in zip((self.running_mean, self.running_var), new):
                old.copy_((1 - m) * old + m * now.detach())
        return torch.addcmul(self.bias, (x - mean) * torch.rsqrt(var + self.eps),
                             self.weight)
""",
        "a sum of its own, and torch's in eval mode": """
class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return Total.apply(g)

class SyncBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        f = x.shape[1]
        t = Total.apply(torch.cat([x.sum(0), (x * x).sum(0), x.new_ones(1) * len(x)]))
        n = t[-1].detach()
        mean, var = t[:f] / n, t[f:-1] / n - (t[:f] / n) ** 2
        with torch.no_grad():
            self.running_mean += self.momentum * (mean - self.running_mean)
            self.running_var += self.momentum * (var * n / (n - 1) - self.running_var)
        return (x - mean) / (var + self.eps) ** 0.5 * self.weight + self.bias
print(SyncBatchNorm(3).eval()(torch.ones(2, 3)))
""",
        "statistics by 6.1, gradients by hand": """
class Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        sums = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([len(x)])])
        dist.all_reduce(sums)
        ctx.n, f = sums[-1], x.shape[1]
        mean, var = sums[:f] / ctx.n, sums[f:-1] / ctx.n - (sums[:f] / ctx.n) ** 2
        ctx.root = (var + eps).sqrt()
        ctx.save_for_backward((x - mean) / ctx.root)
        return (x - mean) / ctx.root, mean, var, ctx.n

    @staticmethod
    def backward(ctx, g, *others):
        z, = ctx.saved_tensors
        sums = torch.stack([g.sum(0), (g * z).sum(0)])
        dist.all_reduce(sums)
        return (g - sums[0] / ctx.n - z * sums[1] / ctx.n) / ctx.root, None

class SyncBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        if self.training:
            z, mean, var, n = Normalise.apply(x, self.eps)
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_((var * n / (n - 1)).detach(), self.momentum)
        else:
            z = (x - self.running_mean) / (self.running_var + self.eps).sqrt()
        return z * self.weight + self.bias
"""},
    "ps6/accumulate": {
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
    return torch.tensor(total) / rows
""",
        "numpy's float32": "import numpy as np\n" + STEP.replace(
            "return total", "return np.float32(total)"),
        "a Fraction": "from fractions import Fraction\n" + STEP.replace(
            "return total", "return Fraction(total)"),
        "the loss a second time, without gradients": STEP.replace(
            "total += l.item()", """with torch.no_grad():
            total += loss(model(X), y).item() * len(y) / rows"""),
        "tried in its cell": STEP + """
model = nn.Linear(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(accumulate(model, F.cross_entropy, [(torch.ones(2, 3), torch.tensor([0, 1]))],
                 optimizer))
check("ps6/accumulate", accumulate)
%time sum(range(9))
"""},
    "ps6/accumulate_ddp": {
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
        "an ExitStack": """
from contextlib import ExitStack
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    optimizer.zero_grad(set_to_none=True)
    for i, (X, y) in enumerate(microbatches, 1):
        with ExitStack() as stack:
            if i < len(microbatches):
                stack.enter_context(model.no_sync())
            l = loss(model(X), y)
            (l * (len(y) * dist.get_world_size() / rows)).backward()
    optimizer.step()
"""},
}
