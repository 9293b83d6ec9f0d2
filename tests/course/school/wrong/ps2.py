"""Wrong answers to problem set 2: {exercise: (cell, {hint: changes})}."""

NO_YIELD = "tensor.mul_(world_size)"
WHOLE = """passing = tensor.clone()
    for step in range(world_size - 1):
        passing = yield (rank + 1) % world_size, passing
        tensor.add_(passing)"""
UNSENT = """held[rank] = tensor.clone()
    yield
    tensor.copy_(sum(held[peer] for peer in range(world_size)))"""
STAR = """for peer in range(1, world_size):
        arrived = yield (0, tensor) if rank == peer else None
        tensor.add_(arrived if rank == 0 else 0)
    for peer in range(1, world_size):
        arrived = yield (peer, tensor) if rank == 0 else None
        tensor.copy_(arrived if rank == peer else tensor)"""
ONE_BY_ONE = """for i, p in enumerate(params):
        owner = i % world_size
        for shift in range(1, world_size):
            arrived = yield (owner, p) if (rank - owner) % world_size == shift else None
            p.add_(arrived if rank == owner else 0)
        for shift in range(1, world_size):
            arrived = yield ((owner + shift) % world_size, p) if rank == owner else None
            p.copy_(p if arrived is None else arrived)"""

