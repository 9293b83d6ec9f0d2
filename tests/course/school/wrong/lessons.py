"""Wrong answers to exercises of lessons: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "allreduce/reduce_scatter": (
        """
def reduce_scatter(chunks):
    n = len(chunks)
    <<BEFORE: pass>>
    for step in range(<<STEPS: n - 1>>):
        for rank in range(n):
            peer, i = (rank + 1) % n, <<PLACE: (rank - 1 - step)>> % n
            <<WRITE: chunks[peer][i].add_(chunks[rank][i])>>
""",
        {
            "the tensors hold what they held": {"STEPS": "0"},
            "the list holds the sums": {
                "WRITE": "chunks[peer][i] = chunks[peer][i] + chunks[rank][i]"
            },
            "the result is returned": {
                "BEFORE": "return [sum(row[r] for row in chunks) for r in range(n)]"
            },
            "the chunks are finished on other ranks, chunk 0 on rank 2": {
                "PLACE": "(rank - step)"
            },
            "this is the mean": {
                "BEFORE": "[c.div_(n) for row in chunks for c in row]"
            },
            "chunk 0 on rank 0 holds rank 1's": {
                "WRITE": "chunks[peer][i].copy_(chunks[rank][i])"
            },
            "numbers of another chunk": {
                "WRITE": "chunks[peer][i].add_(chunks[rank][(i + 1) % n])"
            },
        },
    ),
    "allreduce/allgather": (
        """
def allgather(chunks):
    n = len(chunks)
    <<BEFORE: pass>>
    for step in range(<<STEPS: n - 1>>):
        for rank in range(n):
            peer, i = (rank + 1) % n, <<PLACE: (rank - step)>> % n
            <<WRITE: chunks[peer][i].copy_(chunks[rank][i])>>
""",
        {
            "the tensors hold what they held": {"STEPS": "0"},
            "what arrives is added": {"WRITE": "chunks[peer][i].add_(chunks[rank][i])"},
            "chunk 1 on rank 0 holds chunk 1 of rank 0": {"STEPS": "n - 2"},
            "chunk 0 on rank 0 holds chunk 0 of rank": {"PLACE": "(rank - 1 - step)"},
            "the list holds": {"WRITE": "chunks[peer][i] = chunks[rank][i]"},
            "the result is returned": {
                "BEFORE": "return [[chunks[i][i] for i in range(n)] for _ in chunks]"
            },
            "numbers of another chunk": {
                "WRITE": "chunks[peer][i].copy_(chunks[rank][i] / 2)"
            },
        },
    ),
    "split_the_work/by_data": (
        """
def by_data(X, y, params, devices):
    replicas = <<COPIES: [get_params(params, device) for device in devices]>>
    X_shards, y_shards = <<SHARDS: split_batch(X, y, devices)>>
    for X_shard, y_shard, replica in zip(X_shards, y_shards, replicas):
        loss(lenet(X_shard, replica), y_shard).<<LOSS: sum>>().backward()
    for grads in zip(*[[p.grad for p in replica] for replica in replicas]):
        <<SUM: allreduce(grads)>>
    <<AFTER: pass>>
    return <<RESULT: replicas>>
""",
        {
            "nothing went through": {
                "RESULT": "[[p.grad for p in replica] for replica in replicas]"
            },
            "these share memory": {
                "COPIES": "[get_params(params, devices[0])] * len(devices)",
                "SUM": "pass",
            },
            "each image belongs to one device": {
                "SHARDS": "[X] * len(devices), [y] * len(devices)"
            },
            "each device has its own gradient": {"SUM": "pass"},
            "only device 0 has the sum": {"SUM": "grads[0].add_(sum(grads[1:]))"},
            "this is the mean over the devices": {
                "SUM": "allreduce(grads); [g.div_(len(grads)) for g in grads]"
            },
            "each device took the mean": {"LOSS": "mean"},
        },
    ),
    "dataparallel/forward": (
        """
from torch.func import functional_call
def forward(module, devices, X):
    outputs = []
    for shard, device in zip(scatter(X, devices), devices):
        if <<SOME: len(shard)>>:
            weights = {name: <<COPY: p.to(device, copy=True)>>
                       for name, p in module.named_parameters()}
            output = <<CALL: functional_call(module, weights, (shard,))>>
            outputs.append(output.to(devices[0]))
    return <<RESULT: torch.cat(outputs)>>
