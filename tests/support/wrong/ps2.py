"""Wrong answers to problem set 2: {exercise: {name of the mistake: answer cell}}."""

# right programs, in which one part at a time is made wrong
REDUCE_SCATTER = """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    right = (rank + 1) % world_size
    for step in range(world_size - 1):
        leaving = (rank - 1 - step) % world_size
        coming = (leaving - 1) % world_size
        arrived = yield right, chunks[leaving]
        chunks[coming].add_(arrived)
"""
ALLGATHER = """
def allgather(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    right = (rank + 1) % world_size
    for step in range(world_size - 1):
        leaving = (rank - step) % world_size
        coming = (leaving - 1) % world_size
        arrived = yield right, chunks[leaving]
        chunks[coming].copy_(arrived)
"""
SPREAD = """
def spread_allreduce(rank, world_size, params):
    mine = params[rank::world_size]
    for shift in range(1, world_size):
        owner = (rank + shift) % world_size
        arrived = yield owner, params[owner::world_size]
        for p, addend in zip(mine, arrived):
            p.add_(addend)
    for shift in range(1, world_size):
        owner = (rank - shift) % world_size
        arrived = yield (rank + shift) % world_size, mine
        for p, total in zip(params[owner::world_size], arrived):
            p.copy_(total)
"""
TREE = """
def tree_allreduce(rank, world_size, tensor):
    distances = [2 ** level for level in range((world_size - 1).bit_length())]
    for distance in distances:
        if rank % (2 * distance) == distance:
            yield rank - distance, tensor
        else:
            arrived = yield
            if arrived is not None:
                tensor.add_(arrived)
    for distance in reversed(distances):
        if rank % (2 * distance) == 0 and rank + distance < world_size:
            yield rank + distance, tensor
        else:
            arrived = yield
            if arrived is not None:
                tensor.copy_(arrived)
"""
STAR = """
def star(rank, world_size, tensor):
    for peer in range(1, world_size):
        if rank == peer:
            yield 0, tensor
        else:
            arrived = yield
            if rank == 0:
                tensor.add_(arrived)
    for peer in range(1, world_size):
        if rank == 0:
            yield peer, tensor
        else:
            arrived = yield
            if rank == peer:
                tensor.copy_(arrived)
"""
NOTHING = """
def NAME(rank, world_size, tensor):
    return
    yield
"""
NO_YIELD = """
def NAME(rank, world_size, tensor):
    tensor.mul_(world_size)
"""


def _change(cell, *changes):
    for right, wrong in changes:
        if right not in cell:
            raise ValueError(f"{right!r} is not in the cell")
        cell = cell.replace(right, wrong)
    return cell


def _named(name, cell):
    return cell.replace("NAME", name)