WRONG = {
    "ps2/reduce_scatter": (
        """
held = {}
def reduce_scatter(rank, world_size, tensor):
    <<BODY: <<BEFORE: pass>>
    chunks = <<CUT: tensor.tensor_split(world_size)>>
    for step in range(<<LENGTH: world_size - 1>>):
        leaving = (<<FIRST: rank - 1>> - step) % world_size
        coming = <<COMING: (leaving - 1)>> % world_size
        arrived = yield <<PEER: (rank + 1) % world_size>>, chunks[leaving]
        chunks[coming].add_(arrived)>>
""",
        {
            "without a yield this is a plain function": {"BODY": NO_YIELD},
            "look whether there is such a rank": {"PEER": "rank + 1"},
            "in one step every rank sends to another one": {"PEER": "max(0, 1 - rank)"},
            "the chunks are finished on other ranks, chunk 0 on rank 2;": {
                "FIRST": "rank"
            },
            "numbers of another chunk": {"COMING": "(leaving + 1)"},
            "the tensor is cut at other places": {
                "BEFORE": "n = len(tensor) // world_size",
                "CUT": "[tensor[i * n:(i + 1) * n] for i in range(world_size)]",
            },
            "send one chunk in a step": {"BODY": WHOLE},
            "all ranks send at once": {"LENGTH": "world_size"},
            "numbers came to a rank without being sent": {"BODY": UNSENT},
        },
    ),
    "ps2/allgather": (
        """
def allgather(rank, world_size, tensor):
    chunks = <<OF: tensor>>.tensor_split(world_size)
    for step in range(world_size - 1):
        leaving = (<<FIRST: rank>> - step) % world_size
        coming = (leaving - 1) % world_size
        arrived = yield (rank + 1) % world_size, chunks[leaving]
        chunks[coming].<<WRITE: copy_>>(arrived)
    <<AFTER: pass>>
""",
        {
            "the tensors hold what they held": {"OF": "tensor.clone()"},
            "the result is returned": {
                "OF": "tensor.clone()",
                "AFTER": "return torch.cat(chunks)",
            },
            "what arrives is added to what was there": {"WRITE": "add_"},
            "rank 0 had this chunk finished, and rank 2's": {"FIRST": "rank + 1"},
        },
    ),
    "ps2/ring_allreduce": (
        """
def ring_allreduce(rank, world_size, tensor):
    flat = tensor.flatten()
    <<FIRST: yield from reduce_scatter(rank, world_size, flat)>>
    <<SECOND: yield from allgather(rank, world_size, flat)>>
    <<BACK: tensor.copy_(flat.view(tensor.shape))>>
""",
        {
            "another program runs inside": {
                "FIRST": "yield reduce_scatter(rank, world_size, flat)"
            },
            "chunk 1 on rank 0 holds rank 0's + rank 2's": {"SECOND": "pass"},
            "rank 0 is the centre of a star": {
                "FIRST": STAR,
                "SECOND": "pass",
                "BACK": "pass",
            },
            "nothing came into the tensor": {"BACK": "pass"},
            "send one chunk of the flat tensor": {
                "FIRST": "flat = tensor[None] if tensor.dim() == 0 else tensor; "
                "yield from reduce_scatter(rank, world_size, flat)",
                "BACK": "pass",
            },
        },
    ),
    "ps2/spread_allreduce": (
        """
def spread_allreduce(rank, world_size, params):
    <<BODY: mine = params[rank::world_size]
    for shift in range(1, world_size):
        owner = (rank + shift) % world_size
        arrived = yield owner, params[owner::world_size]
        for p, addend in zip(mine, arrived):
            p.add_(addend)
    for shift in range(1, world_size):
        owner = <<BACK: (rank - shift)>> % world_size
        arrived = yield (rank + shift) % world_size, <<OWNED: mine>>
        <<TAKE: [p.copy_(t) for p, t in zip(params[owner::world_size], arrived)]>>>>
""",
        {
            "the list holds the sums": {"TAKE": "params[owner::world_size] = arrived"},
            "parameter 2 on rank 0 should hold these numbers": {
                "BACK": "(rank + shift)"
            },
            "to an owner go its own parameters": {
                "OWNED": "params",
                "TAKE": "[p.copy_(t) for p, t in zip(params[owner::"
                "world_size], arrived[owner::world_size])]",
            },
            "in one step all ranks can send": {"BODY": ONE_BY_ONE},
        },
    ),
    "ps2/tree_allreduce": (
        """
def tree_allreduce(rank, world_size, tensor):
    distances = [2 ** level for level in range((world_size - 1).bit_length())]
    for distance in distances:
        if rank % (2 * distance) == distance:
            yield rank - distance, <<SENT: tensor>>
        else:
            arrived = yield
            if arrived is not None:
                tensor.add_(<<CAME: arrived>>)
    for distance in <<DOWNWARDS: reversed(distances)>>:
        if rank % (2 * distance) == 0 and <<THERE: rank + distance < world_size>>:
            yield rank + distance, tensor
        else:
            arrived = yield
            if arrived is not None:
                tensor.copy_(arrived)
    <<AFTER: pass>>
""",
        {
            "only rank 0 has the sum": {"DOWNWARDS": "[]"},
            "the tensor on rank 3 holds rank 2's + rank 3's": {
                "DOWNWARDS": "distances"
            },
            "all pairs at one distance": {
                "DOWNWARDS": "[]",
                "AFTER": STAR[STAR.rindex("for peer") :],
            },
            "look whether there is such a rank": {"THERE": "True"},
            "a rank hands its sum up once": {
                "SENT": "[tensor, tensor]",
                "CAME": "arrived[1]",
            },
        },
    ),
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
            "this goes the other way round": {
                "BEFORE": "for step in range(1, n):\n"
                "        for r in range(n):\n"
                "            to, i = (r - 1) % n, (r + step) % n\n"
                "            chunks[to][i].add_(chunks[r][i])\n    return"
            },
            "this is no walk round the ring": {
                "BEFORE": "for r in range(n):\n"
                "        for k in range(1, n):\n"
                "            chunks[r][r].add_(chunks[(r + k) % n][r])\n    return"
            },
            "chunk 0 on rank 0 holds rank 1's": {
                "WRITE": "chunks[peer][i].copy_(chunks[rank][i])"
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
            peer, i = (rank + 1) % n, (rank - step) % n
            <<WRITE: chunks[peer][i].copy_(chunks[rank][i])>>
""",
        {
            "chunk 1 on rank 0 holds chunk 1 of rank 0": {"STEPS": "n - 2"},
            "rank 0 had this chunk finished, and rank 2's": {
                "BEFORE": "for step in range(n - 1):\n"
                "        for rank in range(n):\n"
                "            i = (rank + 1 - step) % n\n"
                "            chunks[(rank + 1) % n][i].copy_(chunks[rank][i])\n    return"
            },
            "the list holds": {"WRITE": "chunks[peer][i] = chunks[rank][i]"},
            "the result is returned": {
                "BEFORE": "return [[chunks[i][i] for i in range(n)] for _ in chunks]"
            },
            "numbers of another chunk": {
                "WRITE": "chunks[peer][i].copy_(chunks[rank][i] / 2)"
            },
        },
    ),
}