""",
        {
            "these are parts": {"RESULT": "outputs"},
            "the whole minibatch went through": {
                "RESULT": "module(X)",
                "SOME": "False",
            },
            "the module itself was called": {"CALL": "module(shard)"},
            "the module itself was called: each": {"COPY": "p.to(device)"},
            "a device without rows": {"SOME": "True"},
            "each copy of the weights works on its own shard": {
                "CALL": "functional_call(module, weights, (X,))[:len(shard)]",
                "RESULT": "functional_call(module, weights, (X,))",
            },
            "no gradient comes back": {"COPY": "p.detach().to(device, copy=True)"},
        },
    ),
    "buckets/send_full": (
        """
def send_full(buckets, p):
    for bucket in buckets:
        if p in bucket.missing:
            <<STRIKE: bucket.missing.remove(p)>>
    for bucket in <<ORDER: buckets>>:
        if <<WAIT: bucket.missing>>:
            <<STOP: break>>
        if <<NEW: bucket.work is None>>:
            <<SEND: bucket.send()>>
            <<AFTER: pass>>
""",
        {
            "p has come": {"STRIKE": "pass"},
            "nothing is sent": {"SEND": "pass"},
            "these go as they fill up": {"STOP": "continue"},
            "a bucket was sent twice": {"NEW": "True"},
            "a bucket that was full early": {"AFTER": "break"},
        },
    ),
    "ddp_program/sampler": (
        """
def indices(length, world_size, rank, epoch, seed):
    generator = torch.Generator().manual_seed(<<NUMBER: seed + epoch>>)
    order = torch.randperm(length, generator=generator).tolist()
    <<BEFORE: pass>>
    while len(order) % world_size:
        order += order[:-len(order) % world_size]
    return <<ROWS: order[rank::world_size]>>
""",
        {
            "torch's seed for an epoch": {"NUMBER": "seed"},
            "every rank has all rows": {"ROWS": "order"},
            "this is a block of neighbouring": {
                "ROWS": "order[rank * (n := len(order) // world_size):][:n]"
            },
            "each rank draws an order": {"NUMBER": "seed + epoch + rank"},
        },
    ),
    "many_machines/finish": (
        """
def finish(work, every, cost, deaths):
    clock, done = 0, 0
    deaths = <<DEATHS: [*deaths]>>
    while done < work:
        part = min(every, work - done)
        end = clock + part + <<SAVING: (cost if done + part < work else 0)>>
        while deaths and deaths[0] < clock:
            deaths.pop(0)
        if deaths and deaths[0] < <<UNTIL: end>>:
            clock = <<NOW: deaths.pop(0)>>
            done = <<LEFT: done>>
        else:
            clock, done = end, done + part
    return clock
""",
        {
            "nothing is saved at the very end": {"SAVING": "cost"},
            "a save takes time": {"SAVING": "0"},
            "a death costs the work": {"DEATHS": "[]"},
            "what was saved before a death": {"LEFT": "0"},
            "a save that is not finished": {"UNTIL": "clock + part"},
            "there is more than one death": {"DEATHS": "deaths[:1]"},
            "at a death the run goes on at once": {"NOW": "end"},
        },
    ),
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
    "count_price_look/allreduce": (
        """
def allreduce(size, ranks, alpha, bandwidth):
    rounds = <<ROUNDS: 2 * (ranks - 1)>>
    return <<RESULT: rounds * (alpha + <<CHUNK: size / ranks>> / bandwidth)>>
""",
        {
            "a round sends one chunk": {"CHUNK": "size"},
            "this is one message": {"RESULT": "alpha + size / bandwidth"},
            "this is half: the sums": {"ROUNDS": "ranks - 1"},
            "alpha is paid in every round": {
                "RESULT": "alpha + rounds * size / ranks / bandwidth"
            },
            "a message costs alpha": {"RESULT": "rounds * size / ranks / bandwidth"},
            "a ring of N ranks": {"ROUNDS": "2 * ranks"},
        },
    ),
    "count_price_look/two_levels": (
        """
def ring(size, n, alpha, bandwidth):
    return 2 * (n - 1) * (alpha + size / n / bandwidth)
def two_levels(size, nodes, each, inside, between):
    return <<INSIDE: ring(size, each, *inside)>> + ring(<<BYTES: size, nodes>>, *between)
