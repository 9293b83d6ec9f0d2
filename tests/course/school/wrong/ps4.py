"""Wrong answers to problem set 4: {exercise: (cell, {hint: changes})}."""

ALL = "dict(module.named_parameters(remove_duplicate=False)).values()"  # tied twice
RENEW = """for layer in module.modules():
        for name, p in list(layer.named_parameters(recurse=False)):
            new = p.detach().clone()
            dist.broadcast(new, 0)
            setattr(layer, name, nn.Parameter(new, requires_grad=p.requires_grad))"""
FLAT = """wanting = [p for p in module.parameters() if p.requires_grad]
    for p in wanting:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    flat = torch.cat([p.grad.flatten() for p in wanting]) / dist.get_world_size()
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat, [p.grad for p in wanting])
    return"""

WRONG = {
    "ps4/start_equal": (
        """
def start_equal(module):
    <<BEFORE: pass>>
    for t in <<TENSORS: [*module.parameters(), *module.buffers()]>>:
        <<SEND: dist.broadcast(t.detach(), 0)>>
""",
        {
            "every rank keeps its own": {
                "TENSORS": "[*module.parameters(), *module.buffers(recurse=False)]"
            },
            "rank 0's own numbers": {"SEND": "t.detach().zero_()"},
            "these have not moved": {"BEFORE": RENEW, "TENSORS": "module.buffers()"},
            "all ranks must call the same collectives": {
                "SEND": "dist.get_rank() or dist.broadcast(t.detach(), 0)"
            },
        },
    ),
    "ps4/average_gradients": (
        """
def average_gradients(module):
    <<BEFORE: pass>>
    for p in module.parameters():
        if <<WANTS: p.requires_grad>>:
            <<GRAD: p.grad = torch.zeros_like(p) if p.grad is None else p.grad>>
            <<SEND: dist.all_reduce(p.grad)>>
            <<MEAN: p.grad /= dist.get_world_size()>>
""",
        {
            "nothing was sent": {"SEND": "pass"},
            "this is one message for all": {"BEFORE": FLAT},
            "a gradient that is None is sent too": {"WANTS": "p.grad is not None"},
            "42 is the frozen weight": {"WANTS": "True"},
            "a parameter has gradient None": {"GRAD": "pass"},
            "this is None: a gradient": {"SEND": "p.grad = dist.all_reduce(p.grad)"},
            "the mean has to go to ranks": {
                "GRAD": "g = torch.zeros_like(p) if p.grad is None else p.grad",
                "SEND": "dist.all_reduce(g)",
                "MEAN": "g /= dist.get_world_size()",
            },
            "this is the sum over ranks": {"MEAN": "pass"},
        },
    ),
    "ps4/average_in_buckets": (
        """
def average_in_buckets(module, bucket_bytes):
    buckets, held = [[]], 0
    for p in <<ORDER: [p for p in module.parameters() if p.requires_grad][::-1]>>:
        size = <<SIZE: p.numel() * 8>>
        if <<FULL: held >= bucket_bytes>>:
            buckets.append([])
            held = <<RESET: 0>>
        buckets[-1].append(p)
        held += size
    for bucket in <<SENT: buckets>>:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
        dist.all_reduce(flat)
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = part.view(p.shape)
""",
        {
            "the last parameter's gradient is packed first": {
                "ORDER": "[p for p in module.parameters() if p.requires_grad]"
            },
            "the last bucket has to be sent": {
                "SENT": "buckets[:max(1, len(buckets) - 1)]"
            },
            "a bucket that holds exactly": {"FULL": "held > bucket_bytes"},
            "a gradient that does not fit": {
                "FULL": "buckets[-1] and held + size > bucket_bytes"
            },
            "bucket_bytes counts bytes": {"SIZE": "p.numel()"},
            "once a bucket is full": {"RESET": "held"},
        },
    ),
    "ps4/average_in_hooks": (
        """
def average_in_hooks(module):
    sent = []
    def finish():
        for handle, p in sent:
            <<WAIT: handle.wait()>>
            p.grad /= <<MEAN: dist.get_world_size()>>
        sent.clear()
    <<LATER: pass>>
    def send(p):
        <<FIRST: if not sent: torch.autograd.Variable._execution_engine.queue_callback(finish)>>
        sent.append((<<WORK: dist.all_reduce(p.grad, <<HOW: async_op=True>>)>>, p))
        <<AFTER: pass>>
    for p in <<PARAMS: module.parameters()>>:
        if <<WANTS: p.requires_grad>>:
            p.register_post_accumulate_grad_hook(<<HOOK: send>>)
""",
        {
            "all hooks reduce the same parameter": {"HOOK": "lambda _: send(p)"},
            "36 is the tied weight": {"PARAMS": ALL},
            "every rank stepped with its own": {
                "WORK": "dist.all_reduce(p.data, async_op=True)",
                "MEAN": "1; p.data /= dist.get_world_size()",
            },
            "a call without async_op=True": {"HOW": "async_op=False", "WAIT": "pass"},
            "all_reduce returns a handle": {"HOW": "async_op=False"},
            "some handles are waited for": {"AFTER": "sent[-1][0].wait()"},
            "an asynchronous call returns at once": {"WAIT": "pass"},
            "a frozen weight takes no hook": {"WANTS": "True"},
            "all are sent when backward is over": {
                "WORK": "None",
                "WAIT": "pass",
                "FIRST": "if not sent: torch.autograd.Variable._execution_engine."
                "queue_callback(later)",
                "LATER": "def later(): sent[:] = [(dist.all_reduce(p.grad, "
                "async_op=True), p) for _, p in sent]; [h.wait() for h, _ in sent]; finish()",
            },
            "the sum is there after wait()": {
                "AFTER": "p.grad /= dist.get_world_size()",
                "MEAN": "1",
            },
        },
    ),
    "ps4/DDP": (
        """
class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.sync = True
        <<START: start_equal(module)>>
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.average)

    def forward(self, X):
        <<FORWARD: return self.module(X)>>

    def average(self, p):
        if <<SYNC: self.sync>>:
            <<SEND: dist.all_reduce(p.grad)>>
            p.grad /= <<MEAN: dist.get_world_size()>>
        <<LATER: pass>>

    @contextmanager
    def no_sync(self):
        self.sync = <<QUIET: False>>
        <<TRY: try:>>
            yield
        <<OVER: finally:>>
            self.sync = True
""",
        {
            "every rank keeps its own": {"START": "pass"},
            "in no_sync nothing is sent": {"QUIET": "True"},
            "the gradients of several backwards": {
                "MEAN": "dist.get_world_size() * (getattr(p, 'count', 0) + 1); p.count = 0",
                "LATER": "p.count = getattr(p, 'count', 0) + (not self.sync)",
            },
            "only the newest gradient was averaged": {
                "SEND": "old = getattr(p, 'old', 0); new = p.grad - old; "
                "dist.all_reduce(new)",
                "MEAN": "1; p.grad = old + new / dist.get_world_size(); p.old = 0",
                "LATER": "p.old = 0 if self.sync else p.grad.clone()",
            },
            "only the newest gradient is there": {
                "LATER": "p.grad = p.grad if self.sync else None"
            },
            "a no_sync block that ended in an error": {"TRY": "if 1:", "OVER": "if 1:"},
            "what is raised in a no_sync block": {
                "OVER": "except InterruptedError: pass\n        if 1:"
            },
            "this backward stands outside": {
                "FORWARD": "self.send = self.sync; return self.module(X)",
                "SYNC": "self.send",
            },
        },
    ),
}
