"""Wrong answers to problem set 6: {exercise: {name of the mistake: answer cell}}."""

# right answers, in which one part at a time is made wrong
PARTS = {
    "global_statistics": ("""
def global_statistics(x):
    features, n = x.shape[1], len(x)
    total = torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([n])])
    REDUCE
    sums, squares, count = total.split([features, features, 1])
    mean = MEAN
    return mean, VARIANCE
""", {"REDUCE": "dist.all_reduce(total)", "MEAN": "sums / count",
      "VARIANCE": "squares / count - mean * mean"}),
    "allreduce_sum": ("""
class AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        FORWARD
        return total

    @staticmethod
    def backward(ctx, gradient):
        BACKWARD
        return total
""", {"FORWARD": "total = x.clone(); dist.all_reduce(total)",
      "BACKWARD": "total = gradient.clone(); dist.all_reduce(total)"}),
    "sync_batch_norm": ("""
class SyncBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        EVAL
        n = x.new_tensor([len(x)])
        total = torch.cat([x.sum(0), (x * x).sum(0), n])
        REDUCE
        sums, squares, count = total.split([x.shape[1], x.shape[1], 1])
        MEAN
        VARIANCE
        new_mean, new_var = mean, var * count / (count - 1)
        UPDATE
        return RESULT
""", {"EVAL": "if not self.training: return (x - self.running_mean) / torch.sqrt("
              "self.running_var + self.eps) * self.weight + self.bias",
      "REDUCE": "total = AllReduceSum.apply(total)",
      "MEAN": "mean = sums / count",
      "VARIANCE": "var = squares / count - mean * mean",
      "UPDATE": "self.running_mean.lerp_(new_mean.detach(), self.momentum); "
                "self.running_var.lerp_(new_var.detach(), self.momentum)",
      "RESULT": "(x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias"}),
    "accumulate": ("""
def accumulate(model, loss, microbatches, optimizer):
    rows, n, mean_loss = sum(len(y) for X, y in microbatches), len(microbatches), 0
    START
    for X, y in microbatches:
        EACH
        share = SHARE
        share.backward()
        mean_loss += share.item()
        THEN
    END
    return RESULT
""", {"START": "optimizer.zero_grad()", "EACH": "pass",
      "SHARE": "loss(model(X), y) * len(y) / rows", "THEN": "pass",
      "END": "optimizer.step()", "RESULT": "mean_loss"}),
    "accumulate_ddp": ("""
def accumulate_ddp(model, loss, microbatches, rows, optimizer):
    from contextlib import nullcontext
    k, n = dist.get_world_size(), len(microbatches)
    own = sum(len(y) for X, y in microbatches)
    START
    for i, (X, y) in enumerate(microbatches):
        EACH
        with FORWARD:
            share = SHARE
        with BACKWARD:
            share.backward()
        THEN
    END
""", {"START": "optimizer.zero_grad()", "EACH": "pass",
      "FORWARD": "model.no_sync() if i < n - 1 else nullcontext()",
      "SHARE": "loss(model(X), y) * len(y) * k / rows", "BACKWARD": "nullcontext()",
      "THEN": "pass", "END": "optimizer.step()"}),
}

