"""Right answers to problem set 4, by style: {exercise: {style: cell}}."""

from tests.course.school.right import changed

RIGHT = {
    "ps4/start_equal": {
        "asynchronous, all waited for at the end": """
def start_equal(module):
    tensors = [t.detach() for t in (*module.parameters(), *module.buffers())]
    for work in [dist.broadcast(t, src=0, async_op=True) for t in tensors]:
        work.wait()
""",
        "a list of objects, copied in": """
@torch.no_grad()
def start_equal(module):
    tensors = list(module.parameters()) + list(module.buffers())
    box = [[t.detach().clone() for t in tensors] if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    [mine.copy_(theirs) for mine, theirs in zip(tensors, box[0])]
""",
    },
    "ps4/average_gradients": {
        "asynchronous, divided together, from the last to the first": """
def average_gradients(module):
    wanting = [p for p in module.parameters() if p.requires_grad][::-1]
    for p in wanting:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    works = [dist.all_reduce(p.grad, async_op=True) for p in wanting]
    [work.wait() for work in works]
    torch._foreach_div_([p.grad for p in wanting], dist.get_world_size())
""",
        "divided first, with a barrier before and after": changed(
            "ps4/average_gradients",
            ("    for p", "    dist.barrier()\n    for p"),
            SEND="p.grad = p.grad / dist.get_world_size()",
            MEAN="dist.all_reduce(op=dist.ReduceOp.SUM, tensor=p.grad)",
        )
        + """\
    dist.barrier()
""",
    },
    "ps4/average_in_buckets": {
        "sent at once, cut when all have come": changed(
            "ps4/average_in_buckets",
            ("held = [[]], 0", "held, flying = [[]], 0, []"),
            (
                "dist.all_reduce(flat)\n",
                "flying.append((bucket, flat, dist.all_reduce(flat, async_op=True)))\n"
                "    for bucket, flat, work in flying:\n        work.wait()\n",
            ),
        ),
        "torch cuts a bucket": changed(
            "ps4/average_in_buckets",
            (
                "for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):",
                "for p, grad in zip(bucket, grads):",
            ),
            (
                "p.grad = part.view(p.shape)",
                """p.grad = grad
        torch.nn.utils.vector_to_parameters(flat, [p.grad for p in bucket])""",
            ),
        ),
    },
    "ps4/average_in_hooks": {
        "divided before it is sent, waited for from the last": """
from torch.autograd import Variable
def average_in_hooks(module):
    flying = []
    def finish():
        while flying:
            flying.pop().wait()
    def send(p):
        flying or Variable._execution_engine.queue_callback(finish)
        p.grad /= dist.get_world_size()
        flying.append(dist.all_reduce(p.grad, async_op=True))
    for p in module.parameters():
        p.requires_grad and p.register_post_accumulate_grad_hook(send)
""",
        "on the nodes that add gradients up, with futures": """
def average_in_hooks(module):
    module.nodes = [p.expand_as(p).grad_fn.next_functions[0][0]
                    for p in module.parameters() if p.requires_grad]
    futures = []
    def send(p):
        p.grad.div_(dist.get_world_size())
        work = dist.all_reduce(p.grad, async_op=True)
        futures.append(work)
        if len(futures) == len(module.nodes):
            torch.futures.wait_all([work.get_future() for work in futures])
            futures.clear()
    for node in module.nodes:
        node.register_hook(lambda *_, p=node.variable: send(p))
""",
    },
    "ps4/DDP": {
        "a counter of blocks, and it is its own block": """
class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.blocks = module, 0
        start_equal(self.module)
        for p in self.module.parameters():
            p.requires_grad and p.register_post_accumulate_grad_hook(self.average)
    def forward(self, *args, **kwargs): return self.module(*args, **kwargs)
    def average(self, p):
        self.blocks or dist.all_reduce(p.grad.div_(dist.get_world_size()))
    def no_sync(self): return self
    def __enter__(self): self.blocks += 1
    def __exit__(self, kind, error, trace): self.blocks -= 1
""",
        "hooks that come off while it is quiet": """
class DDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        [dist.broadcast(t.data, 0) for t in [*module.parameters(), *module.buffers()]]
        self.hook()
    def hook(self):
        def average(p):
            dist.all_reduce(p.grad)
            p.grad = p.grad / dist.get_world_size()
        self.handles = [p.register_post_accumulate_grad_hook(average)
                        for p in self.module.parameters() if p.requires_grad]
    def forward(self, X): return self.module(X)
    @contextmanager
    def no_sync(self):
        [handle.remove() for handle in self.handles]
        try: yield self
        finally: self.hook()
""",
    },
}
