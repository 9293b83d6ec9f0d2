"""Wrong answers to problem set 2: {exercise: {mistake: (hint, cell)}}."""

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


ANSWERS = {
    "reduce_scatter": {
        "does nothing": (
            "the tensors hold what they held",
            _named("reduce_scatter", NOTHING)),
        "a function without yield": (
            "without a yield this is a plain function",
            _named("reduce_scatter", NO_YIELD)),
        "the finished chunk on the left neighbour": (
            "the chunks are finished on other ranks, chunk 0 on rank 1;",
            _change(
                REDUCE_SCATTER, ("(rank - 1 - step)", "(rank - step - 2)"))),
        "the finished chunk on the right neighbour": (
            "the chunks are finished on other ranks, chunk 0 on rank 2;",
            _change(
                REDUCE_SCATTER, ("(rank - 1 - step)", "(rank - step)"))),
        "the chunk sent is the chunk that arrives": (
            "chunk 0 on rank 0 holds rank 0's; every rank belongs in it once",
            _change(
                REDUCE_SCATTER, ("(leaving - 1) % world_size", "leaving"))),
        "adds to the chunk after": ("numbers of another chunk have come in", _change(
            REDUCE_SCATTER, ("(leaving - 1)", "(leaving + 1)"))),
        "always its own chunk": (
            "chunk 0 on rank 0 holds rank 0's; every rank belongs in it once",
            _change(REDUCE_SCATTER, ("(rank - 1 - step)", "rank"))),
        "one step too few": (
            "chunk 0 on rank 0 holds rank 0's; every rank belongs in it once",
            _change(
                REDUCE_SCATTER, ("range(world_size - 1)", "range(world_size - 2)"))),
        "one step too many": ("all ranks send at once", _change(
            REDUCE_SCATTER, ("range(world_size - 1)", "range(world_size)"))),
        "copies and does not add": (
            "chunk 0 on rank 0 holds rank 1's",
            _change(REDUCE_SCATTER, ("add_", "copy_"))),
        "the mean": (
            "this is the mean",
            REDUCE_SCATTER + "    chunks[rank].div_(world_size)\n"),
        "the tail dropped where it does not divide": (
            "the tensor is cut at other places",
            _change(
                REDUCE_SCATTER, ("tensor.tensor_split(world_size)",
                                 "[tensor[i * (len(tensor) // world_size):"
                                 "(i + 1) * (len(tensor) // world_size)]"
                                 " for i in range(world_size)]"))),
        "the longer chunks last": ("the tensor is cut at other places", _change(
            REDUCE_SCATTER, ("tensor.tensor_split(world_size)",
                             "[tensor[i * len(tensor) // world_size:"
                             "(i + 1) * len(tensor) // world_size]"
                             " for i in range(world_size)]"))),
        "works on a copy": ("the tensors hold what they held", _change(
            REDUCE_SCATTER, ("tensor.tensor_split", "tensor.clone().tensor_split"))),
        "returns the chunk": ("the result is returned", _change(
            REDUCE_SCATTER, ("tensor.tensor_split", "tensor.clone().tensor_split"))
            + "    return chunks[rank]\n"),
        "no modulo at the end of the ring": (
            "look whether there is such a rank",
            _change(
                REDUCE_SCATTER, ("(rank + 1) % world_size", "rank + 1"))),
        "rank 0 left out": ("chunk 1 on rank 1 holds rank 1's", _change(
            REDUCE_SCATTER, ("chunks[leaving]\n", "chunks[leaving] * (rank > 0)\n"))),
        "the last rank left out": ("chunk 0 on rank 0 holds rank 0's + rank 1's", """
def reduce_scatter(rank, world_size, tensor):
    if rank == world_size - 1 > 0:
        tensor.zero_()
""" + REDUCE_SCATTER.partition("tensor):\n")[2]),
        "whole tensors go round": ("send one chunk in a step", """
def reduce_scatter(rank, world_size, tensor):
    passing = tensor.clone()
    for step in range(world_size - 1):
        passing = yield (rank + 1) % world_size, passing
        tensor.add_(passing)
"""),
        "rank 0 adds up and hands out": ("all ranks send at once", """
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
"""),
        "everybody sends to rank 0 at once": (
            "in one step every rank sends to another one",
            """
def reduce_scatter(rank, world_size, tensor):
    if rank > 0:
        yield 0, tensor
    else:
        for peer in range(1, world_size):
            tensor.add_((yield))
"""),
        "by a list that all ranks share": (
            "numbers came to a rank without being sent",
            """
held = {}
def reduce_scatter(rank, world_size, tensor):
    held[rank] = tensor.clone()
    yield
    tensor.copy_(sum(held[peer] for peer in range(world_size)))
"""),
    },
    "allgather": {
        "does nothing": (
            "the tensors hold what they held",
            _named("allgather", NOTHING)),
        "adds what arrives": (
            "what arrives is added to what was there",
            _change(ALLGATHER, ("copy_", "add_"))),
        "starts with the wrong chunk": (
            "chunk 0 on rank 0 holds chunk 0 of rank 2",
            _change(
                ALLGATHER, ("(rank - step)", "(rank + 1 - step)"))),
        "written one chunk off": ("chunk 0 on rank 0 holds chunk 2 of rank 2", _change(
            ALLGATHER, ("(leaving - 1) % world_size", "leaving"))),
        "always its own chunk": (
            "nothing has been written into chunk 1 on rank 0",
            _change(ALLGATHER, ("(rank - step)", "rank"))),
        "one step too few": ("nothing has been written into chunk 1 on rank 0", _change(
            ALLGATHER, ("range(world_size - 1)", "range(world_size - 2)"))),
        "one step too many": ("all ranks send at once", _change(
            ALLGATHER, ("range(world_size - 1)", "range(world_size)"))),
        "the tail dropped where it does not divide": (
            "the tensor is cut at other places",
            _change(
                ALLGATHER, ("tensor.tensor_split(world_size)",
                            "[tensor[i * (len(tensor) // world_size):"
                            "(i + 1) * (len(tensor) // world_size)]"
                            " for i in range(world_size)]"))),
        "another tensor in the list": ("the tensors hold what they held", _change(
            ALLGATHER, ("tensor.tensor_split(world_size)",
                        "list(tensor.tensor_split(world_size))"),
            ("chunks[coming].copy_(arrived)", "chunks[coming] = arrived"))),
        "returns the whole": ("the result is returned", _change(
            ALLGATHER, ("tensor.tensor_split", "tensor.clone().tensor_split"))
            + "    return torch.cat(chunks)\n"),
        "everybody gets rank 0's": (
            "nothing has been written into chunk 1 on rank 0",
            """
def allgather(rank, world_size, tensor):
    for step in range(world_size - 1):
        if rank == step:
            yield rank + 1, tensor
        else:
            arrived = yield
            if rank == step + 1:
                tensor.copy_(arrived)
"""),
        "whole tensors go round": ("send one chunk in a step", """
def allgather(rank, world_size, tensor):
    chunks, passing = tensor.tensor_split(world_size), tensor
    for step in range(1, world_size):
        passing = yield (rank + 1) % world_size, passing
        i = (rank - step) % world_size
        chunks[i].copy_(passing.tensor_split(world_size)[i])
"""),
        "rank 0 collects and hands out": ("rank 0 is the centre of a star", """
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
"""),
        "everybody waits to be asked": ("all wait to be sent something", """
def allgather(rank, world_size, tensor):
    arrived = None
    while arrived is None and world_size > 1:
        arrived = yield
"""),
    },
    "ring_allreduce": {
        "does nothing": (
            "the tensors hold what they held",
            _named("ring_allreduce", NOTHING)),
        "calls without yield from": ("the tensors hold what they held", """
def ring_allreduce(rank, world_size, tensor):
    reduce_scatter(rank, world_size, tensor)
    allgather(rank, world_size, tensor)
    yield
"""),
        "yields the generators": (
            "another program runs inside this one by yield from",
            """
def ring_allreduce(rank, world_size, tensor):
    yield reduce_scatter(rank, world_size, tensor)
    yield allgather(rank, world_size, tensor)
"""),
        "the first half only": ("chunk 1 on rank 0 holds rank 0's + rank 2's", """
def ring_allreduce(rank, world_size, tensor):
    yield from reduce_scatter(rank, world_size, tensor)
"""),
        "the halves in the wrong order": (
            "chunk 0 on rank 0 holds rank 0's 3 times",
            """
def ring_allreduce(rank, world_size, tensor):
    yield from allgather(rank, world_size, tensor)
    yield from reduce_scatter(rank, world_size, tensor)
"""),
        "the mean": ("this is the mean", """
def ring_allreduce(rank, world_size, tensor):
    yield from reduce_scatter(rank, world_size, tensor)
    yield from allgather(rank, world_size, tensor)
    tensor.div_(world_size)
"""),
        "on a copy that is returned": ("the result is returned", """
def ring_allreduce(rank, world_size, tensor):
    tensor = tensor.clone()
    yield from reduce_scatter(rank, world_size, tensor)
    yield from allgather(rank, world_size, tensor)
    return tensor
"""),
        "whole tensors go round": ("send one chunk in a step", """
def ring_allreduce(rank, world_size, tensor):
    passing = tensor.clone()
    for step in range(world_size - 1):
        passing = yield (rank + 1) % world_size, passing
        tensor.add_(passing)
"""),
        "a sum goes round, whole": ("rank 0 is the centre of a star", """
def ring_allreduce(rank, world_size, tensor):
    for turn in range(2):
        for step in range(world_size - 1):
            if rank == (step - turn) % world_size:
                yield (rank + 1) % world_size, tensor
            else:
                arrived = yield
                if arrived is not None:
                    tensor.copy_(arrived) if turn else tensor.add_(arrived)
"""),
        "a star": (
            "rank 0 is the centre of a star",
            STAR.replace("star", "ring_allreduce")),
        "every chunk starts at rank 0": ("all ranks send at once", """
def ring_allreduce(rank, world_size, tensor):
    for chunk in tensor.tensor_split(world_size):
        for step in range(2 * (world_size - 1)):
            if rank == step % world_size:
                yield (rank + 1) % world_size, chunk
            else:
                arrived = yield
                if arrived is not None:
                    chunk.add_(arrived) if step < world_size - 1 else chunk.copy_(arrived)
"""),
    },
    "spread_allreduce": {
        "does nothing": (
            "the tensors hold what they held",
            _named("spread_allreduce", NOTHING)),
        "owners keep the sums": (
            "parameter 1 on rank 0 holds rank 0's",
            SPREAD.rpartition("    for shift")[0]),
        "the mean": (
            "this is the mean",
            SPREAD + "    [p.div_(world_size) for p in params]\n"),
        "the first parameter of each owner only": (
            "parameter 3 on rank 0 holds rank 0's",
            _change(
                SPREAD, ("[rank::world_size]", "[rank:rank + 1]"),
                ("[owner::world_size]", "[owner:owner + 1]"))),
        "as many parameters as divide": (
            "parameter 2 on rank 0 holds rank 0's",
            _change(
                SPREAD, ("    mine =", "    params = params[:len(params) // world_size "
                         "* world_size]\n    mine ="))),
        "the wrong owner on the way back": (
            "parameter 2 on rank 0 should hold these numbers",
            _change(
                SPREAD, ("(rank - shift)", "(rank + shift)"))),
        "another tensor in the list": ("the list holds the sums", _change(
            SPREAD, ("        for p, total in zip(params[owner::world_size], arrived):\n"
                     "            p.copy_(total)",
                     "        params[owner::world_size] = arrived"))),
        "rank 0's own left out": (
            "parameter 1 on rank 0 holds rank 1's + rank 2's",
            _change(
                SPREAD, ("params[owner::world_size]\n",
                         "[p * (rank > 0) for p in params[owner::world_size]]\n"))),
        "the last rank left out": (
            "parameter 0 on rank 0 holds rank 0's + rank 2's",
            _change(
                SPREAD, ("range(1, world_size)", "range(1, world_size - 1)"))),
        "all to rank 0": ("rank 0 is the centre of a star", _change(
            SPREAD, ("params[rank::world_size]", "params if rank == 0 else []"),
            ("params[owner::world_size]\n", "params if owner == 0 else []\n"),
            ("params[owner::world_size],", "params if owner == 0 else [],"))),
        "everything to everybody": ("to an owner go its own parameters", """
def spread_allreduce(rank, world_size, params):
    start = [p.clone() for p in params]
    for shift in range(1, world_size):
        arrived = yield (rank + shift) % world_size, start
        for p, addend in zip(params, arrived):
            p.add_(addend)
"""),
        "the sums of all parameters from every owner": (
            "to an owner go its own parameters",
            _change(
                SPREAD, ("world_size, mine", "world_size, params"),
                ("arrived):\n            p.copy_", "arrived[owner::world_size]):\n"
                 "            p.copy_"))),
        "one parameter after the other": ("in one step all ranks can send", """
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
"""),
        "all send to one owner in the same step": (
            "in one step every rank sends to another one",
            """
def spread_allreduce(rank, world_size, params):
    for owner in range(world_size):
        if rank != owner:
            yield owner, params[owner::world_size]
        else:
            arrived = yield
"""),
        "sends to itself as well": ("begin at distance 1", _change(
            SPREAD, ("range(1, world_size)", "range(world_size)"))),
    },
    "tree_allreduce": {
        "does nothing": (
            "the tensors hold what they held",
            _named("tree_allreduce", NOTHING)),
        "for powers of two only": ("look whether there is such a rank", """
def tree_allreduce(rank, world_size, tensor):
    distance = 1
    while distance < world_size:
        arrived = yield rank ^ distance, tensor
        tensor.add_(arrived)
        distance *= 2
"""),
        "levels rounded down": (
            "the tensor on rank 0 holds rank 0's + rank 1's; every rank",
            _change(
                TREE, ("(world_size - 1).bit_length()", "world_size.bit_length() - 1"))),
        "the first distance twice": (
            "the tensor on rank 0 holds rank 0's + rank 1's twice + rank 2's + rank 3's twice",
            _change(
                TREE, ("(world_size - 1).bit_length()", "world_size.bit_length()"),
                ("distances = ", "distances = [1] * (world_size > 3) + "))),
        "up and not down": (
            "only rank 0 has the sum",
            TREE.rpartition("    for distance")[0]),
        "the mean": ("this is the mean", TREE + "    tensor.div_(world_size)\n"),
        "down in the order of up": (
            "the tensor on rank 3 holds rank 2's + rank 3's",
            _change(TREE, ("reversed(distances)", "distances"))),
        "adds on the way down": (
            "the tensor on rank 1 holds rank 0's + rank 1's twice + rank 2's",
            _change(TREE, ("copy_", "add_"))),
        "a new tensor": ("the tensors hold what they held", _change(
            TREE, ("tensor.add_(arrived)", "tensor = tensor + arrived"),
            ("tensor.copy_(arrived)", "tensor = arrived"))),
        "returns the sum": ("the result is returned", _change(
            TREE, ("tensor.add_(arrived)", "tensor = tensor + arrived"),
            ("tensor.copy_(arrived)", "tensor = arrived")) + "    return tensor\n"),
        "no look whether the partner exists": (
            "look whether there is such a rank",
            _change(
                TREE, (" and rank + distance < world_size", ""))),
        "the last rank left out": (
            "the tensor on rank 0 holds rank 0's + rank 1's; every rank",
            _change(
                TREE, ("== distance:", "== distance and rank < world_size - 1:"))),
        "rank 0's own left out": (
            "the tensor on rank 0 holds rank 1's + rank 2's",
            _change(
                TREE, ("    for distance in distances:\n",
                       "    if rank == 0 and world_size > 1:\n        tensor.zero_()\n"
                       "    for distance in distances:\n"))),
        "forgets to yield where there is nothing to do": (
            "in one step every rank sends to another one",
            """
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
"""),
        "a star": (
            "rank 0 is the centre of a star",
            STAR.replace("star", "tree_allreduce")),
        "a ring": (
            "all pairs at one distance send in the same step",
            REDUCE_SCATTER + ALLGATHER + """
def tree_allreduce(rank, world_size, tensor):
    yield from reduce_scatter(rank, world_size, tensor)
    yield from allgather(rank, world_size, tensor)
"""),
        "up a tree, down a star": (
            "all pairs at one distance send in the same step",
            TREE.rpartition("    for distance")[0] + """
    for peer in range(1, world_size):
        if rank == 0:
            yield peer, tensor
        else:
            arrived = yield
            if rank == peer:
                tensor.copy_(arrived)
"""),
        "sends along what it began with": ("a rank hands its sum up once", _change(
            TREE, ("    distances =", "    start = tensor.clone()\n    distances ="),
            ("rank - distance, tensor", "rank - distance, [start, tensor]"),
            ("tensor.add_(arrived)", "tensor.add_(arrived[1])"))),
        "the tree twice": (
            "all pairs at one distance send in the same step",
            TREE.replace("tree_allreduce", "once") + """
def tree_allreduce(rank, world_size, tensor):
    whole = tensor.clone()
    yield from once(rank, world_size, whole)
    yield from once(rank, world_size, tensor)
"""),
    },
}
