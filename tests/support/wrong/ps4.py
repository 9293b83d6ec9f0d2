"""Wrong answers to problem set 4: {exercise: {mistake: (hint, cell)}}."""

ANSWERS = {
    "start_equal": {
        "does nothing": (
            "every rank keeps its own: was it sent? And written into the",
            """
def start_equal(module):
    pass
"""),
        "parameters, but not buffers": (
            "every rank keeps its own: buffers are sent too",
            """
def start_equal(module):
    for p in module.parameters():
        dist.broadcast(p.detach(), 0)
"""),
        "skips what is frozen": (
            "every rank keeps its own: frozen weights are sent too",
            """
def start_equal(module):
    for p in module.parameters():
        if p.requires_grad:
            dist.broadcast(p.detach(), 0)
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
"""),
        "skips buffers of whole numbers": (
            "every rank keeps its own: buffers are sent too",
            """
def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            dist.broadcast(tensor.detach(), 0)
"""),
        "rank 1's numbers": ("these are rank 1's", """
def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), min(1, dist.get_world_size() - 1))
"""),
        "the last rank's numbers": ("these are rank 1's", """
def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), dist.get_world_size() - 1)
"""),
        "the mean over ranks": ("this is the mean", """
def start_equal(module):
    for p in module.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
"""),
        "the sum over ranks": ("this is the sum", """
def start_equal(module):
    for p in module.parameters():
        dist.all_reduce(p.data)
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
"""),
        "sends a copy": (
            "every rank keeps its own: was it sent? And written into the",
            """
def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor = tensor.detach().clone()
        dist.broadcast(tensor, 0)
"""),
        "new parameters take the place of the old": (
            "the optimizer was made before",
            """
def start_equal(module):
    for layer in module.modules():
        for name, p in list(layer.named_parameters(recurse=False)):
            new = p.detach().clone()
            dist.broadcast(new, 0)
            setattr(layer, name, nn.Parameter(new, requires_grad=p.requires_grad))
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
"""),
        "thaws what is frozen": ("the optimizer was made before", """
def start_equal(module):
    for p in module.parameters():
        dist.broadcast(p.detach(), 0)
        p.requires_grad_()
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
"""),
        "one seed in place of a message": (
            "rank 0's own numbers must stay as they are",
            """
def start_equal(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.uniform_(-0.5, 0.5)
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
"""),
        "only rank 1 is sent something": ("some ranks keep their own", """
def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        if dist.get_rank() == 0 and dist.get_world_size() > 1:
            dist.send(tensor.detach(), 1)
        if dist.get_rank() == 1:
            dist.recv(tensor.detach(), 0)
"""),
        "only rank 0 calls broadcast": (
            "all ranks must call the same collectives in the same order",
            """
def start_equal(module):
    if dist.get_rank() == 0:
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)
"""),
        "a broadcast for the first layer only": (
            "every rank keeps its own: was it sent? And written into the",
            """
def start_equal(module):
    for tensor in [*module.first.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), 0)
"""),
        "zeros everywhere": ("rank 0's own numbers must stay as they are", """
def start_equal(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.detach().zero_()
"""),
    },
    "average_gradients": {
        "does nothing": ("nothing was sent", """
def average_gradients(module):
    pass
"""),
        "each rank keeps its own, after much talk": (
            "every rank stepped with its own gradient",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
"""),
        "the sum": ("this is the sum over ranks", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
"""),
        "divides twice": ("divided by the number of ranks twice", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
"""),
        "divides a new tensor that nobody sends": ("the ranks differ", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad.clone())
            p.grad = grad / dist.get_world_size()
"""),
        "averages the parameters": ("every rank stepped with its own gradient", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()
"""),
        "skips a gradient that is None": ("a gradient that is None is sent too", """
def average_gradients(module):
    for p in module.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
"""),
        "skips a gradient that is None on one rank only": (
            "all ranks must call the same collectives in the same order",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None and dist.get_rank() == 0:
                p.grad = torch.zeros_like(p)
            if p.grad is not None or p.shape == (1, 3):
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(grad)
                grad /= dist.get_world_size()
"""),
        "a barrier for rank 0 alone": (
            "all ranks must call the same collectives in the same order",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    if dist.get_rank() == 0:
        dist.barrier()
"""),
        "None is not foreseen": (
            "a parameter has gradient None on a rank whose rows did not use it",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
"""),
        "sends zeros for None, and drops the mean": (
            "the mean has to go to ranks that had no gradient",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
"""),
        "the mean over those who have one": (
            "ranks that had no gradient count in the mean",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            have = torch.tensor([float(p.grad is not None)])
            dist.distributed_c10d.all_reduce(have)
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= max(1, have.item())
"""),
        "the last parameter forgotten": ("left out: last.bias", """
def average_gradients(module):
    for p in [p for p in module.parameters() if p.requires_grad][:-1]:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
"""),
        "weights only, no biases": ("left out: first.bias, frozen.bias, last.bias", """
def average_gradients(module):
    for name, p in module.named_parameters():
        if p.requires_grad and name.endswith("weight"):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
"""),
        "the tied weight twice": ("36 is the tied weight", """
def average_gradients(module):
    for layer in module.modules():
        for p in layer.parameters(recurse=False):
            if p.requires_grad:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
"""),
        "the frozen weight, too": ("42 is the frozen weight", """
def average_gradients(module):
    for p in module.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
"""),
        "rank 0's gradient for all": ("every rank has rank 0's gradient", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if dist.get_rank() > 0:
                p.grad.zero_()
            dist.all_reduce(p.grad)
"""),
        "rank 0's, by broadcast": ("of dist, all_reduce is all that is needed", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.broadcast(p.grad, 0)
"""),
        "the largest in place of the mean": ("this is the largest", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)
"""),
        "only the sign, as Adam nearly does": ("every number has moved by lr", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad.sign_()
"""),
        "only rank 0 gets the mean": ("the ranks differ", """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            grad = p.grad.clone()
            dist.all_reduce(grad)
            if dist.get_rank() == 0:
                p.grad = grad / dist.get_world_size()
"""),
        "all in one": ("these are packed", """
def average_gradients(module):
    params = [p for p in module.parameters() if p.requires_grad]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
    dist.all_reduce(flat)
    for p, part in zip(params, flat.split([p.numel() for p in params])):
        p.grad = part.view(p.shape)
"""),
        "in another order on each rank": (
            "all ranks must call the same collectives in the same order",
            """
def average_gradients(module):
    params = [p for p in module.parameters() if p.requires_grad]
    for p in params[::-1] if dist.get_rank() else params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
"""),
        "divided by the number of parameters": ("the step is 0.125 times", """
def average_gradients(module):
    params = [p for p in module.parameters() if p.requires_grad]
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= len(params)
"""),
    },
}

