"""Wrong answers to problem set 4: {exercise: (cell, places, {hint: changes})}."""

ALL = "dict(module.named_parameters(remove_duplicate=False)).values()"  # tied twice
RENEW = """for layer in module.modules():
        for name, p in list(layer.named_parameters(recurse=False)):
            new = p.detach().clone()
            dist.broadcast(new, 0)
            setattr(layer, name, nn.Parameter(new, requires_grad=p.requires_grad))"""
LAST = """def average(self, grad):
        if self.sync:
            grad = grad / dist.get_world_size()
            dist.all_reduce(grad)
        return grad"""

WRONG = {
    "ps4/start_equal": ("""
def start_equal(module):
    BEFORE
    for t in TENSORS:
        SEND
""", {"BEFORE": "pass", "TENSORS": "[*module.parameters(), *module.buffers()]",
      "SEND": "dist.broadcast(t.detach(), 0)"}, {
        "every rank keeps its own: was it sent?": {
            "SEND": "dist.broadcast(t.detach().clone(), 0)"},
        "every rank keeps its own: buffers": {
            "TENSORS": "[*module.parameters(), *module.buffers(recurse=False)]"},
        "every rank keeps its own: frozen": {
            "TENSORS": "[t for t in module.parameters() if t.requires_grad]"},
        "rank 0's own numbers": {"SEND": "t.detach().zero_()"},
        "these have not moved": {"BEFORE": RENEW, "TENSORS": "module.buffers()"},
        "all ranks must call the same collectives": {
            "SEND": "dist.get_rank() or dist.broadcast(t.detach(), 0)"},
    }),
    "ps4/average_gradients": ("""
def average_gradients(module):
    for p in PARAMS:
        if WANTS:
            GRAD
            SEND
            MEAN
""", {"PARAMS": "module.parameters()", "WANTS": "p.requires_grad",
      "GRAD": "p.grad = torch.zeros_like(p) if p.grad is None else p.grad",
      "SEND": "dist.all_reduce(p.grad)", "MEAN": "p.grad /= dist.get_world_size()"}, {
        "nothing was sent": {"SEND": "pass"},
        "36 is the tied weight": {"PARAMS": ALL},
        "a gradient that is None is sent too": {"WANTS": "p.grad is not None"},
        "some are not sent at all": {"PARAMS": "list(module.parameters())[:-1]"},
        "a parameter has gradient None": {"GRAD": "pass"},
        "all ranks must call the same collectives": {
            "SEND": "dist.get_rank() or dist.all_reduce(p.grad)"},
        "these have not moved": {"MEAN": "p.grad.zero_()"},
        "every rank stepped with its own gradient": {
            "SEND": "dist.all_reduce(p.grad.clone())", "MEAN": "pass"},
        "the mean has to go to ranks": {
            "GRAD": "g = torch.zeros_like(p) if p.grad is None else p.grad",
            "SEND": "dist.all_reduce(g)", "MEAN": "g /= dist.get_world_size()"},
        "this is the sum over ranks": {"MEAN": "pass"},
        "the step has the right direction": {"MEAN": "p.grad /= 8"},
    }),
    "ps4/average_in_buckets": ("""
def average_in_buckets(module, bucket_bytes):
    buckets, room = [], 0
    for p in ORDER:
        size = SIZE
        if not buckets or FULL:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= size
    for bucket in SENT:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.flatten() for grad in grads]).to(FORM)
        dist.all_reduce(flat)
        flat = (flat / dist.get_world_size()).double()
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            BACK
""", {
      "ORDER": "[p for p in module.parameters() if WANTS][::-1]",
      "WANTS": "p.requires_grad", "SIZE": "p.numel() * 8", "FULL": "size > room",
      "SENT": "buckets", "FORM": "torch.float64", "BACK": "p.grad = part.view(p.shape)"}, {
        "nothing was sent": {"SENT": "[]"},
        "the last parameter's gradient is packed first": {
            "ORDER": "[p for p in module.parameters() if p.requires_grad]"},
        "the last bucket has to be sent too": {
            "SENT": "buckets[:max(1, len(buckets) - 1)]"},
        "these buckets close once they are full": {"FULL": "room <= 0"},
        "exactly so many bytes still fit": {"FULL": "size >= room"},
        "bucket_bytes counts bytes": {"SIZE": "p.numel()"},
        "a gradient that is None is packed too": {"WANTS": "p.grad is not None"},
        "every rank stepped with its own gradient": {"BACK": "part.view(p.shape)"},
        "these agree to five digits": {"FORM": "torch.float32"},
    }),
    "ps4/average_in_hooks": ("""
def average_in_hooks(module):
    def average(p):
        WORK
    for p in PARAMS:
        if WANTS:
            HOOK
""", {"WORK": "dist.all_reduce(SUMMED); p.grad /= dist.get_world_size()",
      "SUMMED": "p.grad", "PARAMS": "module.parameters()", "WANTS": "p.requires_grad",
      "HOOK": "p.register_post_accumulate_grad_hook(average)"}, {
        "nothing was sent": {"HOOK": "p.grad"},
        "all hooks reduce the same parameter": {
            "HOOK": "p.register_post_accumulate_grad_hook(lambda _: average(p))"},
        "36 is the tied weight": {"PARAMS": ALL},
        "what is frozen wants no gradient": {"WANTS": "True"},
        "the parameter itself was summed": {"SUMMED": "p.data"},
        "every rank stepped with its own gradient": {
            "WORK": "dist.all_reduce(p.data); p.data /= dist.get_world_size()"},
    }),
    "ps4/DDP": ("""
class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.sync = True
        START
        for p in module.parameters():
            if p.requires_grad:
                p.HOOK(self.average)

    def forward(self, X):
        return self.module(X)

    AVERAGE

    @contextmanager
    def no_sync(self):
        self.sync = QUIET
        try:
            yield
        OVER
            self.sync = True
            AFTER
""", {"START": "start_equal(module)", "HOOK": "register_post_accumulate_grad_hook",
      "AVERAGE": """def average(self, p):
        if self.sync:
            dist.all_reduce(p.grad)
            MEAN""", "MEAN": "p.grad /= dist.get_world_size()", "QUIET": "False",
      "OVER": "finally:", "AFTER": "pass"}, {
        "every rank keeps its own: was it sent?": {"START": "pass"},
        "this is the sum over ranks": {"MEAN": "pass"},
        "in no_sync nothing is sent": {"QUIET": "True"},
        "a no_sync block that ended in an error": {"OVER": "finally:\n            pass\n"
                                                           "        if True:"},
        "an error that ends the block": {"AFTER": "return"},
        "what was added up in no_sync is lost": {"AFTER": "self.zero_grad()"},
        "only the last backward's gradient is averaged": {
            "HOOK": "register_hook", "AVERAGE": LAST},
    }),
}