WRONG = {
    "reduce_scatter": {
        "does nothing": _named("reduce_scatter", NOTHING),
        "a function without yield": _named("reduce_scatter", NO_YIELD),
        "the finished chunk on the left neighbour": _change(
            REDUCE_SCATTER, ("(rank - 1 - step)", "(rank - step - 2)")),
        "the finished chunk on the right neighbour": _change(
            REDUCE_SCATTER, ("(rank - 1 - step)", "(rank - step)")),
        "the chunk sent is the chunk that arrives": _change(
            REDUCE_SCATTER, ("(leaving - 1) % world_size", "leaving")),
        "adds to the chunk after": _change(
            REDUCE_SCATTER, ("(leaving - 1)", "(leaving + 1)")),
        "always its own chunk": _change(REDUCE_SCATTER, ("(rank - 1 - step)", "rank")),
        "one step too few": _change(
            REDUCE_SCATTER, ("range(world_size - 1)", "range(world_size - 2)")),
        "one step too many": _change(
            REDUCE_SCATTER, ("range(world_size - 1)", "range(world_size)")),
        "copies and does not add": _change(REDUCE_SCATTER, ("add_", "copy_")),
        "the mean": REDUCE_SCATTER + "    chunks[rank].div_(world_size)\n",
        "the tail dropped where it does not divide": _change(
            REDUCE_SCATTER, ("tensor.tensor_split(world_size)",
                             "[tensor[i * (len(tensor) // world_size):"
                             "(i + 1) * (len(tensor) // world_size)]"
                             " for i in range(world_size)]")),
        "the longer chunks last": _change(
            REDUCE_SCATTER, ("tensor.tensor_split(world_size)",
                             "[tensor[i * len(tensor) // world_size:"
                             "(i + 1) * len(tensor) // world_size]"
                             " for i in range(world_size)]")),
        "works on a copy": _change(
            REDUCE_SCATTER, ("tensor.tensor_split", "tensor.clone().tensor_split")),
        "returns the chunk": _change(
            REDUCE_SCATTER, ("tensor.tensor_split", "tensor.clone().tensor_split"))
            + "    return chunks[rank]\n",
        "no modulo at the end of the ring": _change(
            REDUCE_SCATTER, ("(rank + 1) % world_size", "rank + 1")),
        "rank 0 left out": _change(
            REDUCE_SCATTER, ("chunks[leaving]\n", "chunks[leaving] * (rank > 0)\n")),
        "the last rank left out": """
def reduce_scatter(rank, world_size, tensor):
    if rank == world_size - 1 > 0:
        tensor.zero_()
""" + REDUCE_SCATTER.partition("tensor):\n")[2],
        "whole tensors go round": """
def reduce_scatter(rank, world_size, tensor):
    passing = tensor.clone()
    for step in range(world_size - 1):
        passing = yield (rank + 1) % world_size, passing
        tensor.add_(passing)
""",
        "rank 0 adds up and hands out": """
def reduce_scatter(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for peer in range(1, world_size):
        if rank == peer:
            yield 0, tensor
        else:
            arrived = yield
            if rank == 0:
                tensor.add_(arrived)
    for peer in range(1, world_size):
        if rank == 0:
            yield peer, chunks[peer]
        else:
            arrived = yield
            if rank == peer:
                chunks[rank].copy_(arrived)
""",
        "everybody sends to rank 0 at once": """
def reduce_scatter(rank, world_size, tensor):
    if rank > 0:
        yield 0, tensor
    else:
        for peer in range(1, world_size):
            tensor.add_((yield))
""",
        "by a list that all ranks share": """
held = {}
def reduce_scatter(rank, world_size, tensor):
    held[rank] = tensor.clone()
    yield
    tensor.copy_(sum(held[peer] for peer in range(world_size)))
""",
    },
    "allgather": {
        "does nothing": _named("allgather", NOTHING),
        "adds what arrives": _change(ALLGATHER, ("copy_", "add_")),
        "starts with the wrong chunk": _change(
            ALLGATHER, ("(rank - step)", "(rank + 1 - step)")),
        "written one chunk off": _change(
            ALLGATHER, ("(leaving - 1) % world_size", "leaving")),
        "always its own chunk": _change(ALLGATHER, ("(rank - step)", "rank")),
        "one step too few": _change(
            ALLGATHER, ("range(world_size - 1)", "range(world_size - 2)")),
        "one step too many": _change(
            ALLGATHER, ("range(world_size - 1)", "range(world_size)")),
        "the tail dropped where it does not divide": _change(
            ALLGATHER, ("tensor.tensor_split(world_size)",
                        "[tensor[i * (len(tensor) // world_size):"
                        "(i + 1) * (len(tensor) // world_size)]"
                        " for i in range(world_size)]")),
        "another tensor in the list": _change(
            ALLGATHER, ("tensor.tensor_split(world_size)",
                        "list(tensor.tensor_split(world_size))"),
            ("chunks[coming].copy_(arrived)", "chunks[coming] = arrived")),
        "returns the whole": _change(
            ALLGATHER, ("tensor.tensor_split", "tensor.clone().tensor_split"))
            + "    return torch.cat(chunks)\n",
        "everybody gets rank 0's": """
def allgather(rank, world_size, tensor):
    for step in range(world_size - 1):
        if rank == step:
            yield rank + 1, tensor
        else:
            arrived = yield
            if rank == step + 1:
                tensor.copy_(arrived)
""",
        "whole tensors go round": """
def allgather(rank, world_size, tensor):
    chunks, passing = tensor.tensor_split(world_size), tensor
    for step in range(1, world_size):
        passing = yield (rank + 1) % world_size, passing
        i = (rank - step) % world_size
        chunks[i].copy_(passing.tensor_split(world_size)[i])
""",
        "rank 0 collects and hands out": """
def allgather(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for peer in range(1, world_size):
        if rank == peer:
            yield 0, chunks[rank]
        else:
            arrived = yield
            if rank == 0:
                chunks[peer].copy_(arrived)
    for peer in range(1, world_size):
        if rank == 0:
            yield peer, tensor
        else:
            arrived = yield
            if rank == peer:
                tensor.copy_(arrived)
""",
        "everybody waits to be asked": """
def allgather(rank, world_size, tensor):
    arrived = None
    while arrived is None and world_size > 1:
        arrived = yield
""",
    },
    "ring_allreduce": {
        "does nothing": _named("ring_allreduce", NOTHING),
        "calls without yield from": """
def ring_allreduce(rank, world_size, tensor):
    reduce_scatter(rank, world_size, tensor)
    allgather(rank, world_size, tensor)
    yield
""",
        "yields the generators": """
def ring_allreduce(rank, world_size, tensor):
    yield reduce_scatter(rank, world_size, tensor)
    yield allgather(rank, world_size, tensor)
""",
        "the first half only": """
def ring_allreduce(rank, world_size, tensor):
    yield from reduce_scatter(rank, world_size, tensor)
""",
        "the halves in the wrong order": """
def ring_allreduce(rank, world_size, tensor):
    yield from allgather(rank, world_size, tensor)
    yield from reduce_scatter(rank, world_size, tensor)
""",
        "the mean": """
def ring_allreduce(rank, world_size, tensor):
    yield from reduce_scatter(rank, world_size, tensor)
    yield from allgather(rank, world_size, tensor)
    tensor.div_(world_size)
""",
        "on a copy that is returned": """
def ring_allreduce(rank, world_size, tensor):
    tensor = tensor.clone()
    yield from reduce_scatter(rank, world_size, tensor)
    yield from allgather(rank, world_size, tensor)
    return tensor
""",
        "whole tensors go round": """
def ring_allreduce(rank, world_size, tensor):
    passing = tensor.clone()
    for step in range(world_size - 1):
        passing = yield (rank + 1) % world_size, passing
        tensor.add_(passing)
""",
        "a sum goes round, whole": """
def ring_allreduce(rank, world_size, tensor):
    for turn in range(2):
        for step in range(world_size - 1):
            if rank == (step - turn) % world_size:
                yield (rank + 1) % world_size, tensor
            else:
                arrived = yield
                if arrived is not None:
                    tensor.copy_(arrived) if turn else tensor.add_(arrived)
""",
        "a star": STAR.replace("star", "ring_allreduce"),
        "every chunk starts at rank 0": """
def ring_allreduce(rank, world_size, tensor):
    for chunk in tensor.tensor_split(world_size):
        for step in range(2 * (world_size - 1)):
            if rank == step % world_size:
                yield (rank + 1) % world_size, chunk
            else:
                arrived = yield
                if arrived is not None:
                    chunk.add_(arrived) if step < world_size - 1 else chunk.copy_(arrived)
""",
    },
    "spread_allreduce": {
        "does nothing": _named("spread_allreduce", NOTHING),
        "owners keep the sums": SPREAD.rpartition("    for shift")[0],
        "the mean": SPREAD + "    [p.div_(world_size) for p in params]\n",
        "the first parameter of each owner only": _change(
            SPREAD, ("[rank::world_size]", "[rank:rank + 1]"),
            ("[owner::world_size]", "[owner:owner + 1]")),
        "as many parameters as divide": _change(
            SPREAD, ("    mine =", "    params = params[:len(params) // world_size "
                     "* world_size]\n    mine =")),
        "the wrong owner on the way back": _change(
            SPREAD, ("(rank - shift)", "(rank + shift)")),
        "another tensor in the list": _change(
            SPREAD, ("        for p, total in zip(params[owner::world_size], arrived):\n"
                     "            p.copy_(total)",
                     "        params[owner::world_size] = arrived")),
        "rank 0's own left out": _change(
            SPREAD, ("params[owner::world_size]\n",
                     "[p * (rank > 0) for p in params[owner::world_size]]\n")),
        "the last rank left out": _change(
            SPREAD, ("range(1, world_size)", "range(1, world_size - 1)")),
        "all to rank 0": _change(
            SPREAD, ("params[rank::world_size]", "params if rank == 0 else []"),
            ("params[owner::world_size]\n", "params if owner == 0 else []\n"),
            ("params[owner::world_size],", "params if owner == 0 else [],")),
        "everything to everybody": """
def spread_allreduce(rank, world_size, params):
    start = [p.clone() for p in params]
    for shift in range(1, world_size):
        arrived = yield (rank + shift) % world_size, start
        for p, addend in zip(params, arrived):
            p.add_(addend)
""",
        "the sums of all parameters from every owner": _change(
            SPREAD, ("world_size, mine", "world_size, params"),
            ("arrived):\n            p.copy_", "arrived[owner::world_size]):\n"
             "            p.copy_")),
        "one parameter after the other": """
def spread_allreduce(rank, world_size, params):
    for i, p in enumerate(params):
        owner = i % world_size
        for shift in range(1, world_size):
            if (rank - owner) % world_size == shift:
                yield owner, p
            else:
                arrived = yield
                if rank == owner:
                    p.add_(arrived)
        for shift in range(1, world_size):
            if rank == owner:
                yield (owner + shift) % world_size, p
            else:
                arrived = yield
                if arrived is not None:
                    p.copy_(arrived)
""",
        "all send to one owner in the same step": """
def spread_allreduce(rank, world_size, params):
    for owner in range(world_size):
        if rank != owner:
            yield owner, params[owner::world_size]
        else:
            arrived = yield
""",
        "sends to itself as well": _change(
            SPREAD, ("range(1, world_size)", "range(world_size)")),
    },
    "tree_allreduce": {
        "does nothing": _named("tree_allreduce", NOTHING),
        "for powers of two only": """
def tree_allreduce(rank, world_size, tensor):
    distance = 1
    while distance < world_size:
        arrived = yield rank ^ distance, tensor
        tensor.add_(arrived)
        distance *= 2
""",
        "levels rounded down": _change(
            TREE, ("(world_size - 1).bit_length()", "world_size.bit_length() - 1")),
        "the first distance twice": _change(
            TREE, ("(world_size - 1).bit_length()", "world_size.bit_length()"),
            ("distances = ", "distances = [1] * (world_size > 3) + ")),
        "up and not down": TREE.rpartition("    for distance")[0],
        "the mean": TREE + "    tensor.div_(world_size)\n",
        "down in the order of up": _change(TREE, ("reversed(distances)", "distances")),
        "adds on the way down": _change(TREE, ("copy_", "add_")),
        "a new tensor": _change(
            TREE, ("tensor.add_(arrived)", "tensor = tensor + arrived"),
            ("tensor.copy_(arrived)", "tensor = arrived")),
        "returns the sum": _change(
            TREE, ("tensor.add_(arrived)", "tensor = tensor + arrived"),
            ("tensor.copy_(arrived)", "tensor = arrived")) + "    return tensor\n",
        "no look whether the partner exists": _change(
            TREE, (" and rank + distance < world_size", "")),
        "the last rank left out": _change(
            TREE, ("== distance:", "== distance and rank < world_size - 1:")),
        "rank 0's own left out": _change(
            TREE, ("    for distance in distances:\n",
                   "    if rank == 0 and world_size > 1:\n        tensor.zero_()\n"
                   "    for distance in distances:\n")),
        "forgets to yield where there is nothing to do": """
def tree_allreduce(rank, world_size, tensor):
    distances = [2 ** level for level in range((world_size - 1).bit_length())]
    for distance in distances:
        if rank % (2 * distance) == distance:
            yield rank - distance, tensor
            break
        if rank % (2 * distance) == 0 and rank + distance < world_size:
            tensor.add_((yield))
    for distance in reversed(distances):
        if rank % (2 * distance) == 0 and rank + distance < world_size:
            yield rank + distance, tensor
        elif rank % (2 * distance) == distance:
            arrived = yield
            if arrived is not None:
                tensor.copy_(arrived)
""",
        "a star": STAR.replace("star", "tree_allreduce"),
        "a ring": REDUCE_SCATTER + ALLGATHER + """
def tree_allreduce(rank, world_size, tensor):
    yield from reduce_scatter(rank, world_size, tensor)
    yield from allgather(rank, world_size, tensor)
""",
        "up a tree, down a star": TREE.rpartition("    for distance")[0] + """
    for peer in range(1, world_size):
        if rank == 0:
            yield peer, tensor
        else:
            arrived = yield
            if rank == peer:
                tensor.copy_(arrived)
""",
        "the tree twice": TREE.replace("tree_allreduce", "once") + """
def tree_allreduce(rank, world_size, tensor):
    whole = tensor.clone()
    yield from once(rank, world_size, whole)
    yield from once(rank, world_size, tensor)
""",
    },
}