# right answers, in which one part at a time is made wrong
BUCKETS = """
def average_in_buckets(module, bucket_bytes):
    buckets, room = [], 0
    for p in reversed([p for p in module.parameters() if p.requires_grad]):
        size = p.numel() * p.element_size()
        if not buckets or size > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= size
    for bucket in buckets:
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = part.view(p.shape)
"""
HOOKS = """
def average_in_hooks(module):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(average)
"""
WRAPPER = """
class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.sync = True
        start_equal(module)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.average)

    def forward(self, X):
        return self.module(X)

    def average(self, p):
        if self.sync:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    @contextmanager
    def no_sync(self):
        self.sync = False
        try:
            yield
        finally:
            self.sync = True
"""


def _change(answer, *changes):
    for old, new in zip(changes[::2], changes[1::2]):
        if old not in answer:
            raise ValueError(f"{old!r} is not in the answer")
        answer = answer.replace(old, new)
    return answer


SEND = "dist.all_reduce(flat)"
MEAN = "flat /= dist.get_world_size()"
HALF = "p.grad /= dist.get_world_size()"
WANTS = "        if p.requires_grad:\n"

ANSWERS["average_in_buckets"] = {
    name: (hint, _change(BUCKETS, *changes)) for name, (hint, *changes) in {
    "does nothing": ("nothing was sent", "for bucket in buckets:", "for bucket in []:"),
    "one bucket for all": ("one bucket for all", "size > room", "False"),
    "nothing is packed into the bucket": (
        "nothing has moved",
        "flat = torch.cat([grad.flatten() "
        "for grad in grads])",
        "flat = p.new_zeros(sum(map(torch.numel, "
        "grads)))"),
    "the buckets in the order of the layers": (
        "the last parameter's gradient is packed first",
        "for bucket in buckets:",
        "for bucket in buckets[::-1]:"),
    "one all-reduce a parameter": (
        "one all-reduce for each parameter",
        "size > room", "True"),
    "the first layer first": (
        "the last parameter's gradient is packed first",
        "reversed([p for p in module.parameters() "
        "if p.requires_grad])",
        "[p for p in module.parameters() if p.requires_grad]"),
    "the first bucket never sent": (
        "the first bucket is left out",
        "for bucket in buckets",
        "for bucket in buckets[1:]"),
    "the last bucket never sent": (
        "the last bucket has to be sent too",
        "for bucket in buckets",
        "for bucket in buckets[:max(1, len(buckets) - 1)]"),
    "closes once it is full, as lesson 09's": (
        "these buckets close once they are full",
        "size > room", "room <= 0"),
    "exactly full is too full": (
        "exactly so many bytes still fit",
        "size > room", "size >= room"),
    "counts numbers, not bytes": (
        "bucket_bytes counts bytes: a number has 8",
        "p.numel() * p.element_size()", "p.numel()"),
    "counts four bytes a number": (
        "bucket_bytes counts bytes, and a float64 has 8 of them, not 4",
        "p.element_size()", "4"),
    "the sum": ("this is the sum over ranks", MEAN, "pass"),
    "divides twice": (
        "divided by the number of ranks twice",
        SEND, "flat /= dist.get_world_size(); dist.all_reduce(flat)"),
    "cut in another order than packed": (
        "the right numbers in the wrong places",
        "zip(bucket, flat.split([p.numel() for p in bucket]))",
        "zip(bucket[::-1], flat.split([p.numel() for p in bucket[::-1]]))"),
    "every gradient is cut from the front": (
        "no row's loss depends on these numbers",
        "zip(bucket, flat.split([p.numel() for p in bucket]))",
        "zip(bucket, [flat[:p.numel()] for p in bucket])"),
    "never copied back": (
        "every rank stepped with its own gradient",
        "p.grad = part.view(p.shape)", "part.view(p.shape)"),
    "copied back into copies": (
        "every rank stepped with its own gradient",
        "p.grad = part.view(p.shape)",
        "None if p.grad is None else "
        "p.grad.clone().copy_(part.view(p.shape))"),
    "only where there was a gradient": (
        "the mean has to go to ranks that had no gradient",
        "p.grad = part.view(p.shape)",
        "p.grad = None if p.grad is None else part.view(p.shape)"),
    "leaves out what is None": (
        "a gradient that is None is packed too",
        "if p.requires_grad", "if p.grad is not None"),
    "None is not foreseen": (
        "a parameter has gradient None on a rank whose rows did not use it",
        "torch.zeros_like(p) if p.grad is None else p.grad",
        "p.grad"),
    "frozen weights are packed": (
        "42 more than wanted is the frozen weight",
        " if p.requires_grad", ""),
    "the tied weight is packed twice": (
        "36 more than wanted is the tied weight",
        "module.parameters()", "dict(module.named_parameters(remove_duplicate=False))"
                               ".values()"),
    "packs the parameters": (
        "p was averaged in place of p.grad",
        "if p.grad is None else p.grad",
        "if p.grad is None else p.detach()"),
    "rounded to float32": (
        "these agree to five digits",
        "for grad in grads])", "for grad in grads]).float()",
        "part.view(p.shape)", "part.view(p.shape).double()"),
    "sends one bucket again and again": (
        "the ranks differ",
        SEND, "dist.all_reduce(flat) if bucket is "
              "buckets[0] else dist.all_reduce("
              "flat.clone())"),
    "starts the all-reduce and does not use it": (
        "the ranks differ",
        SEND, "dist.all_reduce(flat.clone(), async_op=True).wait()"),
}.items()}

