"""Right answers to problem set 4, by style: {exercise: {style: cell}}."""

EQUAL = """
def start_equal(module):
    for t in [*module.parameters(), *module.buffers()]:
        dist.broadcast(t.detach(), 0)
"""
AVERAGE = """
def average_gradients(module):
    n = dist.get_world_size()
    for p in module.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad.div_(n)
"""
BUCKETS = """
def average_in_buckets(module, bucket_bytes):
    params = [p for p in module.parameters() if p.requires_grad][::-1]
    PACK
    for bucket in buckets:
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1)
                          for p in bucket])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        UNPACK
"""
PACK = """buckets, used = [[]], 0
    for p in params:
        size = p.numel() * p.element_size()
        if buckets[-1] and used + size > bucket_bytes:
            buckets.append([])
            used = 0
        buckets[-1].append(p)
        used += size"""
UNPACK = """for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            p.grad = part.reshape(p.shape).clone()"""
HOOKS = """
def average_in_hooks(module):
    def hook(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
"""
WRAPPER = """
class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.sync = module, True
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
TRIED = """
def try_it(rank_seed=0):
    torch.manual_seed(dist.get_rank())
    module = nn.Linear(2, 1).double()
    CALL
    return [p.detach() for p in module.parameters()]

results = run_ranks(try_it, 2)
print(results[0], largest_difference(*results))
"""


def _buckets(pack=PACK, unpack=UNPACK, after=""):
    return BUCKETS.replace("UNPACK", unpack).replace("PACK", pack) + after


ANSWERS = {
    "start_equal": {
        "both lists, one after the other": """
def start_equal(module):
    for p in module.parameters():
        dist.broadcast(p.detach(), src=0)
    for b in module.buffers():
        dist.broadcast(b, src=0)
""",
        "itertools.chain and .data": """
import itertools
def start_equal(module):
    for t in itertools.chain(module.parameters(), module.buffers()):
        dist.broadcast(t.data, 0)
""",
        "through a new tensor": """
def start_equal(module):
    with torch.no_grad():
        for t in list(module.parameters()) + list(module.buffers()):
            message = t.detach().clone()
            dist.broadcast(message, 0)
            t.copy_(message)
""",
        "by names": """
def start_equal(module):
    tensors = dict(module.named_parameters())
    tensors.update(module.named_buffers())
    for name in sorted(tensors):
        dist.broadcast(tensors[name].detach(), 0)
""",
        "zeros, and a sum": """
@torch.no_grad()
def start_equal(module):
    for t in [*module.parameters(), *module.buffers()]:
        if dist.get_rank() != 0:
            t.zero_()
        dist.all_reduce(t.detach())
""",
        "tried in its cell": EQUAL + TRIED.replace("CALL", "start_equal(module)") + """
with trace.all_reduces() as sizes:
    pass
LeNet
check("ps4/start_equal", start_equal)
""",
        "with help": EQUAL + "\nstart_equal?\n!ls\ndisplay(LeNet().params[1].shape)\n",
    },
    "average_gradients": {
        "continue for what is frozen": AVERAGE,
        "a list first": """
def average_gradients(module):
    wanting = [p for p in module.parameters() if p.requires_grad]
    for p in wanting:
        p.grad = p.grad if p.grad is not None else torch.zeros_like(p)
    for p in wanting:
        dist.all_reduce(p.grad)
    for p in wanting:
        p.grad = p.grad / dist.get_world_size()
""",
        "a new tensor as the gradient": """
def average_gradients(module):
    for p in module.parameters():
        if p.requires_grad:
            g = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            dist.all_reduce(g)
            p.grad = g.div(dist.get_world_size())
""",
        "divided before it is sent": """
def average_gradients(module):
    for name, p in module.named_parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = p.detach() * 0
            p.grad *= 1 / dist.get_world_size()
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
""",
        "filter and a helper": """
def mean_over_ranks(t):
    dist.all_reduce(t)
    return t / dist.get_world_size()

def average_gradients(module):
    for p in filter(lambda p: p.requires_grad, module.parameters()):
        grad = p.grad
        if grad is None:
            grad = p.new_zeros(p.shape)
        p.grad = mean_over_ranks(grad.contiguous())
""",
        "with a barrier": """
def average_gradients(module):
    dist.barrier()
    for p in reversed(list(module.parameters())):
        if p.requires_grad:
            p.grad = torch.zeros_like(p.data) if p.grad is None else p.grad
            dist.all_reduce(tensor=p.grad.data)
            p.grad.data.div_(dist.get_world_size())
""",
        "async, then waited for": """
def average_gradients(module):
    works = []
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            works.append((p, dist.all_reduce(p.grad, async_op=True)))
    for p, work in works:
        work.wait()
        p.grad /= dist.get_world_size()
