"""Right answers to problem set 2: {exercise: {style: cell}}."""

from tests.course.school.right import changed

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
""",
    },
    "ps2/allgather": {
        "what came last goes on": changed(
            "ps2/allgather",
            ("chunks[leaving]", "message"),
            ("(arrived)", "(message)"),
            ("arrived = yield", "message = yield"),
            ("    for step", "    message = chunks[rank]\n    for step"),
        ),
        "joined at the end": """
def allgather(rank, world_size, tensor):
    have = {rank: tensor.tensor_split(world_size)[rank].clone()}
    for step in range(world_size - 1):
        i = (rank - step) % world_size
        have[(i - 1) % world_size] = yield (rank + 1) % world_size, have[i]
    tensor.copy_(torch.cat([have[i] for i in range(world_size)]))
""",
    },
    "ps2/ring_allreduce": {
        "step by step, by hand": """
def ring_allreduce(rank, world_size, tensor):
    flat = tensor.reshape(-1)
    for program in [reduce_scatter(rank, world_size, flat),
                    allgather(rank, world_size, flat)]:
        arrived = None
        while True:
            try:
                wish = program.send(arrived)
            except StopIteration:
                break
            arrived = yield wish
    tensor[...] = flat.reshape(tensor.shape)
""",
        "all of it in one function": changed(
            "ps2/ring_allreduce",
            FIRST="k, chunks = world_size, flat.tensor_split(world_size)",
            SECOND="""for step in range(2 * (k - 1)):
        arrived = yield (rank + 1) % k, chunks[(rank - 1 - step) % k]
        mine = chunks[(rank - 2 - step) % k]
        mine.copy_(mine + arrived if step < k - 1 else arrived)""",
        ),
    },
    "ps2/spread_allreduce": {
        "the other way round": changed(
            "ps2/spread_allreduce",
            ("yield (rank + shift)", "yield (rank - shift)"),
            (
                "owner = (rank + shift) % world_size\n        arrived = yield owner",
                "owner = (rank - shift) % world_size\n        arrived = yield owner",
            ),
            BACK="(rank + shift)",
        ),
        "nothing where there is nothing to say": changed(
            "ps2/spread_allreduce",
            (", arrived)", ", arrived or [])"),
            (
                "yield owner, params[owner::world_size]",
                "yield (owner, params[owner::world_size]) if params[owner::world_size] else None",
            ),
            (
                "yield (rank + shift) % world_size, mine",
                "yield ((rank + shift) % world_size, mine) if mine else None",
            ),
        ),
    },
    "ps2/tree_allreduce": {
        "by math.log2": changed(
            "ps2/tree_allreduce",
            ("def", "import math\ndef"),
            ("(world_size - 1).bit_length()", "math.ceil(math.log2(world_size))"),
            ("yield rank - distance", "yield rank ^ distance"),
            ("yield rank + distance", "yield rank | distance"),
        ),
        "doubling for powers of two, else the tree": changed(
            "ps2/tree_allreduce",
            (
                "    for distance in reversed",
                """\
    if world_size == 2 ** len(distances):
        return
    for distance in reversed""",
            ),
            (
                "        if rank % (2 * distance) == distance:",
                """\
        if world_size == 2 ** len(distances):
            tensor.add_((yield rank ^ distance, tensor))
        elif rank % (2 * distance) == distance:""",
            ),
        ),
    },
    "allreduce/reduce_scatter": {
        "a message that grows": """
def reduce_scatter(chunks):
    n = len(chunks)
    message = [chunks[r][r - 1] for r in range(n)]
    for step in range(1, n):
        message = [message[r - 1] + chunks[r][(r - 1 - step) % n] for r in range(n)]
    for r in range(n):
        chunks[r][r].copy_(message[r])
""",
        "negative places, torch.add into what was there": changed(
            "allreduce/reduce_scatter",
            ("(rank + 1) % n", "rank + 1 - n"),
            WRITE="torch.add(chunks[peer][i], chunks[rank][i], out=chunks[peer][i])",
        ),
    },
    "allreduce/allgather": {
        "all send before any copies": changed(
            "allreduce/allgather",
            (
                "        for rank",
                "        sent = ["
                "own[(r - step) % n].clone() for r, own in enumerate(chunks)]\n        for rank",
            ),
            WRITE="chunks[peer][i].copy_(sent[rank])",
        ),
        "zeroed, then added": changed(
            "allreduce/allgather", WRITE="chunks[peer][i].zero_().add_(chunks[rank][i])"
        ),
    },
}
