"""Wrong answers to problem set 6: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "ps6/global_statistics": (
        """
def global_statistics(x):
    <<BEFORE: pass>>
    features, n = x.shape[1], len(x)
    total = torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([n])])
    <<REDUCE: dist.all_reduce(total)>>
    sums, squares, count = total.split([features, features, 1])
    mean = <<AVERAGE: sums / count>>
    return mean, <<VARIANCE: squares / count - mean * mean>>
""",
        {
            "every rank has the mean": {"REDUCE": "pass"},
            "a collective is for all ranks": {
                "BEFORE": "if not len(x): return x.sum(0), x.sum(0)"
            },
            "this has to stay as it is": {"AVERAGE": "sums / count; x -= 1"},
            "a mean of means": {
                "REDUCE": "m = x.mean(0); dist.all_reduce(m); dist.all_reduce(total)",
                "AVERAGE": "m / dist.get_world_size()",
            },
            "this is the unbiased variance": {
                "VARIANCE": "(squares - sums * mean) / (count - 1)"
            },
            "the dtype is another": {"AVERAGE": "(sums / count).float()"},
            "the sum is divided by the rank's own rows": {
                "AVERAGE": "sums / (n * dist.get_world_size())"
            },
            "put sums, squares and count": {
                "REDUCE": "[dist.all_reduce(part) for part in total.split(features)]"
            },
        },
    ),
    "ps6/two_round_statistics": (
        """
def two_round_statistics(x):
    <<BEFORE: pass>>
    <<FIRST: first = torch.cat([x.sum(0), x.new_tensor([len(x)])]); dist.all_reduce(first)>>
    mean, n = <<MEAN: first[:-1] / first[-1]>>, first[-1]
    squares = <<SQUARES: (x - mean).square().sum(0)>>
    dist.all_reduce(squares)
    return mean, <<VARIANCE: squares / n>>
""",
        {
            "every rank has the mean": {
                "FIRST": "first = torch.cat([x.sum(0), x.new_tensor([len(x)])])"
            },
            "a mean of means": {
                "MEAN": "(m := x.mean(0), dist.all_reduce(m), m / dist.get_world_size())[2]"
            },
            "a collective is for all ranks": {
                "BEFORE": "if not len(x): return x.sum(0), x.sum(0)"
            },
            "this has to stay as it is": {"SQUARES": "x.sub_(mean).square().sum(0)"},
            "this is the unbiased variance": {"VARIANCE": "squares / (n - 1)"},
            "the sum is divided by the rank's own rows": {
                "VARIANCE": "squares / len(x)"
            },
            "the mean of no rows is NaN": {
                "FIRST": "first = torch.cat([x.mean(0) * len(x), x.new_tensor([len(x)])]); "
                "dist.all_reduce(first)"
            },
            "these are distances from the mean of each": {
                "SQUARES": "(x - x.mean(0)).square().sum(0)"
            },
            "around 0 this was right": {
                "SQUARES": "x.square().sum(0)",
                "VARIANCE": "squares / n - mean**2",
            },
            "around 0 this was right, and here": {
                "SQUARES": "x.double().square().sum(0)",
                "VARIANCE": "(squares / n - mean.double() ** 2).to(x.dtype)",
            },
            "put sums and count": {
                "FIRST": "first = torch.cat([x.sum(0), x.new_tensor([len(x)])])\n"
                "    for part in first.split(1): dist.all_reduce(part)"
            },
        },
    ),
    "ps6/allreduce_sum": (
        """
class AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = <<COPY: x.clone()>>
        <<FORWARD: dist.all_reduce(total)>>
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = <<OTHER: gradient.clone()>>
        <<BACKWARD: dist.all_reduce(total)>>
        return total
""",
        {
            "every rank has its own x": {"FORWARD": "pass"},
            "dist.all_reduce writes into": {"COPY": "x"},
            "the gradient goes back as if y were x": {"BACKWARD": "pass"},
            "this is the mean of what arrives": {
                "BACKWARD": "dist.all_reduce(total); total /= dist.get_world_size()"
            },
            "y is a sum, so": {
                "COPY": "x.clone(); ctx.save_for_backward(x)",
                "OTHER": "gradient * ctx.saved_tensors[0]",
            },
            "this is the rank's own gradient, k times": {
                "BACKWARD": "total *= dist.get_world_size()"
            },
            "backward writes into": {"OTHER": "gradient"},
        },
    ),
    "ps6/sync_batch_norm": (
        """
class SyncBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        if not self.training:
            <<EVAL: pass>>
            scale = self.weight / torch.sqrt(self.running_var + self.eps)
            return (x - self.running_mean) * scale + self.bias
        <<BEFORE: pass>>
        n = x.new_tensor([len(x)])
        total = torch.cat([x.sum(0), (x * x).sum(0), n])
        <<REDUCE: total = AllReduceSum.apply(total)>>
        sums, squares, count = total.split([x.shape[1], x.shape[1], 1])
        mean = sums / count
        var, m = <<VARIANCE: squares / count - mean * mean>>, self.momentum
        self.running_mean = self.running_mean.lerp(<<MEAN: mean.detach()>>, <<WEIGHT: m>>)
        self.running_var = self.running_var.lerp(
            <<VAR: (var * count / (count - 1)).detach()>>, WEIGHT)
        return <<RESULT: (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias>>
""",
        {
            "every rank normalises": {"REDUCE": "pass"},
            "y takes the biased variance": {
                "VARIANCE": "(squares - sums * mean) / (count - 1)",
                "VAR": "var.detach()",
            },
            "momentum is the weight of what is new": {"WEIGHT": "(1 - m)"},
            "running_var takes the unbiased variance": {"VAR": "var.detach()"},
            "n / (n - 1) has the rows": {
                "VAR": "(var * n / (n - 1).clamp(min=1)).detach()"
            },
            "eps belongs under": {
                "RESULT": "(x - mean) / (torch.sqrt(var) + self.eps) * self.weight "
                "+ self.bias"
            },
            "a collective is for all ranks": {"BEFORE": "if not len(x): return x"},
            "mean and variance are taken for constants": {
                "REDUCE": "total = AllReduceSum.apply(total.detach())"
            },
            "only the own rank's loss": {"REDUCE": "dist.all_reduce(total)"},
            "adding up the ranks' gradients": {
                "RESULT": "(x - mean) / torch.sqrt(var + self.eps) * AllReduceSum.apply("
                "self.weight) / dist.get_world_size() + self.bias"
            },
            "update them under torch.no_grad()": {"MEAN": "mean"},
            "in eval mode only": {"EVAL": "dist.all_reduce(x.sum(0))"},
        },
    ),
    "ps6/accumulate": (
        """
def accumulate(model, loss, microbatches, optimizer):
    rows, n, mean_loss = sum(len(y) for X, y in microbatches), len(microbatches), 0
    optimizer.zero_grad()
    for X, y in <<PARTS: microbatches>>:
        share = <<SHARE: loss(model(X), y) * len(y) / rows>>
        share.backward(retain_graph=<<KEEP: False>>)
        mean_loss += share.item()
        <<THEN: kept = share>>
    <<STEP: optimizer.step()>>
    return <<RESULT: mean_loss>>
""",
        {
            "this is a mean of means": {"SHARE": "loss(model(X), y) / n"},
            "this is a mean of means: a row": {
                "THEN": "model.m = getattr(model, 'm', []) + [share.item() * rows / len(y)]",
                "RESULT": "sum(model.m) / n",
            },
            "this is the loss of the last": {
                "THEN": "kept = share.item() * rows / len(y)",
                "RESULT": "kept",
            },
            "only the last microbatch's share": {"RESULT": "kept.item()"},
            "every microbatch goes into": {"THEN": "optimizer.step()", "STEP": "pass"},
            "more rows at once": {"PARTS": "[map(torch.cat, zip(*microbatches))]"},
            "call backward after each forward": {"KEEP": "True"},
            "the step is the optimizer's": {
                "STEP": "[p.data.sub_(optimizer.param_groups[0]['lr'] * p.grad) "
                "for p in model.parameters()]"
            },
        },
    ),
    "ps6/accumulate_ddp": (
        """
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    from contextlib import nullcontext
    k, n = dist.get_world_size(), len(microbatches)
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        with <<QUIET: model.no_sync() if i < n - 1 else nullcontext()>>:
            (<<SHARE: loss(model(X), y) * len(y) * k / rows>>).backward()
    <<BEFORE: pass>>
    optimizer.step()
""",
        {
            "replicas differ": {"QUIET": "model.no_sync()"},
            "the step is 2 times too small": {
                "SHARE": "loss(model(X), y) * len(y) / rows"
            },
            "this is the mean of the ranks' means": {
                "SHARE": "loss(model(X), y) * len(y) / sum(len(y) for _, y in microbatches)"
            },
            "no_sync is for all microbatches": {"QUIET": "nullcontext()"},
            "leave averaging to DDP": {
                "QUIET": "model.no_sync()",
                "BEFORE": "[dist.all_reduce(p.grad.div_(k)) for p in model.parameters()]",
            },
            "when the last backward returns": {"BEFORE": "dist.barrier()"},
        },
    ),
}