ANSWERS["average_in_hooks"] = {
    name: (hint, _change(HOOKS, *changes)) for name, (hint, *changes) in {
    "no hook": (
        "nothing was sent",
        "register_post_accumulate_grad_hook(average)", "grad"),
    "reduces the parameter it is handed": (
        "every rank stepped with its own gradient",
        "dist.all_reduce(p.grad)\n        " + HALF,
        "dist.all_reduce(p.data)\n        p.data /= dist.get_world_size()"),
    "reduces the parameter, divides the gradient": (
        "the parameter itself was summed over ranks",
        "dist.all_reduce(p.grad)",
        "dist.all_reduce(p.data)"),
    "the sum": ("this is the sum over ranks", HALF, "pass"),
    "divides twice": (
        "divided by the number of ranks twice",
        "dist.all_reduce(p.grad)", HALF + "\n        "
        "dist.all_reduce(p.grad)"),
    "rebinds to a tensor that nobody sends": (
        "the ranks differ",
        "dist.all_reduce(p.grad)", "dist.all_reduce(p.grad.clone())"),
    "the mean goes nowhere": (
        "this is the sum over ranks",
        HALF, "grad = p.grad / dist.get_world_size()"),
    "averages before backward": (
        "nothing was sent",
        HOOKS[HOOKS.index("    for p in"):], """
    def before(*_):
        for p in module.parameters():
            if p.grad is not None:
                average(p)
    module.register_forward_pre_hook(before)
"""),
    "a hook on the module, which comes too early": (
        "nothing was sent",
        HOOKS[HOOKS.index("    for p in"):], """
    def after(*_):
        for p in module.parameters():
            if p.grad is not None:
                average(p)
    module.register_full_backward_hook(after)
"""),
    "averages at once, before there are gradients": (
        "nothing was sent",
        "p.register_post_accumulate_grad_hook(average)",
        "p.grad is None or average(p)"),
    "looks at the loop's last parameter": (
        "all hooks reduce the same parameter",
        "register_post_accumulate_grad_hook(average)",
        "register_post_accumulate_grad_hook(lambda _: average(p))"),
    "the first parameter forgotten": (
        "left out: first.weight",
        "in module.parameters()",
        "in list(module.parameters())[1:]"),
    "weights only, no biases": (
        "left out: first.bias, frozen.bias, last.bias",
        "if p.requires_grad",
        "if p.dim() > 1 and p.requires_grad"),
    "a hook on what is frozen": (
        "what is frozen wants no gradient",
        WANTS, "        if True:\n"),
    "two hooks on the tied weight": (
        "36 is the tied weight",
        "module.parameters()", "dict(module.named_parameters(remove_duplicate=False))"
                               ".values()"),
    "rank 0's gradient for all": (
        "of dist, all_reduce is all that is needed",
        HALF, "p.grad", "dist.all_reduce(p.grad)",
        "dist.broadcast(p.grad, 0)"),
    "the last rank left out": (
        "the last rank is left out",
        "dist.all_reduce(p.grad)",
        "p.grad.mul_(dist.get_rank() < max(1, "
        "dist.get_world_size() - 1)); dist.all_reduce(p.grad)"),
    "only rank 0's hook sends": (
        "all ranks must call the same collectives in the same order",
        "dist.all_reduce(p.grad)",
        "dist.get_rank() or dist.all_reduce(p.grad)"),
    "a hook that reduces what it is handed": (
        "the parameter itself was summed over ranks",
        "    def average(p):\n        dist.all_reduce(p.grad)\n        " + HALF,
        "    def average(grad):\n        dist.all_reduce(grad.detach())"),
    "only the sign, as Adam nearly does": (
        "every number has moved by lr",
        HALF, "p.grad.sign_()"),
}.items()}