""",
        "tried in its cell": AVERAGE + TRIED.replace(
            "CALL", "module(torch.ones(1, 2).double()).sum().backward(); "
            "average_gradients(module)"),
    },
    "average_in_buckets": {
        "room that is used up": _buckets(),
        "copied into the gradients": _buckets(unpack="""start = 0
        for p in bucket:
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(flat[start:start + p.numel()].view_as(p))
            start += p.numel()"""),
        "sums of sizes": _buckets(pack="""buckets = []
    for p in params:
        def size(ps):
            return sum(8 * q.numel() for q in ps)
        if buckets and size(buckets[-1]) + size([p]) <= bucket_bytes:
            buckets[-1].append(p)
        else:
            buckets.append([p])"""),
        "torch's helpers": """
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

def average_in_buckets(module, bucket_bytes):
    def send(bucket):
        flat = _flatten_dense_tensors([p.grad for p in bucket])
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for p, g in zip(bucket, _unflatten_dense_tensors(flat, [p.grad for p in bucket])):
            p.grad.copy_(g)
    bucket, size = [], 0
    for p in reversed(list(module.parameters())):
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if bucket and size + p.grad.nbytes > bucket_bytes:
            send(bucket)
            bucket, size = [], 0
        bucket.append(p)
        size += p.grad.nbytes
    if bucket:
        send(bucket)
""",
        "a generator of buckets": """
def buckets_of(params, most):
    bucket = []
    for p in params:
        if bucket and sum(q.numel() for q in bucket + [p]) * 8 > most:
            yield bucket
            bucket = []
        bucket.append(p)
    yield bucket

def average_in_buckets(module, bucket_bytes):
    params = [p for p in module.parameters() if p.requires_grad]
    for bucket in buckets_of(params[::-1], bucket_bytes):
        flat = torch.zeros(sum(p.numel() for p in bucket), dtype=bucket[0].dtype)
        views = flat.split([p.numel() for p in bucket])
        for view, p in zip(views, bucket):
            if p.grad is not None:
                view.copy_(p.grad.flatten())
        dist.all_reduce(flat)
        for view, p in zip(views, bucket):
            p.grad = (view / dist.get_world_size()).view_as(p)
""",
        "tried in its cell": _buckets(after=TRIED.replace(
            "CALL", "module(torch.ones(1, 2).double()).sum().backward(); "
            "average_in_buckets(module, 8)")),
    },
    "average_in_hooks": {
        "one function for all": HOOKS,
        "a lambda with a tuple": """
def average_in_hooks(module):
    n = dist.get_world_size()
    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(
                lambda q: (dist.all_reduce(q.grad), q.grad.div_(n), None)[-1])
""",
        "a function outside": """
def _average(p):
    dist.all_reduce(p.grad)
    p.grad = p.grad / dist.get_world_size()

def average_in_hooks(module):
    for _, p in module.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(_average)
""",
        "functools.partial": """
from functools import partial
def average(n, p):
    p.grad /= n
    dist.all_reduce(p.grad)
def average_in_hooks(module):
    [p.register_post_accumulate_grad_hook(partial(average, dist.get_world_size()))
     for p in module.parameters() if p.requires_grad]
""",
        "a factory": """
def average_in_hooks(module):
    def make(n):
        @torch.no_grad()
        def hook(param):
            dist.all_reduce(param.grad)
            param.grad.mul_(1.0 / n)
        return hook
    for p in filter(lambda p: p.requires_grad, module.parameters()):
        p.register_post_accumulate_grad_hook(make(dist.get_world_size()))
""",
        "tried in its cell": HOOKS + TRIED.replace(
            "CALL", "average_in_hooks(module); "
            "module(torch.ones(1, 2).double()).sum().backward()"),
    },
    "DDP": {
        "a flag": WRAPPER,
        "a counter": WRAPPER.replace("self.module, self.sync = module, True",
                                     "self.module, self.quiet = module, 0")
        .replace("if self.sync:", "if self.quiet == 0:")
        .replace("self.sync = False", "self.quiet += 1")
        .replace("self.sync = True", "self.quiet -= 1"),
        "without start_equal": WRAPPER.replace("        start_equal(module)\n", """\
        for t in [*module.parameters(), *module.buffers()]:
            dist.broadcast(t.detach(), 0)
"""),
        "a context of its own": WRAPPER.partition("    @contextmanager")[0] + """
    def no_sync(self):
        wrapper = self
        class Quiet:
            def __enter__(self):
                wrapper.sync = False
            def __exit__(self, *error):
                wrapper.sync = True
        return Quiet()
""",
        "*args, and super in the old way": WRAPPER.replace(
            "super().__init__()", "super(DDP, self).__init__()").replace(
            "def forward(self, X):\n        return self.module(X)",
            "def forward(self, *args, **kwargs):\n        return self.module(*args, **kwargs)"),
        "a helper outside": """
def mean(t):
    dist.all_reduce(t)
    t /= dist.get_world_size()
""" + WRAPPER.replace("""\
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
""", "            mean(p.grad)\n"),
        "tried in its cell": WRAPPER + TRIED.replace(
            "CALL", "DDP(module)(torch.ones(1, 2).double()).sum().backward()") + """
model = LeNet(init_params("he", torch.Generator().manual_seed(0), torch.float64))
display(sum(p.numel() for p in model.parameters()))
check("ps4/DDP", DDP)
""",
    },
}
