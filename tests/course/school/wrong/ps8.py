"""Wrong answers to problem set 8: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "ps8/once": (
        """
def once(function, path):
    errors = [None]
    <<FIRST: pass>>
    if <<WHO: dist.get_rank() == 0>> and <<TODO: not os.path.exists(path)>>:
        try:
            function(<<PLACE: f"{path}.part">>)
            os.replace(PLACE, path)
        except Exception as caught:
            <<FAILED: errors = [str(caught) or repr(caught)]>>
    <<TELL: dist.broadcast_object_list(errors)>>
    if errors[0]:
        <<RAISE: raise RuntimeError(errors[0])>>
""",
        {
            "rank 0 has failed": {"FAILED": "raise"},
            "others wait in vain": {
                "FIRST": "if os.path.exists(path):\n        return"
            },
            "only rank 0 downloads": {"WHO": "True", "PLACE": 'f"{path}{os.getpid()}"'},
            "a file that is there": {"TODO": "True"},
            "half a file is left there": {"PLACE": "path"},
            "a rank returned before": {
                "FIRST": "dist.broadcast_object_list(errors)",
                "TELL": "pass",
            },
            "an error may have no words": {"FAILED": "errors = [str(caught)]"},
            "no rank waits by looking": {
                "FIRST": "import time",
                "FAILED": "open(f'{path}.err', 'w').write(str(caught) or 'x')",
                "TELL": """while not os.path.exists(path) and not errors[0]:
        time.sleep(0.01)
        if os.path.exists(f"{path}.err"):
            errors = [open(f"{path}.err").read()]""",
            },
            "a failed download raises": {"RAISE": "return"},
        },
    ),
    "ps8/resume_at": (
        """
