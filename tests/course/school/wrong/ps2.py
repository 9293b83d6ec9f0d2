"""Wrong answers to problem set 2: {exercise: (cell, places, {hint: changes})}."""

STAR = """for peer in range(1, world_size):
        if rank == peer:
            yield 0, UP
        else:
            arrived = yield
            if rank == 0:
                ADD
    for peer in range(1, world_size):
        if rank == 0:
            yield peer, DOWN
        else:
            arrived = yield
            if rank == peer:
                COPY"""
NOTHING = "return\n    yield"
NO_YIELD = "tensor.mul_(world_size)"


def star(up, add, down, copy):
    """Return a program in which everything goes through rank 0."""
    return STAR.replace("UP", up).replace("ADD", add).replace("DOWN", down).replace(
        "COPY", copy)


WRONG = {
    "ps2/reduce_scatter": ("""
held = {}
def reduce_scatter(rank, world_size, tensor):
    BODY
""", {"BODY": """BEFORE
    chunks = CUT
    for step in range(LENGTH):
        leaving = (FIRST - step) % world_size
        coming = COMING % world_size
        arrived = yield PEER, MESSAGE
        chunks[coming].WRITE(arrived)
    AFTER""", "BEFORE": "pass", "CUT": "OF.tensor_split(world_size)",
          "OF": "tensor", "LENGTH": "world_size - 1", "FIRST": "rank - 1",
          "COMING": "(leaving - 1)", "PEER": "(rank + 1) % world_size",
          "MESSAGE": "chunks[leaving]", "WRITE": "add_", "AFTER": "pass"}, {
        "the tensors hold what they held": {"OF": "tensor.clone()"},
        "the result is returned": {"OF": "tensor.clone()",
                                   "AFTER": "return chunks[rank]"},
        "without a yield this is a plain function": {"BODY": NO_YIELD},
        "the chunks are finished on other ranks, chunk 0 on rank 1;": {
            "FIRST": "rank - 2"},
        "the chunks are finished on other ranks, chunk 0 on rank 2;": {"FIRST": "rank"},
        "chunk 0 on rank 0 holds rank 0's; every rank": {"LENGTH": "world_size - 2"},
        "chunk 0 on rank 0 holds rank 1's": {"WRITE": "copy_"},
        "chunk 0 on rank 0 holds rank 0's + rank 1's": {
            "BEFORE": "tensor.mul_(rank < world_size - 1 or rank == 0)"},
        "numbers of another chunk have come in": {"COMING": "(leaving + 1)"},
        "this is the mean": {"AFTER": "chunks[rank].div_(world_size)"},
        "the tensor is cut at other places": {
            "BEFORE": "n = len(tensor) // world_size",
            "CUT": "[tensor[i * n:(i + 1) * n] for i in range(world_size)]"},
        "look whether there is such a rank": {"PEER": "rank + 1"},
        "in one step every rank sends to another one": {"PEER": "max(0, 1 - rank)"},
        "send one chunk in a step": {"BODY": """passing = tensor.clone()
    for step in range(world_size - 1):
        passing = yield (rank + 1) % world_size, passing
        tensor.add_(passing)"""},
        "all ranks send at once": {"LENGTH": "world_size"},
        "numbers came to a rank without being sent": {"BODY": """held[rank] = tensor.clone()
    yield
    tensor.copy_(sum(held[peer] for peer in range(world_size)))"""},
    }),
    "ps2/allgather": ("""
def allgather(rank, world_size, tensor):
    BODY
""", {"BODY": """chunks = OF.tensor_split(world_size)
    for step in range(LENGTH):
        leaving = (FIRST - step) % world_size
        coming = (leaving - 1) % world_size
        arrived = yield (rank + 1) % world_size, chunks[leaving]
        chunks[coming].WRITE(arrived)
    AFTER""", "OF": "tensor", "LENGTH": "world_size - 1", "FIRST": "rank",
          "WRITE": "copy_", "AFTER": "pass"}, {
        "the tensors hold what they held": {"BODY": NOTHING},
        "the result is returned": {"OF": "tensor.clone()",
                                   "AFTER": "return torch.cat(chunks)"},
        "what arrives is added to what was there": {"WRITE": "add_"},
        "chunk 0 on rank 0 holds chunk 0 of rank 2": {"FIRST": "rank + 1"},
        "nothing has been written into chunk 1 on rank 0": {"LENGTH": "world_size - 2"},
        "the tensor is cut at other places": {"BODY": """n = len(tensor) // world_size
    chunks = [tensor[i * n:(i + 1) * n] for i in range(world_size)]
    for step in range(world_size - 1):
        arrived = yield (rank + 1) % world_size, chunks[rank - step]
        chunks[rank - step - 1].copy_(arrived)"""},
        "all ranks send at once": {"LENGTH": "world_size"},
        "send one chunk in a step": {"BODY": """passing = tensor.clone()
    for step in range(1, world_size):
        passing = yield (rank + 1) % world_size, passing
        own = (rank - step) % world_size
        tensor.tensor_split(world_size)[own].copy_(
            passing.tensor_split(world_size)[own])"""},
        "rank 0 is the centre of a star": {"BODY": """chunks = tensor.tensor_split(world_size)
    """ + star("chunks[rank]", "chunks[peer].copy_(arrived)", "tensor",
               "tensor.copy_(arrived)")},
        "all wait to be sent something": {"BODY": """arrived = None
    while arrived is None and world_size > 1:
        arrived = yield"""},
    }),
    "ps2/ring_allreduce": ("""
def ring_allreduce(rank, world_size, tensor):
    BEFORE
    FIRST
    SECOND
    AFTER
""", {"BEFORE": "pass", "FIRST": "yield from reduce_scatter(rank, world_size, tensor)",
      "SECOND": "yield from allgather(rank, world_size, tensor)", "AFTER": "pass"}, {
        "the tensors hold what they held": {
            "FIRST": "reduce_scatter(rank, world_size, tensor)",
            "SECOND": "allgather(rank, world_size, tensor)", "AFTER": "yield"},
        "another program runs inside this one by yield from": {
            "FIRST": "yield reduce_scatter(rank, world_size, tensor)"},
        "chunk 1 on rank 0 holds rank 0's + rank 2's": {"SECOND": "pass"},
        "chunk 0 on rank 0 holds rank 0's 3 times": {
            "FIRST": "yield from allgather(rank, world_size, tensor)",
            "SECOND": "yield from reduce_scatter(rank, world_size, tensor)"},
        "this is the mean": {"AFTER": "tensor.div_(world_size)"},
        "the result is returned": {"BEFORE": "tensor = tensor.clone()",
                                   "AFTER": "return tensor"},
        "send one chunk in a step": {"BEFORE": """passing = tensor.clone()
    for step in range(world_size - 1):
        passing = yield (rank + 1) % world_size, passing
        tensor.add_(passing)""", "FIRST": "pass", "SECOND": "pass"},
        "rank 0 is the centre of a star": {"BEFORE": star(
            "tensor", "tensor.add_(arrived)", "tensor", "tensor.copy_(arrived)"),
            "FIRST": "pass", "SECOND": "pass"},
        "all ranks send at once": {"AFTER": "yield (rank + 1) % world_size, tensor[:1]",
                                   "BEFORE": "if world_size == 1: return"},
    }),
    "ps2/spread_allreduce": ("""
def spread_allreduce(rank, world_size, params):
    BODY
""", {"BODY": """mine = params[MINE]
    for shift in range(BEGIN, END):
        owner = (rank + shift) % world_size
        arrived = yield owner, SENT
        for p, addend in zip(mine, arrived):
            p.add_(addend)
    for shift in range(1, world_size):
        owner = BACK % world_size
        arrived = yield (rank + shift) % world_size, OWNED
        TAKE
    AFTER""", "MINE": "rank::world_size", "BEGIN": "1", "END": "world_size",
          "SENT": "params[owner::world_size]", "BACK": "(rank - shift)",
          "OWNED": "mine", "AFTER": "pass",
          "TAKE": "[p.copy_(t) for p, t in zip(params[owner::world_size], arrived)]"}, {
        "the tensors hold what they held": {"BODY": NOTHING},
        "the list holds the sums": {"TAKE": "params[owner::world_size] = arrived"},
        "this is the mean": {"AFTER": "[p.div_(world_size) for p in params]"},
        "parameter 1 on rank 0 holds rank 0's; every rank": {"TAKE": "pass"},
        "parameter 1 on rank 0 holds rank 1's + rank 2's": {
            "SENT": "[p * (rank > 0) for p in params[owner::world_size]]"},
        "parameter 2 on rank 0 should hold these numbers": {"BACK": "(rank + shift)"},
        "begin at distance 1": {"BEGIN": "0"},
        "rank 0 is the centre of a star": {
            "MINE": "0 if rank == 0 else len(params):",
            "SENT": "params[0 if owner == 0 else len(params):]",
            "TAKE": "[p.copy_(t) for p, t in zip(params, arrived)]"},
        "to an owner go its own parameters": {
            "OWNED": "params", "TAKE": "[p.copy_(t) for p, t in zip(params[owner::"
                                       "world_size], arrived[owner::world_size])]"},
        "in one step all ranks can send": {"BODY": """for i, p in enumerate(params):
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
                    p.copy_(arrived)"""},
        "in one step every rank sends to another one": {
            "BODY": "for owner in range(world_size):\n        if rank != owner:\n"
                    "            yield owner, params[owner::world_size]\n"
                    "        else:\n            yield"},
    }),
    "ps2/tree_allreduce": ("""
def tree_allreduce(rank, world_size, tensor):
    start = tensor.clone()
    distances = [2 ** level for level in range(LEVELS)]
    for distance in UPWARDS:
        if rank % (2 * distance) == distance:
            yield rank - distance, SENT
        else:
            arrived = yield
            if arrived is not None:
                ADD
    for distance in DOWNWARDS:
        if rank % (2 * distance) == 0 EXISTS:
            yield rank + distance, tensor
        else:
            arrived = yield
            if arrived is not None:
                COPY
    AFTER
""", {"LEVELS": "(world_size - 1).bit_length()", "UPWARDS": "distances",
      "SENT": "tensor", "ADD": "tensor.add_(arrived)",
      "DOWNWARDS": "reversed(distances)", "EXISTS": "and rank + distance < world_size",
      "COPY": "tensor.copy_(arrived)", "AFTER": "pass"}, {
        "the tensors hold what they held": {"ADD": "tensor = tensor + arrived",
                                            "COPY": "tensor = arrived"},
        "the result is returned": {"ADD": "tensor = tensor + arrived",
                                   "COPY": "tensor = arrived",
                                   "AFTER": "return tensor"},
        "only rank 0 has the sum": {"DOWNWARDS": "[]"},
        "this is the mean": {"AFTER": "tensor.div_(world_size)"},
        "the tensor on rank 0 holds rank 0's + rank 1's; every rank": {
            "LEVELS": "world_size.bit_length() - 1"},
        "the tensor on rank 1 holds rank 0's + rank 1's twice + rank 2's": {
            "COPY": "tensor.add_(arrived)"},
        "the tensor on rank 3 holds rank 2's + rank 3's": {"DOWNWARDS": "distances"},
        "look whether there is such a rank": {"EXISTS": ""},
        "rank 0 is the centre of a star": {
            "LEVELS": "0", "AFTER": star("tensor", "tensor.add_(arrived)", "tensor",
                                         "tensor.copy_(arrived)")},
        "all pairs at one distance send in the same step": {
            "DOWNWARDS": "[]", "AFTER": """for peer in range(1, world_size):
        if rank == 0:
            yield peer, tensor
        else:
            arrived = yield
            if rank == peer:
                tensor.copy_(arrived)"""},
        "a rank hands its sum up once": {"SENT": "[start, tensor]",
                                         "ADD": "tensor.add_(arrived[1])"},
    }),
}