""",
        {
            "all rings of a node share": {"BYTES": "size / each, nodes"},
            "a ring over all GPUs": {"INSIDE": "0", "BYTES": "size, nodes * each"},
            "half of the inner ring": {"INSIDE": "2 * ring(size, each, *inside)"},
            "the links have changed places": {
                "INSIDE": "(b := between, between := inside, ring(size, each, *b))[2]"
            },
        },
    ),
    "count_price_look/sends": (
        """
def sends(forward, backward, size, buckets, price):
    bars, free = [], 0
    for i in range(buckets):
        full = <<FULL: forward + backward * (i + 1) / buckets>>
        start = <<START: max(full, free)>>
        free = start + <<PRICE: price(size / buckets)>>
        bars.append((start, free))
    return bars
""",
        {
            "all wait for the end": {"FULL": "forward + backward"},
            "these travel at the same time": {"START": "full"},
            "the first is full": {"FULL": "forward + backward * i / buckets"},
            "the clock starts": {"FULL": "backward * (i + 1) / buckets"},
            "every bucket sends all": {"PRICE": "price(size)"},
            "divide the bytes, not": {"PRICE": "price(size) / buckets"},
        },
    ),
    "keep_only_a_part/hooks": (
        """
def hooks(layer, gather, free):
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
            "nothing is freed": {
                "AFTER": "output.register_hook(lambda grad: gather())"
            },
            "free after forward only": {
                "MORE": "layer.register_full_backward_hook(lambda *_: free())"
            },
            "gather in a forward_pre_hook: the layer": {
                "BEFORE": "free()",
                "AFTER": "gather(); output.register_hook(lambda grad: gather())",
            },
            "gather in a forward_pre_hook": {
                "BEFORE": "pass",
                "AFTER": "gather(); free(); output.register_hook(lambda grad: gather())",
            },
        },
    ),
    "many_machines/rows_to_go": (
        """
def rows_to_go(order, seen, rank, world_size):
    left = order[seen:]
    return <<ROWS: left[rank::world_size]>>
""",
        {
            "these begin at the front": {"ROWS": "order[rank::world_size]"},
            "`seen` counts the rows": {
                "ROWS": "order[seen * world_size:][rank::world_size]"
            },
            "every rank gets all": {"ROWS": "left"},
            "no row is lost or read twice": {
                "ROWS": "left[rank * (n := -(-len(left) // world_size)):][:n]"
            },
            "the last rows are lost": {
                "ROWS": "left[:len(left) // world_size * world_size][rank::world_size]"
            },
            "some rows are read twice": {
                "ROWS": "(left + (left * world_size)[:-len(left) % world_size])[rank::world_size]"
            },
        },
    ),
    "is_it_correct/one_step_test": (
        """
def one_step_test(step, make, X, y, n=3):
    start = make()[0].state_dict()
    def after():
        net, optimizer = make()
        <<LOAD: net.load_state_dict(start)>>
        <<TAKE: step(net, optimizer, X, y)>>
        return <<RESULT: [p.detach() for p in net.parameters()]>>
    one = <<ONE: run_ranks(after, 1)[0]>>
    moved = largest_difference(one, list(start.values()))
    ranks = run_ranks(after, <<RANKS: n>>)
    <<AFTER: pass>>
    return max(largest_difference(rank, one) for rank in ranks) / moved
""",
        {
            "it needs a group": {"ONE": "after()"},
            "the loss is older": {
                "TAKE": "pass",
                "RESULT": "step(net, optimizer, X, y)",
                "ONE": "run_ranks(after, 1)[0]; return abs(sum(run_ranks(after, n)) - one)",
            },
            "all must begin with": {"LOAD": "pass"},
            "it is always 0": {
                "TAKE": "old = [p.detach().clone() for p in net.parameters()]; "
                "step(net, optimizer, X, y)",
                "RESULT": "old",
                "AFTER": "moved = 1",
            },
            "the ranks agree, and all are wrong": {"AFTER": "one = ranks[0]"},
            "divide the largest difference": {"AFTER": "moved = 1"},
            "`n` says on how many": {"RANKS": "3"},
            "some rank was not asked": {"AFTER": "ranks = ranks[:1]"},
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
            "weight decay moves": {
                "SKIP": "[grad.zero_() for grad in grads]; optimizer.step()"
            },
            "divide the gradients": {"DIVIDE": "pass"},
        },
    ),
}