def resume_at(rows, world_size, batch_size, accumulate, epochs, done):
    own = <<OWN: -(-rows // world_size)>>
    batches = <<BATCHES: own // batch_size>>
    steps = <<STEPS: -(-batches // accumulate)>>
    epoch, step = divmod(done, steps)
    <<LAST: pass>>
    return epoch, <<BATCH: step * accumulate>>, <<LEFT: steps * epochs - done>>
""",
        {
            "the numbers of one division": {"BATCHES": "math.ceil(own / batch_size)"},
            "an epoch's last step takes": {"STEPS": "batches // accumulate"},
            "the sampler fills up": {"OWN": "rows // world_size"},
            "the numbers of three": {
                "STEPS": "batches // accumulate",
                "OWN": "rows // world_size",
            },
            "batch_size is that of": {"OWN": "rows"},
            "batch is counted in batches": {"BATCH": "step"},
            "an epoch's last step may be": {
                "LAST": "return *divmod(done * accumulate, batches), "
                "math.ceil(batches * epochs / accumulate) - done"
            },
            "left counts until": {"LEFT": "steps - step"},
            "the divisions may well be right": {"LAST": "epoch += 1"},
            "round the three divisions": {
                "BATCHES": "math.ceil(own / batch_size)",
                "STEPS": "batches // accumulate",
            },
        },
    ),
    "ps8/master_sgd": (
        """
class MasterSGD:
    def __init__(self, params, lr):
        self.params, self.lr = params, lr
        self.master = [<<COPY: p.detach().float()>> for p in params]

    def step(self):
        <<FIRST: pass>>
        for p, w in zip(self.params, self.master):
            w <<SIGN: ->>= <<CHANGE: self.lr * p.grad.float()>>
            <<WRITE: p.data.copy_(w)>>

    def save(self):
        return [<<SAVED: w.clone()>> for w in self.master]

    def load(self, saved):
        <<KEEP: pass>>
        for p, w, old in zip(self.params, self.master, saved):
            <<LOAD: w.copy_(old)>>
            p.data.copy_(w)
""",
        {
            "the copies are kept in 16": {"COPY": "p.detach().clone()"},
            "save() returns the list": {"SAVED": "w.double()"},
            "these numbers are where they began": {
                "COPY": "p.detach()",
                "SAVED": "w.float()",
            },
            "these numbers are where": {"SAVED": "w.bfloat16().float()"},
            "only the last step": {
                "FIRST": "self.master = [p.detach().float() for p in self.params]"
            },
            "lr * p.grad was rounded": {"CHANGE": "self.lr * p.grad"},
            "this walks uphill": {"SIGN": "+"},
            "w -= lr * gradient": {"CHANGE": "p.grad.float()"},
            "params stay in 16 bits": {"WRITE": "p.data = w.clone()"},
            "params are where they were": {"WRITE": "pass"},
            "each of params holds": {"WRITE": "p.data.copy_(w + 0.1)"},
            "save() returns the tensors": {"SAVED": "w"},
            "the copies hold numbers of": {"LOAD": "w.copy_(old.bfloat16())"},
            "load() puts what was saved": {"LOAD": "p.data.copy_(old)"},
            "load() keeps the tensors": {"KEEP": "self.master = saved"},
        },
    ),
    "ps8/scaler": (
        """
class AgreedScaler:
    def __init__(self, factor, every):
        self.factor, self.every, self.good = factor, every, 0

    def unscale(self, grads):
        <<FIRST: pass>>
        fine = all(<<FINE: grad.isfinite()>>.all() for grad in grads)
        <<EARLY: pass>>
        bad = torch.tensor(float(not fine))
        <<VOTE: dist.all_reduce(bad)>>
        if bad > 0:
            <<HALVE: self.factor /= 2>>
            <<ANEW: self.good = 0>>
            return None
        <<GROW: pass>>
        result = [<<RESULT: grad.float() / self.factor>> for grad in grads]
        self.good += 1
        if self.good == <<EVERY: self.every>>:
            <<DOUBLE: self.factor *= 2>>
            <<COUNT: self.good = 0>>
        return result
""",
        {
            "all ranks vote": {
                "EARLY": "if not fine:\n            self.factor /= 2; return None"
            },
            "this has to stay as it is": {
                "RESULT": "grad.div_(self.factor).float()",
            },
            "no gradient is sent": {
                "FIRST": "[dist.all_reduce(g.float()) for g in grads]"
            },
            "no gradient is sent: a": {
                "FIRST": "dist.all_reduce(torch.cat([g.flatten() for g in grads]))"
            },
            "the ranks' lists differ": {
                "VOTE": "[dist.all_reduce(bad) for g in grads]"
            },
            "all are finite, but": {"FINE": "grad.sum().isfinite()"},
            "each rank decides": {"VOTE": "pass"},
            "nan is not finite either": {"FINE": "(~grad.isinf())"},
            "return None if a rank": {"ANEW": "return []"},
            "the factors part": {"HALVE": "self.factor /= 1 if fine else 2"},
            "halve it when": {"HALVE": "pass"},
            "half of 1 is": {"HALVE": "self.factor //= 2"},
            "after `every` good steps": {"DOUBLE": "pass"},
            "count anew": {"ANEW": "pass"},
            "count anew after a": {
                "COUNT": "pass",
                "EVERY": "max(self.good, self.every)",
            },
            "make each gradient float32": {"RESULT": "grad / self.factor"},
            "they are still multiplied": {"RESULT": "grad.float()"},
            "divide by the factor that": {
                "GROW": "self.factor *= 2 if self.good + 1 == self.every else 1",
                "DOUBLE": "pass",
            },
            "the small ones were rounded": {"RESULT": "(grad / self.factor).float()"},
            "each rank's own gradients": {
                "RESULT": "grad.float() / self.factor / dist.get_world_size()"
            },
        },
    ),
    "ps8/outer": (
        """
class Outer:
    def __init__(self, params, lr, momentum):
        self.params, self.lr, self.momentum = params, lr, momentum
        self.old = [p.detach().clone() for p in params]
        self.velocity = [torch.zeros_like(p) for p in self.old]

    def meet(self, sound):
        <<FIRST: pass>>
        count = torch.tensor(float(sound))
        dist.all_reduce(count)
        for p, old, v in zip(self.params, self.old, self.velocity):
            mean = <<ADD: p.detach().clone() if sound else torch.zeros_like(p)>>
            <<REDUCE: dist.all_reduce(mean)>>
            mean /= <<COUNT: count>>
            gradient = <<GRADIENT: old - mean>>
            <<KEEP: v *= self.momentum>>
            v += gradient
            <<STEP: old -= self.lr * (gradient + self.momentum * v)>>
            p.data.copy_(<<NEW: old>>)
            <<LAST: pass>>
""",
        {
            "a rank that has lost its work comes": {
                "FIRST": "if not sound:\n            return"
            },
            "0 times nan is nan": {"ADD": "p.detach() * sound"},
            "weights that are lost": {"ADD": "p.detach().nan_to_num()"},
            "weights that are lost are": {
                "FIRST": "sound = not any(p.isnan().any() for p in self.params)"
            },
            "the rank that has lost its work gets": {"NEW": "old if sound else p.data"},
            "the ranks end with different": {"REDUCE": "pass", "COUNT": "1"},
            "this is the way uphill": {"GRADIENT": "mean - old"},
            "this is the mean itself": {"STEP": "old.copy_(mean)"},
            "momentum is missing": {"STEP": "old -= self.lr * gradient"},
            "v begins anew": {"KEEP": "v *= 0"},
            "this is momentum without": {"STEP": "old -= self.lr * v"},
            "old are the weights after": {
                "NEW": "old - self.lr * (gradient + self.momentum * v)",
                "STEP": "pass",
            },
            "divide by the number": {"COUNT": "dist.get_world_size()"},
            "gradient = old - mean": {"STEP": "old -= gradient + self.momentum * v"},
        },
    ),
    "ps8/epoch_loss": (
        """
def epoch_loss(sums, counts):
    total = torch.stack([<<SUM: sums.sum()>>, counts.sum().double()])
    <<REDUCE: dist.all_reduce(total)>>
    return total[0] / <<RESULT: total[1]>>
""",
        {
            "a collective is for all ranks": {
                "REDUCE": "len(sums) and dist.all_reduce(total)"
            },
            "this has to stay as it is": {
                "SUM": "(sums[0].add_(sums[1:].sum()) if len(sums) else sums.sum())"
            },
            "every rank needs the mean": {
                "RESULT": "total[1] if dist.get_rank() == 0 else None"
            },
            "every rank has the mean": {"REDUCE": "pass"},
            "this is the mean of the ranks' means": {
                "REDUCE": "total /= total[1].clone(); dist.all_reduce(total)"
            },
            "these agree to five digits": {"SUM": "sums.float().sum().double()"},
            "rank 0 has the mean": {"REDUCE": "dist.reduce(total, 0)"},
            "this is no mean over all rows": {"RESULT": "dist.get_world_size()"},
        },
    ),
}
