"""Right answers to the exercises of lessons in memory.py."""

from tests.course.school.right import changed

RIGHT = {
    "memory/count": {
        "lists and dicts by hand": """
def count(alive, values):
    if isinstance(values, torch.Tensor):
        alive.add(values.untyped_storage())
    elif isinstance(values, dict):
        count(alive, list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            count(alive, value)
    return sum(map(torch.UntypedStorage.nbytes, alive))
""",
        "a set, then added": changed(
            "memory/count",
            NOTE="pass",
            BEFORE="alive |= {x.untyped_storage() for x in "
            "tree_leaves(values) if torch.is_tensor(x)}",
        ),
    },
    "keep_only_a_part/hooks": {
        "a hook before backward": changed(
            "keep_only_a_part/hooks",
            AFTER="free()",
            MORE="layer.register_full_backward_pre_hook(lambda *_: gather())",
        ),
        "two hooks after forward, the gradient is handed back": changed(
            "keep_only_a_part/hooks",
            AFTER="free()",
            MORE="layer.register_forward_hook(lambda _, inputs, output: "
            "output.register_hook(lambda grad: (gather(), grad)[1]) and None)",
        ),
    },
    "sixteen_bits/scaler": {
        "as torch does it": """
class MyScaler:
    def __init__(self, scale, every):
        self.real = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=every)
        self.scale = self.real.scale
    def step(self, optimizer):
        self.real.step(optimizer)
        self.real.update()
""",
        "one long vector": changed(
            "sixteen_bits/scaler",
            DIVIDE="grad.mul_(1 / self.factor)",
            FINE="torch.cat([grad.flatten() for grad in grads]).isfinite().all()",
        ),
    },
    "keep_only_a_part/step": {
        "divided first, and nothing is kept": changed(
            "keep_only_a_part/step",
            MEAN="grads[rank].div_(n)",
            ADD="[grad.div_(n) for grad in grads]; reduce_scatter(grads); grads[rank] *= n",
            GATHER="shard.grad = None; allgather(weights)",
        ),
        "torch's own gather": changed(
            "keep_only_a_part/step",
            GATHER="dist.all_gather(weights, weights[rank].clone())",
        ),
    },
    "keep_only_a_part/reduce": {
        "divided first, then copied": changed(
            "keep_only_a_part/reduce",
            ADD="grads[0].div_(1); flat /= n; grads = list(F.pad("
            "flat, (0, -len(flat) % n)).chunk(n)); reduce_scatter(grads)",
            RESULT="grads[rank].clone()",
        ),
        "reduced to the rank whose chunk it is": changed(
            "keep_only_a_part/reduce",
            ADD="[dist.reduce(grad, i) for i, grad in enumerate(grads)]",
            RESULT="grads[rank].div_(n).clone()",
        ),
        "torch's own reduce-scatter": changed(
            "keep_only_a_part/reduce",
            ADD="mine = torch.empty_like(grads[rank]); dist.reduce_scatter(mine, grads)",
            RESULT="mine.div_(n)",
        ),
    },
}
