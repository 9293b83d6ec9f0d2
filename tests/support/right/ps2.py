"""Right answers to problem set 2, by style: {exercise: {style: cell}}."""

REDUCE_SCATTER = """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        i = (rank - 1 - step) % world_size
        arrived = yield (rank + 1) % world_size, chunks[i]
        chunks[(i - 1) % world_size].add_(arrived)
"""
ALLGATHER = """
def allgather(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        arrived = yield (rank + 1) % world_size, chunks[(rank - step) % world_size]
        chunks[(rank - step - 1) % world_size].copy_(arrived)
"""
RING = """
def ring_allreduce(rank, world_size, tensor):
    yield from reduce_scatter(rank, world_size, tensor)
    yield from allgather(rank, world_size, tensor)
"""
SPREAD = """
def spread_allreduce(rank, world_size, params):
    for s in range(1, world_size):
        to = (rank + s) % world_size
        arrived = yield to, params[to::world_size]
        for p, addend in zip(params[rank::world_size], arrived):
            p += addend
    for s in range(1, world_size):
        arrived = yield (rank + s) % world_size, params[rank::world_size]
        for p, total in zip(params[(rank - s) % world_size::world_size], arrived):
            p.copy_(total)
"""
TREE = """
def tree_allreduce(rank, world_size, tensor):
    distances = [2 ** i for i in range((world_size - 1).bit_length())]
    for d in distances:
        arrived = yield (rank - d, tensor) if rank % (2 * d) == d else None
        if arrived is not None:
            tensor += arrived
    for d in distances[::-1]:
        down = rank % (2 * d) == 0 and rank + d < world_size
        arrived = yield (rank + d, tensor) if down else None
        if arrived is not None:
            tensor.copy_(arrived)
"""
TRIED = """
tensors = [torch.rand(8, dtype=torch.float64) for _ in range(4)]
result = run_rounds(NAME, tensors)
print(result["steps"], result["sent"])
assert result["steps"] <= 6
check("ps2/NAME", NAME)
"""


def _tried(name, cell):
    return cell + TRIED.replace("NAME", name)


