"""Right answers to problem set 2: {exercise: {style: cell}}."""

RIGHT = {
    "ps2/reduce_scatter": {
        "directly to each owner": """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for shift in range(1, world_size):
        owner = (rank + shift) % world_size
        chunks[rank].add_((yield owner, chunks[owner]))
""",
        "carries the sum in a list, with help and time": """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    carry, i = chunks[rank - 1].clone(), (rank - 1) % world_size
    for _ in range(world_size - 1):
        (carry,) = yield (rank + 1) % world_size, [carry]
        i = (i - 1) % world_size
        carry = carry + chunks[i]
    chunks[rank].copy_(carry)
reduce_scatter?
%time sum(range(9))
"""},
    "ps2/allgather": {
        "what came last goes on": """
def allgather(rank, world_size, tensor):
    chunks, message = tensor.tensor_split(world_size), None
    message = chunks[rank]
    for source in ((rank - s) % world_size for s in range(1, world_size)):
        message = yield (rank + 1) % world_size, message
        chunks[source].copy_(message)
""",
        "joined at the end": """
def allgather(rank, world_size, tensor):
    have = {rank: tensor.tensor_split(world_size)[rank].clone()}
    for step in range(world_size - 1):
        i = (rank - step) % world_size
        have[(i - 1) % world_size] = yield (rank + 1) % world_size, have[i]
    tensor.copy_(torch.cat([have[i] for i in range(world_size)]))
"""},
    "ps2/ring_allreduce": {
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
"""},
    "ps2/spread_allreduce": {
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
"""},
    "ps2/tree_allreduce": {
        "by math.log2": """
import math
def tree_allreduce(rank, world_size, tensor):
    levels = math.ceil(math.log2(world_size))
    for step in (1 << level for level in range(levels)):
        if rank & (2 * step - 1) == step:
            yield rank ^ step, tensor
        elif (arrived := (yield)) is not None:
            tensor.add_(arrived)
    for step in (1 << level for level in reversed(range(levels))):
        if rank & (2 * step - 1) == 0 and rank + step < world_size:
            yield rank | step, tensor
        elif (arrived := (yield)) is not None:
            tensor.copy_(arrived)
""",
        "doubling for powers of two, else the tree": """
def general(rank, world_size, tensor):
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

def tree_allreduce(rank, world_size, tensor):
    if world_size & (world_size - 1):
        return (yield from general(rank, world_size, tensor))
    d = 1
    while d < world_size:
        tensor.add_((yield rank ^ d, tensor))
        d *= 2
"""},
}
