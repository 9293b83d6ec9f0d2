"""Wrong answers to problem set 6: {exercise: {mistake: (hint, cell)}}."""

from tests.support.wrong.exchange import exchanged

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
        "of the own rows": (
            "every rank has the mean of its own rows",
            {"REDUCE": "pass"}),
        "the mean of the ranks' means": ("this is the mean of the ranks' means", {
            "REDUCE": "mean = x.mean(0); dist.all_reduce(mean); "
                      "mean /= dist.get_world_size(); dist.all_reduce(total)",
            "MEAN": "mean"}),
        "the mean of the ranks' variances": (
            "this is the mean of the ranks' variances",
            {
                "REDUCE": "var = x.var(0, unbiased=False); dist.all_reduce(var); "
                          "dist.all_reduce(total)",
                "VARIANCE": "var / dist.get_world_size()"}),
        "the ranks' variances, weighed by rows": (
            "every rank took squares around its own mean",
            {
                "REDUCE": "var = x.var(0, unbiased=False) * n; dist.all_reduce(var); "
                          "dist.all_reduce(total)",
                "VARIANCE": "var / count"}),
        "unbiased": (
            "this is the unbiased variance",
            {"VARIANCE": "(squares - sums * mean) / (count - 1)"}),
        "divided by the own rows": (
            "the sum is that of all ranks",
            {"MEAN": "sums / n", "VARIANCE": "squares / n - mean * mean"}),
        "divided by the number of ranks": (
            "the sum was divided by the number of ranks",
            {"MEAN": "sums / dist.get_world_size()"}),
        "not divided": ("this is the sum", {"MEAN": "sums"}),
        "the mean of all, the variance of the own rows": (
            "every rank has the variance of its own rows",
            {
                "VARIANCE": "x.var(0, unbiased=False)"}),
        "the square of the mean left in": (
            "this is the mean of the squares",
            {"VARIANCE": "squares / count"}),
        "the standard deviation": ("this is the standard deviation", {
            "VARIANCE": "torch.sqrt(squares / count - mean * mean)"}),
        "an all-reduce for each number": (
            "put sums, squares and count into one tensor, and sum that",
            {
                "REDUCE": "[dist.all_reduce(part) for part in "
                          "total.split([features, features, 1])]"}),
        "zeros and ones": (
            None,
            {"MEAN": "torch.zeros(features)",
             "VARIANCE": "torch.ones(features)"}),
    },
    "allreduce_sum": {
        "does nothing": (
            "every rank has its own x",
            {"FORWARD": "total = x.clone()",
             "BACKWARD": "total = gradient"}),
        "the mean": (
            "this is the mean; the sum is wanted",
            {"FORWARD": "total = x.clone(); dist.all_reduce(total); "
                        "total /= dist.get_world_size()"}),
        "writes into x": (
            "dist.all_reduce writes into the tensor that it is given",
            {"FORWARD": "total = x; dist.all_reduce(total)"}),
        "backward without an all-reduce": (
            "the gradient goes back as if y were x",
            {"BACKWARD": "total = gradient"}),
        "no gradient": ("no gradient comes back to x", {"BACKWARD": "total = None"}),
        "a gradient of zeros": (
            "no gradient comes back",
            {"BACKWARD": "total = torch.zeros_like(gradient)"}),
        "the mean of the gradients": ("this is the mean over ranks", {
            "BACKWARD": "total = gradient.clone(); dist.all_reduce(total); "
                        "total /= dist.get_world_size()"}),
        "world_size times the own gradient": ("this is the own gradient, times", {
            "BACKWARD": "total = gradient * dist.get_world_size()"}),
        "the gradient shared out": ("this is the own gradient, divided", {
            "BACKWARD": "total = gradient / dist.get_world_size()"}),
        "writes into the gradient": (
            "backward writes into the gradient that it is given",
            {
                "BACKWARD": "total = gradient; dist.all_reduce(total)"}),
        "rank 0's gradient": ("every rank has rank 0's gradient", {
            "BACKWARD": "total = gradient.clone(); dist.broadcast(total, 0)"}),
    },
    "sync_batch_norm": {
        "statistics of the own rows": (
            "every rank normalises with the statistics of its own rows",
            {"REDUCE": "pass"}),
        "an all-reduce that no gradient passes": (
            "only the own rank's loss sends something back",
            {"REDUCE": "dist.all_reduce(total)"}),
        "statistics from detached rows": ("mean and variance are taken for constants", {
            "REDUCE": "total = AllReduceSum.apply(total.detach())"}),
        "the gradient of the own loss alone": (
            "only the own rank's loss sends something back",
            {
                "REDUCE": "summed = total.detach().clone(); dist.all_reduce(summed); "
                          "total = total + (summed - total).detach()"}),
        "the mean of the ranks' variances": (
            "this takes the mean of the ranks' variances",
            {
                "VARIANCE": "var = AllReduceSum.apply(x.var(0, unbiased=False)) "
                            "/ dist.get_world_size()"}),
        "the mean of the ranks' means": ("this takes the mean of the ranks' means", {
            "MEAN": "mean = AllReduceSum.apply(x.mean(0)) / dist.get_world_size()"}),
        "counts that are not summed": (
            {"the sums are those of all ranks", None},
            {"MEAN": "count = n; mean = sums / count"}),
        "normalised with the unbiased variance": ("y takes the biased variance", {
            "VARIANCE": "var = (squares - sums * mean) / (count - 1); "
                        "count = count + float('inf')"}),
        "running_var biased": (
            "running_var takes the unbiased variance",
            {"UPDATE": "new_var = var; " + (
                "self.running_mean.lerp_(new_mean.detach(), self.momentum); "
                "self.running_var.lerp_(new_var.detach(), self.momentum)")}),
        "running_var unbiased by the own count": (
            "the ranks' running variances differ",
            {
                "UPDATE": "new_var = var * n / (n - 1); "
                          "self.running_mean.lerp_(new_mean.detach(), self.momentum); "
                          "self.running_var.lerp_(new_var.detach(), self.momentum)"}),
        "momentum the other way round": ("momentum is the weight of what is new", {
            "UPDATE": "self.running_mean.lerp_(new_mean.detach(), 1 - self.momentum); "
                      "self.running_var.lerp_(new_var.detach(), 1 - self.momentum)"}),
        "momentum 0.1 always": ("momentum is the module's own", {
            "UPDATE": "self.running_mean.lerp_(new_mean.detach(), 0.1); "
                      "self.running_var.lerp_(new_var.detach(), 0.1)"}),
        "the running mean of the own rows": ("the ranks' running means differ", {
            "UPDATE": "own = x.detach().mean(0) if len(x) else mean.detach(); "
                      "self.running_mean.lerp_(own, self.momentum); "
                      "self.running_var.lerp_(new_var.detach(), self.momentum)"}),
        "running statistics not kept": (
            "the running mean has not changed",
            {"UPDATE": "pass"}),
        "the running mean alone": ("the running variance has not changed", {
            "UPDATE": "self.running_mean.lerp_(new_mean.detach(), self.momentum)"}),
        "running statistics on a graph": ("update them under torch.no_grad()", {
            "UPDATE": "m = self.momentum; "
                      "self.running_mean = (1 - m) * self.running_mean + m * new_mean; "
                      "self.running_var = (1 - m) * self.running_var + m * new_var"}),
        "running statistics in training too": ("running statistics are for eval mode", {
            "RESULT": "(x - self.running_mean) / torch.sqrt(self.running_var + self.eps)"
                      " * self.weight + self.bias"}),
        "eps outside the root": ("eps stands under the root", {
            "RESULT": "(x - mean) / (torch.sqrt(var) + self.eps) * self.weight "
                      "+ self.bias"}),
        "eps 1e-5 always": ("eps is the module's own", {
            "RESULT": "(x - mean) / torch.sqrt(var + 1e-5) * self.weight + self.bias"}),
        "no weight and bias": (
            "the module's weight and bias are missing",
            {"RESULT": "(x - mean) / torch.sqrt(var + self.eps)"}),
        "no root": ("the root of the variance is missing", {
            "RESULT": "(x - mean) / (var + self.eps) * self.weight + self.bias"}),
        "eval communicates": ("in eval mode only the running statistics count", {
            "EVAL": "if not self.training: dist.all_reduce(x.sum(0)); "
                    "return F.batch_norm(x, self.running_mean, self.running_var, "
                    "self.weight, self.bias, False, 0, self.eps)"}),
        "eval communicates where it can": ("the running statistics are the same", {
            "EVAL": "if not self.training:\n"
                    "            if dist.is_initialized(): dist.all_reduce(x.sum(0))\n"
                    "            return super().forward(x)"}),
        "eval with its own rows": ("these are the statistics of the rows themselves", {
            "EVAL": "if not self.training: return F.batch_norm(x, None, None, "
                    "self.weight, self.bias, True, 0, self.eps)"}),
        "eval moves the running statistics": ("eval mode changes nothing", {
            "EVAL": "if not self.training: result = super().forward(x); "
                    "self.running_mean.lerp_(x.mean(0), self.momentum); return result"}),
        "the gradient of weight summed already": (
            "the ranks' gradients are added up or averaged here",
            {
                "RESULT": "(x - mean) / torch.sqrt(var + self.eps) "
                          "* AllReduceSum.apply(self.weight) / dist.get_world_size() "
                          "+ self.bias"}),
        "zeros": (None, {"RESULT": "x * 0"}),
    },
    "accumulate": {
        "the mean of the means": (
            "this is the mean of the microbatches' means",
            {"SHARE": "loss(model(X), y) / n"}),
        "n times too large": (
            "the means of 2 microbatches are added up",
            {"SHARE": "loss(model(X), y)", "RESULT": "mean_loss / n"}),
        "the sum over rows": (
            "this is the sum over all rows",
            {"SHARE": "loss(model(X), y) * len(y)",
             "RESULT": "mean_loss / rows"}),
        "clears in every microbatch": (
            "only the last microbatch counts",
            {"EACH": "optimizer.zero_grad()"}),
        "clears at the end alone": (
            "old gradients are in it",
            {"START": "pass",
             "END": "optimizer.step(); optimizer.zero_grad()"}),
        "never clears": ("old gradients are in it", {"START": "pass"}),
        "steps in every microbatch": (
            "there was a step in every microbatch",
            {"THEN": "optimizer.step()", "END": "pass"}),
        "steps and clears in every microbatch": (
            "there was a step in every microbatch",
            {
                "THEN": "optimizer.step(); optimizer.zero_grad()", "END": "pass"}),
        "never steps": ("nothing has moved", {"END": "pass"}),
        "steps before the last": ("the last microbatch is left out", {
            "EACH": "[optimizer.step() for last in [microbatches[-1][1]] if y is last]",
            "END": "pass"}),
        "all rows at once": ("all rows go through at once", {
            "EACH": "if y is not microbatches[0][1]: break\n"
                    "        X, y = map(torch.cat, zip(*microbatches))"}),
        "all forwards before the first backward": ("call backward after each forward", {
            "EACH": "shares = [loss(model(X), y) * len(y) / rows for X, y in "
                    "microbatches] if y is microbatches[0][1] else shares",
            "SHARE": "shares.pop(0)"}),
        "the sum of the shares, one backward": ("call backward after each forward", {
            "EACH": "if y is not microbatches[0][1]: break",
            "SHARE": "sum(loss(model(X), y) * len(y) for X, y in microbatches) / rows"}),
        "the loss of the last microbatch": (
            "this is the loss of the last microbatch",
            {"RESULT": "loss(model(X), y).item()"}),
        "the loss after the step": ("this is the loss after the step", {
            "RESULT": "sum(loss(model(X), y).item() * len(y) "
                      "for X, y in microbatches) / rows"}),
    },
    "accumulate_ddp": {
        "averages in every microbatch": (
            "no_sync is for all microbatches but the last",
            {"FORWARD": "nullcontext()"}),
        "only backward in no_sync": ("no_sync is for all microbatches but the last", {
            "FORWARD": "nullcontext()",
            "BACKWARD": "model.no_sync() if i < n - 1 else nullcontext()"}),
        "no_sync for the last one too": (
            "replicas differ",
            {"FORWARD": "model.no_sync()"}),
        "no_sync for the last one alone": ("replicas differ", {
            "FORWARD": "model.no_sync() if i == n - 1 else nullcontext()"}),
        "one backward for all graphs": ("call backward after each forward", {
            "START": "optimizer.zero_grad(); total = 0",
            "SHARE": "loss(model(X), y) * len(y) * k / rows; total = total + share; "
                     "share = total if i == n - 1 else torch.zeros(1, requires_grad=True)"}),
        "no_sync for all, averaged by hand": ("leave averaging to DDP", {
            "FORWARD": "model.no_sync()",
            "END": "[dist.all_reduce(p.grad) for p in model.parameters()]; "
                   "[p.grad.div_(k) for p in model.parameters()]; optimizer.step()"}),
        "averaged once more by hand": ("when the last backward returns", {
            "END": "[dist.all_reduce(p.grad) for p in model.parameters()]; "
                   "[p.grad.div_(k) for p in model.parameters()]; optimizer.step()"}),
        "summed once more by hand": ("the step is 2 times too large", {
            "END": "[dist.all_reduce(p.grad) for p in model.parameters()]; "
                   "optimizer.step()"}),
        "world_size forgotten": (
            "the step is 2 times too small",
            {"SHARE": "loss(model(X), y) * len(y) / rows"}),
        "divided by the own rows": (
            "this is the mean of the ranks' means",
            {"SHARE": "loss(model(X), y) * len(y) / own"}),
        "the mean of the means": (
            "this is a mean of means",
            {"SHARE": "loss(model(X), y) / n"}),
        "n times too large": (
            "the means of 3 microbatches are added up",
            {"SHARE": "loss(model(X), y)"}),
        "clears in every microbatch": (
            "one step is wanted",
            {"EACH": "optimizer.zero_grad()"}),
        "never clears": ("old gradients are in it", {"START": "pass"}),
        "steps in every microbatch": (
            "replicas differ",
            {"THEN": "optimizer.step()", "END": "pass"}),
        "never steps": ("nothing has moved", {"END": "pass"}),
        "only the last microbatch": (
            "one step is wanted",
            {"EACH": "if i < n - 1: continue"}),
    },
}
ANSWERS = exchanged(PARTS, CHANGES)