ANSWERS["DDP"] = {
    name: (hint, _change(WRAPPER, *changes)) for name, (hint, *changes) in {
    "starts from its own numbers": (
        "every rank keeps its own",
        "start_equal(module)", "pass"),
    "no hook": (
        "nothing was sent",
        "register_post_accumulate_grad_hook(self.average)", "grad"),
    "the sum": ("this is the sum over ranks", HALF, "pass"),
    "divides by 2": ("the step is 0.5 times", HALF, "p.grad /= 2"),
    "no_sync still sends": ("in no_sync nothing is sent", "self.sync = False", "pass"),
    "no_sync divides, though it does not send": (
        "in no_sync a gradient stays",
        "            p.grad /= dist", "        p.grad /= dist"),
    "no_sync is never over": (
        "nothing was sent",
        "finally:\n            self.sync = True",
        "finally:\n            pass"),
    "no_sync is not over after an error": (
        "a no_sync block that ended in an error before this step is still in force",
        "try:\n            yield\n        finally:\n            self.sync = True",
        "yield\n        self.sync = True"),
    "no_sync loses what was added up": (
        "what was added up in no_sync is lost",
        "finally:\n            self.sync = True",
        "finally:\n            self.sync = True\n"
        "            for p in self.module.parameters():\n                p.grad = None"),
    "no_sync divides by 2": (
        "what was added up in no_sync was divided by 2",
        "finally:\n            self.sync = True",
        "finally:\n            self.sync = True\n"
        "            for p in self.module.parameters():\n"
        "                if p.grad is not None:\n                    p.grad /= 2"),
    "no_sync averages at its end": (
        "in no_sync nothing is sent",
        "finally:\n            self.sync = True",
        "finally:\n            self.sync = True\n"
        "            for p in self.module.parameters():\n"
        "                if p.grad is not None:\n                    self.average(p)"),
    "each backward in no_sync replaces the last": (
        "gradients add up",
        "        if self.sync:\n            dist.all_reduce(p.grad)",
        "        if not self.sync:\n"
        "            p.grad = p.grad - getattr(p, 'old', 0 * p.grad)\n"
        "            p.old = p.grad.clone()\n"
        "        else:\n            dist.all_reduce(p.grad)"),
    "averages only the last backward": (
        "only the last backward's gradient is averaged",
        "if p.requires_grad:\n                p.register_post_accumulate_grad_hook("
        "self.average)",
        "if p.requires_grad:\n                p.register_hook(self.average)",
        "def average(self, p):\n        if self.sync:\n            "
        "dist.all_reduce(p.grad)\n            " + HALF,
        "def average(self, grad):\n        if self.sync:\n            "
        "grad = grad / dist.get_world_size()\n            dist.all_reduce(grad)\n"
        "        return grad"),
    "divides by the number of backwards": (
        "divided by the number of backwards",
        "self.sync = True\n        start_equal", "self.sync = True\n        "
        "self.count, self.ended = 0, True\n        start_equal",
        "def forward(self, X):\n",
        "def forward(self, X):\n"
        "        self.count = 1 if self.ended else self.count + 1\n"
        "        self.ended = self.sync\n",
        HALF, HALF + " * self.count"),
    "registers its hooks in every forward": (
        "some are sent more than once",
        "        for p in module.parameters():\n            if p.requires_grad:\n"
        "                p.register_post_accumulate_grad_hook(self.average)\n", "",
        "return self.module(X)",
        "[p.register_post_accumulate_grad_hook(self.average) "
        "for p in self.module.parameters() if p.requires_grad]\n"
        "        return self.module(X)"),
    "makes the ranks' weights equal again in no_sync only": (
        "in no_sync nothing is sent",
        "start_equal(module)", "pass", "self.sync = False",
        "self.sync = False\n        start_equal(self.module)"),
    "reduces the parameter": (
        "the parameter itself was summed over ranks",
        "dist.all_reduce(p.grad)", "dist.all_reduce(p.data)"),
    "quiet on rank 0 only": (
        "all ranks must call the same collectives in the same order",
        "self.sync = False", "self.sync = dist.get_rank() > 0"),
    "always quiet": ("nothing was sent", "self.sync = True", "self.sync = False"),
    "averages in forward, one backward late": (
        "nothing was sent",
        "        for p in module.parameters():\n            if p.requires_grad:\n"
        "                p.register_post_accumulate_grad_hook(self.average)\n", "",
        "return self.module(X)",
        "[self.average(p) for p in self.module.parameters() if p.grad is not None]\n"
        "        return self.module(X)"),
}.items()}
