"""Wrong answers to the exercises of lessons in memory.py.

<<NAME: code>> is right code in its place. Each entry of the dict below an answer puts a
mistake in place of some; its key is how the message to the learner begins.
"""

WRONG = {
    "memory/count": (
        """
from torch.utils._pytree import tree_leaves
kept = []
def count(alive, values):
    <<BEFORE: pass>>
    for x in <<LEAVES: tree_leaves(values)>>:
        if isinstance(x, torch.Tensor):
            <<NOTE: alive.add(x.untyped_storage())>>
    return <<RESULT: sum(storage.nbytes() for storage in alive)>>
""",
        {
            "return the bytes": {"RESULT": "None"},
            "these are numbers of storages": {"RESULT": "len(alive)"},
            "b's numbers have 8 bytes": {
                # b is the smaller one: as if it were in float32
                "RESULT": "sum(n // 2 if n < 400 else n for n in "
                "[storage.nbytes() for storage in alive])"
            },
            "a WeakSet asks whether": {"NOTE": "alive.add(x)"},
            "what is inside of lists": {
                "LEAVES": "sum(map(list, (values[0], values[2:])), [])"
            },
            "this is what the last": {"BEFORE": "alive.clear()"},
            "a view has no memory": {
                "RESULT": "sum({id(x): x.nbytes for x in tree_leaves(values) "
                "if isinstance(x, torch.Tensor)}.values())"
            },
            "nobody holds b": {
                "NOTE": "alive.add(x.untyped_storage()); kept.append(x)"
            },
        },
    ),
    "keep_only_a_part/hooks": (
        """
def hooks(layer, gather, free):
    done = []
    def before(layer, inputs):
        <<BEFORE: gather()>>
    def after(layer, inputs, output):
        <<AFTER: free(); output.register_hook(lambda grad: gather())>>
    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after)
    <<MORE: pass>>
""",
        {
            "nothing is gathered": {"AFTER": "free()"},
            "this gathers when the layer's backward is over": {
                "AFTER": "free()",
                "MORE": "layer.register_full_backward_hook(lambda *_: gather())",
            },
            "nothing is gathered for backward: ask": {
                "AFTER": "free(); done or output.register_hook(lambda grad: gather()); "
                "done.append(1)"
            },
            "register a function": {"MORE": "gather()"},
            "gather() and free() take nothing": {
                "MORE": "layer.register_forward_hook(free)"
            },
            "nothing is freed": {
                "AFTER": "output.register_hook(lambda grad: gather())"
            },
            "free after forward only": {
                "MORE": "layer.register_full_backward_hook(lambda *_: free())"
            },
            "what a hook after forward returns": {
                "AFTER": "free(); return output.register_hook(lambda grad: gather())"
            },
            "gather in a forward_pre_hook": {
                "BEFORE": "pass",
                "AFTER": "gather(); free(); output.register_hook(lambda grad: gather())",
            },
        },
    ),
    "sixteen_bits/scaler": (
        """
class MyScaler:
    def __init__(self, scale, every):
        self.factor, self.every, self.good = scale, every, 0

    def scale(self, loss):
        return <<LOSS: loss * self.factor>>

    def step(self, optimizer):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]
                 if p.grad is not None]
        for grad in grads:
            <<DIVIDE: grad /= self.factor>>
        if <<FINE: all(grad.isfinite().all() for grad in grads)>>:
            <<STEP: optimizer.step()>>
            self.good += 1
        else:
            <<SKIP: pass>>
            self.factor /= <<HALF: 2>>
            <<ANEW: self.good = 0>>
        if <<GROW: self.good == self.every>>:
            self.factor, self.good = 2 * self.factor, <<COUNT: 0>>
""",
        {
            "scale(loss) returns": {"LOSS": "loss"},
            "a skipped step halves": {"HALF": "1"},
            "after `every` good": {"GROW": "False"},
            "count anew": {"ANEW": "pass"},
            "skip, if any": {"FINE": "not any(grad.isinf().any() for grad in grads)"},
            "skip, if any gradient": {"FINE": "grads[-1].isfinite().all()"},
            "weight decay moves": {
                "SKIP": "[grad.zero_() for grad in grads]; optimizer.step()"
            },
            "divide the gradients": {"DIVIDE": "pass"},
        },
    ),
    "keep_only_a_part/step": (
        """
from manual_dp.ranks.collectives import allgather, reduce_scatter, ring_allreduce

def step(weights, grads, shard, optimizer):
    rank, n = dist.get_rank(), dist.get_world_size()
    <<ADD: reduce_scatter(grads)>>
    <<MEAN: grads[rank] /= n>>
    shard.grad = grads[<<CHUNK: rank>>]
    <<UPDATE: optimizer.step()>>
    <<GATHER: allgather(weights)>>
""",
        {
            "all ranks must call": {"GATHER": "rank and allgather(weights)"},
            "a sum is not a mean": {"MEAN": "pass"},
            "all are zero": {"UPDATE": "pass"},
            "each rank's own chunk": {
                "UPDATE": "allgather(weights)",
                "GATHER": "optimizer.step()",
            },
            "each rank uses its own": {"ADD": "pass"},
            "rank r has": {"CHUNK": "0"},
            "a copy of the chunk": {"MEAN": "grads[rank] = grads[rank] / n"},
            "an all-reduce gives every rank": {
                "ADD": "[dist.all_reduce(grad) for grad in grads]"
            },
            "an all-reduce gives every rank all sums": {
                "ADD": "[ring_allreduce(grad) for grad in grads]"
            },
        },
    ),
    "keep_only_a_part/reduce": (
        """
from manual_dp.ranks.collectives import reduce_scatter

def reduce(params, shard):
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = torch.cat([<<FLAT: p.grad>>.flatten() for p in <<WHOSE: params>>])
    grads = list(F.pad(flat, (0, -len(flat) % n)).chunk(n))
    for p in params:
        p.grad = <<FREE: None>>
    <<ADD: reduce_scatter(grads)>>
    shard.grad = <<RESULT: grads[rank] / n>>
""",
        {
            "all ranks must call": {"ADD": "rank and reduce_scatter(grads)"},
            "this is no chunk of all gradients": {"WHOSE": "params[:1]"},
            "all are zero": {"FLAT": "p.detach().clone()"},
            "shard.grad is None": {"RESULT": "None"},
            "set each p.grad": {"FREE": "p.grad"},
            "set each p.grad to None; and a view": {"RESULT": "grads[rank].div_(n)"},
            "an all-reduce gives every rank": {
                "ADD": "[dist.all_reduce(grad) for grad in grads]"
            },
        },
    ),
}