CHANGES = {
    "global_statistics": {
        "of the own rows": {"REDUCE": "pass"},
        "the mean of the ranks' means": {
            "REDUCE": "mean = x.mean(0); dist.all_reduce(mean); "
                      "mean /= dist.get_world_size(); dist.all_reduce(total)",
            "MEAN": "mean"},
        "the mean of the ranks' variances": {
            "REDUCE": "var = x.var(0, unbiased=False); dist.all_reduce(var); "
                      "dist.all_reduce(total)",
            "VARIANCE": "var / dist.get_world_size()"},
        "the ranks' variances, weighed by rows": {
            "REDUCE": "var = x.var(0, unbiased=False) * n; dist.all_reduce(var); "
                      "dist.all_reduce(total)",
            "VARIANCE": "var / count"},
        "unbiased": {"VARIANCE": "(squares - sums * mean) / (count - 1)"},
        "divided by the own rows": {"MEAN": "sums / n", "VARIANCE": "squares / n - mean * mean"},
        "divided by the number of ranks": {"MEAN": "sums / dist.get_world_size()"},
        "not divided": {"MEAN": "sums"},
        "the square of the mean left in": {"VARIANCE": "squares / count"},
        "the standard deviation": {
            "VARIANCE": "torch.sqrt(squares / count - mean * mean)"},
        "an all-reduce for each number": {
            "REDUCE": "[dist.all_reduce(part) for part in "
                      "total.split([features, features, 1])]"},
        "zeros and ones": {"MEAN": "torch.zeros(features)",
                           "VARIANCE": "torch.ones(features)"},
    },
    "allreduce_sum": {
        "does nothing": {"FORWARD": "total = x.clone()",
                         "BACKWARD": "total = gradient"},
        "the mean": {"FORWARD": "total = x.clone(); dist.all_reduce(total); "
                                "total /= dist.get_world_size()"},
        "writes into x": {"FORWARD": "total = x; dist.all_reduce(total)"},
        "backward without an all-reduce": {"BACKWARD": "total = gradient"},
        "no gradient": {"BACKWARD": "total = None"},
        "a gradient of zeros": {"BACKWARD": "total = torch.zeros_like(gradient)"},
        "the mean of the gradients": {
            "BACKWARD": "total = gradient.clone(); dist.all_reduce(total); "
                        "total /= dist.get_world_size()"},
        "world_size times the own gradient": {
            "BACKWARD": "total = gradient * dist.get_world_size()"},
        "the gradient shared out": {
            "BACKWARD": "total = gradient / dist.get_world_size()"},
        "writes into the gradient": {
            "BACKWARD": "total = gradient; dist.all_reduce(total)"},
        "rank 0's gradient": {
            "BACKWARD": "total = gradient.clone(); dist.broadcast(total, 0)"},
    },
    "sync_batch_norm": {
        "statistics of the own rows": {"REDUCE": "pass"},
        "an all-reduce that no gradient passes": {"REDUCE": "dist.all_reduce(total)"},
        "statistics from detached rows": {
            "REDUCE": "total = AllReduceSum.apply(total.detach())"},
        "the gradient of the own loss alone": {
            "REDUCE": "summed = total.detach().clone(); dist.all_reduce(summed); "
                      "total = total + (summed - total).detach()"},
        "the mean of the ranks' variances": {
            "VARIANCE": "var = AllReduceSum.apply(x.var(0, unbiased=False)) "
                        "/ dist.get_world_size()"},
        "the mean of the ranks' means": {
            "MEAN": "mean = AllReduceSum.apply(x.mean(0)) / dist.get_world_size()"},
        "counts that are not summed": {"MEAN": "count = n; mean = sums / count"},
        "normalised with the unbiased variance": {
            "VARIANCE": "var = (squares - sums * mean) / (count - 1); "
                        "count = count + float('inf')"},
        "running_var biased": {"UPDATE": "new_var = var; " + (
            "self.running_mean.lerp_(new_mean.detach(), self.momentum); "
            "self.running_var.lerp_(new_var.detach(), self.momentum)")},
        "running_var unbiased by the own count": {
            "UPDATE": "new_var = var * n / (n - 1); "
                      "self.running_mean.lerp_(new_mean.detach(), self.momentum); "
                      "self.running_var.lerp_(new_var.detach(), self.momentum)"},
        "momentum the other way round": {
            "UPDATE": "self.running_mean.lerp_(new_mean.detach(), 1 - self.momentum); "
                      "self.running_var.lerp_(new_var.detach(), 1 - self.momentum)"},
        "momentum 0.1 always": {
            "UPDATE": "self.running_mean.lerp_(new_mean.detach(), 0.1); "
                      "self.running_var.lerp_(new_var.detach(), 0.1)"},
        "the running mean of the own rows": {
            "UPDATE": "own = x.detach().mean(0) if len(x) else mean.detach(); "
                      "self.running_mean.lerp_(own, self.momentum); "
                      "self.running_var.lerp_(new_var.detach(), self.momentum)"},
        "running statistics not kept": {"UPDATE": "pass"},
        "running statistics on a graph": {
            "UPDATE": "m = self.momentum; "
                      "self.running_mean = (1 - m) * self.running_mean + m * new_mean; "
                      "self.running_var = (1 - m) * self.running_var + m * new_var"},
        "running statistics in training too": {
            "RESULT": "(x - self.running_mean) / torch.sqrt(self.running_var + self.eps)"
                      " * self.weight + self.bias"},
        "eps outside the root": {
            "RESULT": "(x - mean) / (torch.sqrt(var) + self.eps) * self.weight "
                      "+ self.bias"},
        "eps 1e-5 always": {
            "RESULT": "(x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias"},
        "no weight and bias": {"RESULT": "(x - mean) / torch.sqrt(var + self.eps)"},
        "no root": {
            "RESULT": "(x - mean) / (var + self.eps) * self.weight + self.bias"},
        "eval communicates": {
            "EVAL": "if not self.training: dist.all_reduce(x.sum(0)); "
                    "return F.batch_norm(x, self.running_mean, self.running_var, "
                    "self.weight, self.bias, False, 0, self.eps)"},
        "eval communicates where it can": {
            "EVAL": "if not self.training:\n"
                    "            if dist.is_initialized(): dist.all_reduce(x.sum(0))\n"
                    "            return super().forward(x)"},
        "eval with its own rows": {
            "EVAL": "if not self.training: return F.batch_norm(x, None, None, "
                    "self.weight, self.bias, True, 0, self.eps)"},
        "eval moves the running statistics": {
            "EVAL": "if not self.training: result = super().forward(x); "
                    "self.running_mean.lerp_(x.mean(0), self.momentum); return result"},
        "the gradient of weight summed already": {
            "RESULT": "(x - mean) / torch.sqrt(var + self.eps) "
                      "* AllReduceSum.apply(self.weight) / dist.get_world_size() "
                      "+ self.bias"},
        "zeros": {"RESULT": "x * 0"},
    },
    "accumulate": {
        "the mean of the means": {"SHARE": "loss(model(X), y) / n"},
        "n times too large": {"SHARE": "loss(model(X), y)", "RESULT": "mean_loss / n"},
        "the sum over rows": {"SHARE": "loss(model(X), y) * len(y)",
                              "RESULT": "mean_loss / rows"},
        "clears in every microbatch": {"EACH": "optimizer.zero_grad()"},
        "clears at the end alone": {"START": "pass",
                                    "END": "optimizer.step(); optimizer.zero_grad()"},
        "never clears": {"START": "pass"},
        "steps in every microbatch": {"THEN": "optimizer.step()", "END": "pass"},
        "steps and clears in every microbatch": {
            "THEN": "optimizer.step(); optimizer.zero_grad()", "END": "pass"},
        "never steps": {"END": "pass"},
        "steps before the last": {
            "EACH": "[optimizer.step() for last in [microbatches[-1][1]] if y is last]",
            "END": "pass"},
        "all rows at once": {
            "EACH": "if y is not microbatches[0][1]: break\n"
                    "        X, y = map(torch.cat, zip(*microbatches))"},
        "all forwards before the first backward": {
            "EACH": "shares = [loss(model(X), y) * len(y) / rows for X, y in "
                    "microbatches] if y is microbatches[0][1] else shares",
            "SHARE": "shares.pop(0)"},
        "the sum of the shares, one backward": {
            "EACH": "if y is not microbatches[0][1]: break",
            "SHARE": "sum(loss(model(X), y) * len(y) for X, y in microbatches) / rows"},
        "the loss of the last microbatch": {"RESULT": "loss(model(X), y).item()"},
        "the loss after the step": {
            "RESULT": "sum(loss(model(X), y).item() * len(y) "
                      "for X, y in microbatches) / rows"},
    },
    "accumulate_ddp": {
        "averages in every microbatch": {"FORWARD": "nullcontext()"},
        "only backward in no_sync": {
            "FORWARD": "nullcontext()",
            "BACKWARD": "model.no_sync() if i < n - 1 else nullcontext()"},
        "no_sync for the last one too": {"FORWARD": "model.no_sync()"},
        "no_sync for the last one alone": {
            "FORWARD": "model.no_sync() if i == n - 1 else nullcontext()"},
        "no_sync for all, averaged by hand": {
            "FORWARD": "model.no_sync()",
            "END": "[dist.all_reduce(p.grad) for p in model.parameters()]; "
                   "[p.grad.div_(k) for p in model.parameters()]; optimizer.step()"},
        "averaged once more by hand": {
            "END": "[dist.all_reduce(p.grad) for p in model.parameters()]; "
                   "[p.grad.div_(k) for p in model.parameters()]; optimizer.step()"},
        "summed once more by hand": {
            "END": "[dist.all_reduce(p.grad) for p in model.parameters()]; "
                   "optimizer.step()"},
        "world_size forgotten": {"SHARE": "loss(model(X), y) * len(y) / rows"},
        "divided by the own rows": {"SHARE": "loss(model(X), y) * len(y) / own"},
        "the mean of the means": {"SHARE": "loss(model(X), y) / n"},
        "n times too large": {"SHARE": "loss(model(X), y)"},
        "clears in every microbatch": {"EACH": "optimizer.zero_grad()"},
        "never clears": {"START": "pass"},
        "steps in every microbatch": {"THEN": "optimizer.step()", "END": "pass"},
        "never steps": {"END": "pass"},
        "only the last microbatch": {"EACH": "if i < n - 1: continue"},
    },
}


def _changed(exercise, parts):
    cell, right = PARTS[exercise]
    for part in right:
        cell = cell.replace(part, parts.get(part, right[part]))
    return cell


WRONG = {exercise: {name: _changed(exercise, parts) for name, parts in changes.items()}
         for exercise, changes in CHANGES.items()}