ANSWERS = {
    "reduce_scatter": {
        "a list of chunks, in place by +=": """
def reduce_scatter(rank, world_size, tensor):
    parts = list(torch.tensor_split(tensor, world_size))
    leaving = rank - 1
    for _ in range(1, world_size):
        arrived = yield (rank + 1) % world_size, parts[leaving % world_size]
        leaving -= 1
        parts[leaving % world_size] += arrived
""",
        "the other way round": """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    left = rank - 1 if rank > 0 else world_size - 1
    for step in range(world_size - 1):
        arrived = yield left, chunks[(rank + 1 + step) % world_size]
        chunks[(rank + 2 + step) % world_size].add_(arrived)
""",
        "directly to each owner": """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for shift in range(1, world_size):
        owner = (rank + shift) % world_size
        chunks[rank].add_((yield owner, chunks[owner]))
""",
        "carries the sum in a tensor of its own": """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    carry, i = chunks[rank - 1].clone(), (rank - 1) % world_size
    for _ in range(world_size - 1):
        carry = yield (rank + 1) % world_size, carry
        i = (i - 1) % world_size
        carry = carry + chunks[i]
    chunks[rank].copy_(carry)
""",
        "slices written with indices": """
def reduce_scatter(rank, world_size, tensor):
    n, k = len(tensor), world_size
    ends = [(i + 1) * (n // k) + min(i + 1, n % k) for i in range(k)]
    starts = [0] + ends[:-1]
    for step in range(k - 1):
        out = (rank - 1 - step) % k
        arrived = yield (rank + 1) % k, tensor[starts[out]:ends[out]]
        into = (out - 1) % k
        tensor[starts[into]:ends[into]] = tensor[starts[into]:ends[into]] + arrived
""",
        "a list around each message": """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        i = (rank - 1 - step) % world_size
        (arrived,) = yield (rank + 1) % world_size, [chunks[i]]
        chunks[i - 1] += arrived if True else 0
""".replace("chunks[i - 1] += arrived if True else 0", "chunks[i - 1].add_(arrived)"),
        "tried in its cell": _tried("reduce_scatter", REDUCE_SCATTER),
        "with help, and time": REDUCE_SCATTER + "reduce_scatter?\n%time sum(range(9))\n",
    },
    "allgather": {
        "backwards": """
def allgather(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        arrived = yield (rank - 1) % world_size, chunks[(rank + step) % world_size]
        chunks[(rank + step + 1) % world_size][:] = arrived
""",
        "what came last goes on": """
def allgather(rank, world_size, tensor):
    chunks, message = tensor.tensor_split(world_size), None
    message = chunks[rank]
    for source in ((rank - s) % world_size for s in range(1, world_size)):
        message = yield (rank + 1) % world_size, message
        chunks[source].copy_(message)
""",
        "zeroed, then added": """
def allgather(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for i, c in enumerate(chunks):
        if i != rank:
            c.zero_()
    i = rank
    while (rank - i) % world_size != world_size - 1:
        arrived = yield (rank + 1) % world_size, chunks[i]
        i = (i - 1) % world_size
        chunks[i] += arrived if False else 0
        chunks[i].add_(arrived)
""".replace("        chunks[i] += arrived if False else 0\n", ""),
        "joined at the end": """
def allgather(rank, world_size, tensor):
    have = {rank: tensor.tensor_split(world_size)[rank].clone()}
    for step in range(world_size - 1):
        i = (rank - step) % world_size
        have[(i - 1) % world_size] = yield (rank + 1) % world_size, have[i]
    tensor.copy_(torch.cat([have[i] for i in range(world_size)]))
""",
        "tried in its cell": _tried("allgather", ALLGATHER),
    },
    "ring_allreduce": {
        "two lines": RING,
        "a loop over both": """
def ring_allreduce(rank, world_size, tensor):
    for program in (reduce_scatter, allgather):
        yield from program(rank, world_size, tensor)
""",
        "step by step, by hand": """
def ring_allreduce(rank, world_size, tensor):
    for program in [reduce_scatter(rank, world_size, tensor),
                    allgather(rank, world_size, tensor)]:
        arrived = None
        while True:
            try:
                wish = program.send(arrived)
            except StopIteration:
                break
            arrived = yield wish
""",
        "all of it in one function": """
def ring_allreduce(rank, world_size, tensor):
    chunks, k, right = tensor.tensor_split(world_size), world_size, (rank + 1) % world_size
    for step in range(2 * (k - 1)):
        i = (rank - 1 - step) % k
        arrived = yield right, chunks[i]
        if step < k - 1:
            chunks[(i - 1) % k].add_(arrived)
        else:
            chunks[(i - 1) % k].copy_(arrived)
""",
        "keyword arguments": """
def ring_allreduce(rank, world_size, tensor):
    if world_size == 1:
        return
    yield from reduce_scatter(rank=rank, world_size=world_size, tensor=tensor)
    yield from allgather(rank=rank, world_size=world_size, tensor=tensor)
""",
        "tried in its cell": _tried("ring_allreduce", RING),
    },
    "spread_allreduce": {
        "with dictionaries": """
def spread_allreduce(rank, world_size, params):
    owned = {r: [p for i, p in enumerate(params) if i % world_size == r]
             for r in range(world_size)}
    for s in range(1, world_size):
        arrived = yield (rank - s) % world_size, owned[(rank - s) % world_size]
        for p, q in zip(owned[rank], arrived):
            p.add_(q)
    for s in range(1, world_size):
        arrived = yield (rank - s) % world_size, owned[rank]
        for p, q in zip(owned[(rank + s) % world_size], arrived):
            p.copy_(q)
""",
        "indices": """
def spread_allreduce(rank, world_size, params):
    k = world_size
    mine = list(range(rank, len(params), k))
    for shift in range(1, k):
        owner = (rank + shift) % k
        arrived = yield (owner, [params[i] for i in range(owner, len(params), k)])
        for n, i in enumerate(mine):
            params[i] += arrived[n]
    for shift in range(1, k):
        source = (rank - shift) % k
        arrived = yield ((rank + shift) % k, [params[i] for i in mine])
        for n, i in enumerate(range(source, len(params), k)):
            params[i][...] = arrived[n]
""".replace("params[i] += arrived[n]", "params[i].add_(arrived[n])"),
        "nothing where there is nothing to say": """
def spread_allreduce(rank, world_size, params):
    for s in range(1, world_size):
        to = (rank + s) % world_size
        message = params[to::world_size]
        arrived = yield (to, message) if message else None
        for p, q in zip(params[rank::world_size], arrived or []):
            p.add_(q)
    for s in range(1, world_size):
        message = params[rank::world_size]
        arrived = yield ((rank + s) % world_size, message) if message else None
        for p, q in zip(params[(rank - s) % world_size::world_size], arrived or []):
            p.copy_(q)
""",
        "round a ring, whole parameters": """
def spread_allreduce(rank, world_size, params):
    k, right = world_size, (rank + 1) % world_size
    group = [params[r::k] for r in range(k)]
    for s in range(k - 1):
        i = (rank - 1 - s) % k
        arrived = yield right, group[i]
        for p, q in zip(group[(i - 1) % k], arrived):
            p.add_(q)
    for s in range(k - 1):
        i = (rank - s) % k
        arrived = yield right, group[i]
        for p, q in zip(group[(i - 1) % k], arrived):
            p.copy_(q)
""",
        "an inner generator": """
def spread_allreduce(rank, world_size, params):
    def meet(out, into, write):
        for s in range(1, world_size):
            arrived = yield (rank + s) % world_size, out(s)
            for p, q in zip(into(s), arrived):
                write(p, q)
    def owned(r):
        return params[r % world_size::world_size]
    yield from meet(lambda s: owned(rank + s), lambda s: owned(rank), torch.Tensor.add_)
    yield from meet(lambda s: owned(rank), lambda s: owned(rank - s), torch.Tensor.copy_)
""",
        "tried in its cell": SPREAD + """
replicas = [[torch.ones(n) * r for n in (3, 1, 2)] for r in range(3)]
display(run_rounds(spread_allreduce, replicas)["tensors"][1])
check("ps2/spread_allreduce", spread_allreduce)
""",
    },
    "tree_allreduce": {
        "None where nothing is sent": TREE,
        "while loops": """
def tree_allreduce(rank, world_size, tensor):
    d = 1
    while d < world_size:
        if rank % (2 * d) == d:
            yield rank - d, tensor
        else:
            got = yield
            if got is not None: tensor.add_(got)
        d *= 2
    while d > 1:
        d //= 2
        if rank % (2 * d) == 0 and rank + d < world_size:
            yield rank + d, tensor
        else:
            got = yield
            if got is not None: tensor.copy_(got)
""",
        "by math.log2": """
import math
def tree_allreduce(rank, world_size, tensor):
    levels = math.ceil(math.log2(world_size)) if world_size > 1 else 0
    for level in range(levels):
        step = 1 << level
        if rank & (2 * step - 1) == step:
            yield rank ^ step, tensor
        else:
            arrived = yield
            tensor.add_(arrived) if arrived is not None else None
    for level in reversed(range(levels)):
        step = 1 << level
        if rank & (2 * step - 1) == 0 and rank + step < world_size:
            yield rank | step, tensor
        else:
            arrived = yield
            tensor.copy_(arrived) if arrived is not None else None
""",
        "those who are out wait": """
def tree_allreduce(rank, world_size, tensor):
    d, alive = 1, True
    while d < world_size:
        arrived = None
        if alive and rank // d % 2:
            yield rank - d, tensor
            alive = False
        else:
            arrived = yield
        if arrived is not None:
            tensor[:] = tensor + arrived
        d = 2 * d
    has = rank == 0
    for d in [2 ** i for i in range(10) if 2 ** i < world_size][::-1]:
        if has and rank + d < world_size:
            yield rank + d, tensor
        else:
            arrived = yield
            if arrived is not None:
                tensor[:], has = arrived, True
""",
        "two inner programs": """
def tree_allreduce(rank, world_size, tensor):
    distances = []
    while 2 ** len(distances) < world_size:
        distances.append(2 ** len(distances))
    def up():
        for d in distances:
            if rank % (2 * d) == d:
                yield rank - d, tensor
                continue
            arrived = yield
            if arrived is not None:
                tensor.add_(arrived)
    def down():
        for d in sorted(distances, reverse=True):
            if rank % (2 * d) == 0 and rank + d < world_size:
                yield rank + d, tensor
                continue
            arrived = yield
            if arrived is not None:
                tensor.copy_(arrived)
    yield from up()
    yield from down()
""",
        "doubling for powers of two, else the tree": TREE.replace(
            "def tree_allreduce", "def general") + """
def tree_allreduce(rank, world_size, tensor):
    if world_size & (world_size - 1):
        yield from general(rank, world_size, tensor)
        return
    d = 1
    while d < world_size:
        arrived = yield rank ^ d, tensor
        tensor.add_(arrived)
        d *= 2
""",
        "tried in its cell": _tried("tree_allreduce", TREE).replace(
            "assert result", "%timeit -n 1 -r 1 pass\nassert result"),
    },
}
