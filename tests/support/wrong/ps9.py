"""Wrong answers to problem set 9: {exercise: {mistake: (hint, cell)}}."""

# right answers, in which one part at a time is made wrong
FIT = """
def fit(sizes, seconds):
    t = torch.tensor(seconds, dtype=torch.float64)
    s = torch.tensor(sizes, dtype=torch.float64)
    w = 1 / t ** 2
    x, y = (w * s).sum() / w.sum(), (w * t).sum() / w.sum()
    beta = (w * (s - x) * (t - y)).sum() / (w * (s - x) ** 2).sum()
    alpha = y - beta * x
    return alpha.item(), beta.item()
"""
SECONDS = """
def allreduce_seconds(way, world_size, size, alpha, beta):
    N, n = world_size, size // 4
    levels = (N - 1).bit_length()
    if N == 1:
        return 0
    if way == "star":
        return 2 * (N - 1) * (alpha + beta * size)
    if way == "ring":
        chunk = 4 * -(-n // N)
        return 2 * (N - 1) * (alpha + beta * chunk)
    if way == "tree":
        return 2 * levels * (alpha + beta * size)
    halves = [4 * -(-n // 2 ** i) for i in range(1, levels + 1)]
    return 2 * (levels * alpha + beta * sum(halves))
"""
HALVING = """
def halving_doubling(rank, world_size, tensor):
    M = 2 ** (world_size.bit_length() - 1)
    if M < world_size:
        arrived = yield (rank - M, tensor) if rank >= M else None
        if arrived is not None:
            tensor.add_(arrived)
    held, back, d = tensor, [], 1
    while d < M:
        if rank < M:
            low, high = held.tensor_split(2)
            mine, other = (high, low) if rank & d else (low, high)
            arrived = yield rank ^ d, other
            mine.add_(arrived)
            back.append((d, mine, other))
            held = mine
        else:
            yield
        d *= 2
    for i in range(M.bit_length() - 1):
        if rank < M:
            d, mine, other = back.pop()
            arrived = yield rank ^ d, mine
            other.copy_(arrived)
        else:
            yield
    if M < world_size:
        arrived = yield (rank + M, tensor) if rank + M < world_size else None
        if arrived is not None:
            tensor.copy_(arrived)
"""
RING = """
def ring(rank, ranks, chunks, first, write):
    size, place = len(ranks), ranks.index(rank)
    for step in range(size - 1):
        leaving = (place + first - step) % size
        arrived = yield ranks[(place + 1) % size], chunks[leaving]
        write(chunks[(leaving - 1) % size], arrived)
"""
LEVELS = RING + """
def two_level(rank, world_size, tensor, per_node):
    node, i = divmod(rank, per_node)
    inside = [node * per_node + place for place in range(per_node)]
    across = list(range(i, world_size, per_node))
    chunks = tensor.tensor_split(per_node)
    parts = chunks[i].tensor_split(len(across))
    yield from ring(rank, inside, chunks, -1, torch.Tensor.add_)
    yield from ring(rank, across, parts, -1, torch.Tensor.add_)
    yield from ring(rank, across, parts, 0, torch.Tensor.copy_)
    yield from ring(rank, inside, chunks, 0, torch.Tensor.copy_)
"""
FINISH = """
def finish(ready, sizes, link):
    now = 0
    for start, size in zip(ready, sizes):
        now = max(now, start) + link.alpha + size / link.bandwidth
    return now

def best_cap(ready, sizes, link, caps):
    def end(cap):
        times, full = [], []
        for start, size in zip(ready, sizes):
            if full and full[-1] + size <= cap:
                full[-1] += size
                times[-1] = start
            else:
                full.append(size)
                times.append(start)
        return finish(times, full, link)
    return min(caps, key=lambda cap: (end(cap), -cap))
"""
BEST = """
def step_seconds(job, world_size, weak):
    N = world_size
    rows = job.rows if weak else math.ceil(job.rows / N)
    slow = job.slow if N > 1 else 1
    ring = 2 * (N - 1) * (job.alpha + job.beta * job.size / N)
    return job.serial + rows * job.row * slow + ring

def best_world_size(job, most, weak):
    def rate(n):
        return job.rows * (n if weak else 1) / step_seconds(job, n, weak)
    return max(range(1, most + 1), key=rate)

def first_slower(job, most):
    for n in range(2, most + 1):
        if step_seconds(job, n, False) > step_seconds(job, n - 1, False):
            return n
"""
ZERO = """
def zero_bytes(layers, world_size, stage):
    whole = sum(layers)
    shard = sum(-(-layer // world_size) for layer in layers)
    adam = 12 * (shard if stage >= 1 else whole)
    gradients = 2 * (shard if stage >= 2 else whole)
    weights = 2 * (shard + max(layers) if stage >= 3 else whole)
    return weights + gradients + adam

def fewest_ranks(layers, stage, memory, most):
    for world_size in range(1, most + 1):
        if zero_bytes(layers, world_size, stage) <= memory:
            return world_size
"""
PLACE = """
def place(env, gpus, rows):
    rank, local = int(env.get("RANK", 0)), int(env.get("LOCAL_RANK", 0))
    size = int(env.get("WORLD_SIZE", 1))
    device = f"cuda:{local % gpus}" if gpus else "cpu"
    mine = list(range(rank, rows, size))
    return rank, device, mine, local == 0
"""
ROWS = """
def rows_left(n, seen, old, new, seed, epoch):
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    left = order[seen * old:]
    return [left[rank::new] for rank in range(new)]
"""
PRINTED = "nothing is returned: print shows"


def _of(cell):
    """Return a function: (hint, pairs of what to replace) to (hint, changed cell)."""
    def changed(hint, *pairs):
        made = cell
        for right, wrong in pairs:
            if right not in made:
                raise ValueError(f"{right!r} is not in the cell")
            made = made.replace(right, wrong)
        return hint, made
    return changed


fit, price, halve, level = _of(FIT), _of(SECONDS), _of(HALVING), _of(LEVELS)
bucket, best, zero, put, left = (_of(FINISH), _of(BEST), _of(ZERO), _of(PLACE),
                                 _of(ROWS))
PAIR = "return alpha.item(), beta.item()"

PRINTS = """
def allreduce_seconds(way, world_size, size, alpha, beta):
    print(priced(way, world_size, size, alpha, beta))
"""

ANSWERS = {
    "fit": {
        "beta first": fit("alpha comes first", (
            PAIR, "return beta.item(), alpha.item()")),
        "the bandwidth": fit("beta is the seconds of a byte", (
            PAIR, "return alpha.item(), 1 / beta.item()")),
        "plain least squares": fit("every measurement counts by its relative error", (
            "1 / t ** 2", "torch.ones_like(t)")),
        "weights not squared": fit("the error is divided by the seconds before", (
            "1 / t ** 2", "1 / t")),
        "weights squared twice": fit("the error is divided by the seconds once", (
            "1 / t ** 2", "1 / t ** 4")),
        "the smallest and the largest": ("two measurements decide here, the smallest", """
def fit(sizes, seconds):
    (a, t), *_, (b, u) = sorted(zip(sizes, seconds))
    beta = (u - t) / (b - a)
    return t - beta * a, beta
"""),
        "the first and the last": ({"two measurements decide here, the first",
                                    "two measurements decide here, the smallest"}, """
def fit(sizes, seconds):
    beta = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    return seconds[0] - beta * sizes[0], beta
"""),
        "the shortest time as alpha": fit("the seconds of the smallest size", (
            "alpha.item()", "min(seconds)")),
        "the mean time of a byte": fit("this beta is the mean", (
            "beta.item()", "(t / s).mean().item()")),
        "in bits": fit("sizes are bytes", ("beta.item()", "beta.item() / 8")),
        "milliseconds": fit("alpha is in seconds", (
            PAIR, "return 1e3 * alpha.item(), 1e3 * beta.item()")),
        "through the origin": ("the intercept is left out", """
def fit(sizes, seconds):
    t, s = torch.tensor(seconds).double(), torch.tensor(sizes).double()
    return 0, ((s / t).sum() / ((s / t) ** 2).sum()).item()
"""),
        "sorts what it was given": fit("the lists are the caller's", (
            "    t =", "    sizes.sort()\n    seconds.sort()\n    t =")),
        "only beta": fit("return two numbers", (PAIR, "return beta.item()")),
        "one of each size": fit("a size may be there twice", (
            "    t =", "    once = dict(zip(sizes, seconds))\n"
                       "    sizes, seconds = list(once), list(once.values())\n    t =")),
        "sizes sorted": fit("a size belongs to the seconds", (
            "torch.tensor(sizes,", "torch.tensor(sorted(sizes),")),
        "both sorted": fit("a size belongs to the seconds", (
            "torch.tensor(sizes,", "torch.tensor(sorted(sizes),"), (
            "torch.tensor(seconds,", "torch.tensor(sorted(seconds),")),
        "bits of a byte": fit("sizes are bytes", ("beta.item()", "8 * beta.item()")),
        "microseconds": fit("alpha is in seconds", (
            PAIR, "return 1e6 * alpha.item(), 1e6 * beta.item()")),
        "three numbers": fit("return two numbers", (
            PAIR, "return alpha.item(), beta.item(), 0.0")),
        "a dict": fit("a dict is no number", (
            PAIR, "return {'alpha': alpha.item(), 'beta': beta.item()}")),
        "a text": fit("", (PAIR, "return f'{alpha}', f'{beta}'")),
        "prints": fit(PRINTED, (PAIR, "print(alpha.item(), beta.item())")),
        "not a number": fit("nan is no number", (PAIR, "return math.nan, beta.item()")),
    },
    "allreduce_seconds": {
        "2 N steps": price("a ring has 2 (N - 1) steps", (
            "return 2 * (N - 1) * (alpha + beta * chunk)",
            "return 2 * N * (alpha + beta * chunk)")),
        "a chunk is not whole": price("a chunk has whole numbers", (
            "4 * -(-n // N)", "size / N")),
        "rounded down": price("some chunks have one number more", (
            "-(-n // N)", "(n // N)")),
        "rounded up to bytes": price("round up to whole numbers, of 4 bytes", (
            "4 * -(-n // N)", "-(-size // N)")),
        "the whole tensor round the ring": price("a message of the ring is a chunk", (
            "4 * -(-n // N)", "size")),
        "all to rank 0 at once": price("rank 0 has one wire", (
            '"star":\n        return 2 * (N - 1)', '"star":\n        return 2')),
        "a star of N": price("rank 0 sends itself nothing", (
            '"star":\n        return 2 * (N - 1)', '"star":\n        return 2 * N')),
        "only the way in": price("only one half is priced", ("return 2 *", "return")),
        "log2 not rounded": price("the levels of a tree are whole", (
            "levels * (alpha + beta * size)",
            "math.log2(N) * (alpha + beta * size)")),
        "log2 rounded down": price("with 5 ranks a tree has 3 levels", (
            "levels * (alpha + beta * size)",
            "int(math.log2(N)) * (alpha + beta * size)")),
        "chunks in the tree": price("a message of the tree is the whole tensor", (
            "levels * (alpha + beta * size)",
            "levels * (alpha + beta * 4 * -(-n // N))")),
        "a tree as long as a ring": price("a tree has as many steps as levels", (
            "2 * levels * (alpha", "2 * (N - 1) * (alpha")),
        "no halving": price("each step halves what is sent", ("// 2 ** i", "// 1")),
        "halves not rounded": price("of an odd number, one half is larger", (
            "4 * -(-n // 2 ** i)", "size / 2 ** i")),
        "halves rounded down": price("round up, not down: the larger half", (
            "-(-n // 2 ** i)", "(n // 2 ** i)")),
        "the whole first": price("the first message is a half", (
            "range(1, levels + 1)", "range(levels)")),
        "chunks in every step": price("every message has a chunk here", (
            "// 2 ** i", "// N")),
        "alpha and beta swapped": price("alpha and beta have changed places", (
            "    N, n", "    alpha, beta = beta, alpha\n    N, n")),
        "divides by beta": price("beta is the seconds of a byte", (
            "    N, n", "    beta = 1 / beta\n    N, n")),
        "bits": price("sizes are bytes: no factor of 8", (
            "    N, n", "    beta = 8 * beta\n    N, n")),
        "numbers for bytes": price("beta is for a byte", (
            "    N, n", "    beta = beta / 4\n    N, n")),
        "four bytes twice": price("`size` is in bytes already", (
            "    N, n", "    beta = 4 * beta\n    N, n")),
        "no alpha": price("alpha is left out", ("    N, n", "    alpha = 0\n    N, n")),
        "no bytes": price("the bytes are left out", (
            "    N, n", "    beta = 0\n    N, n")),
        "alpha once": price("alpha is paid in each step", (
            "2 * (N - 1) * (alpha + beta * size)", "alpha + 2 * (N - 1) * beta * size")),
        "2 N steps, and for one rank": price("a ring has 2 (N - 1) steps", (
            "if N == 1:", "if N == 1 and way != 'ring':"), (
            "return 2 * (N - 1) * (alpha + beta * chunk)",
            "return 2 * N * (alpha + beta * chunk)")),
        "a star of N, and for one rank": price("rank 0 sends itself nothing", (
            "if N == 1:", "if N == 1 and way != 'star':"), (
            '"star":\n        return 2 * (N - 1)', '"star":\n        return 2 * N')),
        "in float32": price("these agree to five digits", (
            "    N, n", "    alpha, beta = torch.tensor([alpha, beta]).tolist()\n    N, n")),
        "microseconds": price("seconds are wanted, not microseconds", (
            "return 2", "return 1e6 * 2")),
        "False for one rank": price("True and False are no numbers", (
            "return 0", "return False")),
        "milliseconds": price("seconds are wanted, not milliseconds", (
            "return 2", "return 1e3 * 2")),
        "one rank pays": price("one rank sends nothing", (
            "return 0", "return alpha + beta * size")),
        "nothing for an empty tensor": price("an empty tensor is sent", (
            "if N == 1", "if N == 1 or size == 0")),
        "prints": (PRINTED, SECONDS.replace("allreduce_seconds", "priced") + PRINTS),
        "a text": price("0.5 ms is no number", ("return 0", "return '0.5 ms'")),
    },
    "halving_doubling": {
        "does nothing": ("the tensors hold what they held", """
def halving_doubling(rank, world_size, tensor):
    return
    yield
"""),
        "no yield": ("without a yield", """
def halving_doubling(rank, world_size, tensor):
    tensor.mul_(world_size)
"""),
        "returns the sum": ("the result is returned", (HALVING.replace(
            "held, back, d = tensor,", "tensor = tensor.clone()\n    held, back, d = tensor,")
            + "    return tensor\n")),
        "doubling of whole tensors": ({"send half of what is still yours",
                                       "partners send to each other"}, """
def halving_doubling(rank, world_size, tensor):
    M = 2 ** (world_size.bit_length() - 1)
    if M < world_size:
        arrived = yield (rank - M, tensor) if rank >= M else None
        if arrived is not None:
            tensor.add_(arrived)
    d = 1
    while d < M:
        if rank < M:
            tensor.add_((yield rank ^ d, tensor))
        else:
            yield
        d *= 2
    if M < world_size:
        arrived = yield (rank + M, tensor) if rank + M < world_size else None
        if arrived is not None:
            tensor.copy_(arrived)
"""),
        "a ring": ("partners send to each other", """
def halving_doubling(rank, world_size, tensor):
    chunks = tensor.tensor_split(world_size)
    for first, write in ((-1, torch.Tensor.add_), (0, torch.Tensor.copy_)):
        for step in range(world_size - 1):
            i = (rank + first - step) % world_size
            arrived = yield (rank + 1) % world_size, chunks[i]
            write(chunks[(i - 1) % world_size], arrived)
"""),
        "no way back": halve("chunk", (
            "other.copy_(arrived)", "pass")),
        "copies on the way in": halve("chunk", (
            "mine.add_", "mine.copy_")),
        "adds on the way back": halve("chunk", (
            "other.copy_", "other.add_")),
        "the mean": halve("this is the mean", (
            "    held, back", "    tensor.div_(world_size)\n    held, back")),
        "guests get nothing": halve("chunk", (
            "            tensor.copy_(arrived)", "            pass")),
        "guests left out": halve("chunk", (
            "            tensor.add_(arrived)", "            pass")),
        "no guests": halve("look whether there is such a rank", (
            "2 ** (world_size.bit_length() - 1)",
            "2 ** (world_size - 1).bit_length()")),
        "keeps the half that it sends": halve({"chunk", None}, (
            "yield rank ^ d, other\n            mine", "yield rank ^ d, mine\n            mine")),
        "all to rank 0": halve("in one step every rank sends to another one", (
            "yield rank ^ d, other", "yield (0 if rank else 1), other")),
        "back in the same order": halve({"chunk", None}, (
            "back.pop()", "back.pop(0)")),
        "no short tensors": halve("the tensors hold what they held", (
            "    M =", "    if len(tensor) < world_size:\n        return\n    M =")),
        "one rank meets itself": halve("begin at distance 1", (
            "    M =", "    if world_size == 1:\n        yield 0, tensor\n    M =")),
        "one number too many": halve("send half of what is still yours", (
            "yield rank ^ d, other\n            mine.add_(arrived)",
            "yield rank ^ d, torch.cat([other, other.new_zeros(\n"
            "                int(rank == 0 and d == 1 and M == world_size))])\n"
            "            mine.add_(arrived[:len(mine)])")),
        "one number too many with guests": halve("send half of what is still yours", (
            "yield rank ^ d, other\n            mine.add_(arrived)",
            "yield rank ^ d, torch.cat([other, other.new_zeros(\n"
            "                int(rank == 0 and d == 1 and M < world_size))])\n"
            "            mine.add_(arrived[:len(mine)])")),
        "a step too many": halve("partners send to each other", (
            "    held, back", "    if world_size == M > 1:\n"
            "        yield (1, tensor[:0]) if rank == 0 else None\n    held, back")),
        "a step too many with guests": halve("partners send to each other", (
            "    held, back", "    if world_size > M:\n"
            "        yield (1, tensor[:0]) if rank == 0 else None\n    held, back")),
        "by a list that all ranks share": ("numbers came to a rank without being sent", """
held = {}
def halving_doubling(rank, world_size, tensor):
    held[rank] = tensor.clone()
    yield
    tensor.copy_(sum(held[peer] for peer in range(world_size)))
    yield
"""),
        "the way back by a list that all share": (
            "numbers came to a rank without being sent", "board = {}" + HALVING.replace(
                "            arrived = yield rank ^ d, mine\n"
                "            other.copy_(arrived)",
                "            board[rank, d] = mine.clone()\n            yield\n"
                "            other.copy_(board[rank ^ d, d])")),
        "a loop that does not end": halve("all wait to be sent something", (
            "    held, back", "    while world_size > 1:\n        yield\n    held, back")),
    },
    "two_level": {
        "does nothing": ("the tensors hold what they held", """
def two_level(rank, world_size, tensor, per_node):
    return
    yield
"""),
        "no yield": ("without a yield", """
def two_level(rank, world_size, tensor, per_node):
    tensor.mul_(world_size)
"""),
        "one ring over all": ("one ring over all ranks", """
def two_level(rank, world_size, tensor, per_node):
    chunks = tensor.tensor_split(world_size)
    for first, write in ((-1, torch.Tensor.add_), (0, torch.Tensor.copy_)):
        for step in range(world_size - 1):
            i = (rank + first - step) % world_size
            arrived = yield (rank + 1) % world_size, chunks[i]
            write(chunks[(i - 1) % world_size], arrived)
"""),
        "whole tensors between nodes": ("each rank alone sends to other nodes", """
def two_level(rank, world_size, tensor, per_node):
    for distance in (1, per_node):
        size = per_node if distance == 1 else world_size // per_node
        first = rank // per_node * per_node if distance == 1 else rank % per_node
        place, sent = (rank - first) // distance, tensor.clone()
        for shift in range(1, size):
            peer = first + (place + shift) % size * distance
            tensor.add_((yield peer, sent))
"""),
        "inside the nodes only": level("with 2 in a node: chunk", (
            "rank, across, parts, -1, torch.Tensor.add_",
            "rank, across, parts, -1, lambda chunk, arrived: None")),
        "between the nodes only": level("with 2 in a node: chunk", (
            "rank, inside, chunks, -1, torch.Tensor.add_",
            "rank, inside, chunks, -1, lambda chunk, arrived: None")),
        "nobody is told": level("with 2 in a node: chunk", (
            "    yield from ring(rank, inside, chunks, 0, torch.Tensor.copy_)\n", "")),
        "adds at the end": level("with 2 in a node: chunk", (
            "chunks, 0, torch.Tensor.copy_", "chunks, 0, torch.Tensor.add_")),
        "begins with its own chunk": level("with 2 in a node: chunk", (
            "inside, chunks, -1", "inside, chunks, 0")),
        "nodes dealt out": level({"one ring over all ranks", "each rank alone", None}, (
            "node, i = divmod(rank, per_node)",
            "i, node = divmod(rank, world_size // per_node)"),
            ("[node * per_node + place for place in range(per_node)]",
             "list(range(node, world_size, world_size // per_node))"),
            ("list(range(i, world_size, per_node))",
             "[i * (world_size // per_node) + n for n in range(world_size // per_node)]")),
        "the mean": level("this is the mean", (
            "    yield from ring(rank, inside, chunks, -1",
            "    tensor.div_(world_size)\n    yield from ring(rank, inside, chunks, -1")),
        "the whole ring in each node once more": level("all nodes go round at once", (
            "    yield from ring(rank, inside, chunks, 0, torch.Tensor.copy_)\n",
            "    yield from ring(rank, inside, chunks, 0, torch.Tensor.copy_)\n" * 2)),
        "one rank speaks for a node": ("inside a node chunks of the tensor go round", RING + """
def two_level(rank, world_size, tensor, per_node):
    node, i = divmod(rank, per_node)
    leaders = list(range(0, world_size, per_node))
    for place in range(1, per_node):
        arrived = yield (rank - i, tensor) if i == place else None
        if i == 0:
            tensor.add_(arrived)
    parts = tensor.tensor_split(len(leaders))
    if i:
        for _ in range(2 * (len(leaders) - 1)):
            yield
    else:
        yield from ring(rank, leaders, parts, -1, torch.Tensor.add_)
        yield from ring(rank, leaders, parts, 0, torch.Tensor.copy_)
    for place in range(1, per_node):
        arrived = yield (rank + place, tensor) if i == 0 else None
        if i == place:
            tensor.copy_(arrived)
"""),
    },
    "finish": {
        "no queue": bucket("buckets share the link", (
            "        now = max(now, start) + link.alpha + size / link.bandwidth",
            "        now = max(now, start + link.alpha + size / link.bandwidth)")),
        "after backward": bucket("a bucket leaves when it is ready", (
            "    now = 0\n", "    now = max(ready, default=0)\n")),
        "not waiting for the gradients": bucket("a bucket is sent before it is ready", (
            "max(now, start)", "now")),
        "the last alone": bucket({"this is the time of the last bucket alone",
                                  "buckets share the link"}, ("max(now, start)", "start")),
        "no alpha": bucket("alpha is left out", ("link.alpha + ", "")),
        "alpha once": bucket("alpha is paid for each bucket", (
            " + link.alpha + size", " + size"), (
            "    return now\n\n", "    return now + link.alpha\n\n")),
        "times the bandwidth": bucket("bandwidth is bytes a second", (
            "size / link", "size * link")),
        "when the last is ready": bucket("this is when the last bucket is ready", (
            "    return now\n\n", "    return max(ready, default=0)\n\n")),
        "the wait": bucket("this is a wait", (
            "    return now\n\n", "    return now - max(ready, default=0)\n\n")),
        "from the end": bucket("a bucket leaves when it is ready", (
            "zip(ready, sizes):\n        now", "zip(ready[::-1], sizes[::-1]):\n        now")),
        "appends to what it was given": bucket("ready is the caller's", (
            "    now = 0\n", "    now = 0\n    ready.append(0)\n    ready = ready[:-1]\n")),
        "prints": bucket(PRINTED, ("    return now\n\n", "    print(now)\n\n")),
        "its seconds": bucket("this is when the last bucket arrives", (
            "    return min(caps, key=lambda cap: (end(cap), -cap))",
            "    return min(map(end, caps))")),
        "its place": bucket("this is the place of the cap", (
            "    return min(caps, key=lambda cap: (end(cap), -cap))",
            "    return caps.index(min(caps, key=lambda cap: (end(cap), -cap)))")),
        "the latest": bucket({"this is the latest end", "the largest cap wins"}, (
            "return min(", "return max("), (
            "-cap", "cap")),
        "the smallest of equals": bucket("of several caps", ("-cap", "cap")),
        "the first of equals": bucket("of several caps", (
            "(end(cap), -cap)", "end(cap)")),
        "the last of equals": bucket("of several caps", (
            "min(caps, key=lambda cap: (end(cap), -cap))", "min(caps[::-1], key=end)")),
        "full at the cap": bucket("a bucket that holds just `cap` bytes", (
            "<= cap", "< cap")),
        "closed when it is too large": bucket("a bucket is closed before", (
            "full[-1] + size <= cap", "full[-1] < cap")),
        "ready with its first gradient": bucket({
            "a bucket is ready when its last", "the largest cap"}, (
            "                times[-1] = start\n", "")),
        "the last bucket forgotten": bucket({"the last bucket is sent, too", "the largest cap"}, (
            "finish(times, full, link)\n    return min",
            "finish(times[:-1], full[:-1], link)\n    return min")),
        "one bucket for all": bucket("the largest cap wins each time", (
            "return min(caps, key=lambda cap: (end(cap), -cap))", "return max(caps)")),
        "the smallest cap": bucket({"the smallest buckets", "of several caps"}, (
            "return min(caps, key=lambda cap: (end(cap), -cap))", "return min(caps)")),
        "another cap": bucket("this is none of the caps", (
            "return min(caps, key", "return 0.5 + min(caps, key")),
        "sorts the caps": bucket("caps is the caller's", (
            "    return min(caps", "    caps.sort()\n    return min(caps")),
        "prints the cap": bucket(PRINTED, (
            "    return min(caps, key=lambda cap: (end(cap), -cap))",
            "    print(min(caps, key=lambda cap: (end(cap), -cap)))")),
    },
    "best_world_size": {
        "weak for strong": best("weak and strong have changed places", (
            "if weak else math", "if not weak else math")),
        "always weak": best("strong scaling keeps the minibatch", (
            "math.ceil(job.rows / N)", "job.rows")),
        "always strong": best("weak scaling keeps the rows", (
            "job.rows if weak else ", "")),
        "parts of rows": best("rows are whole", ("math.ceil(job.rows / N)",
                                                 "job.rows / N")),
        "rows rounded down": best("round the rows up", ("math.ceil(job.rows / N)",
                                                        "job.rows // N")),
        "no serial part": best("the serial part is left out", ("job.serial + rows",
                                                               "rows")),
        "the serial part divided": best("the serial part takes as long", (
            "job.serial + rows", "job.serial / N + rows")),
        "the serial part slowed": best("the slow rank is slow for its rows", (
            "job.serial + rows * job.row * slow",
            "slow * (job.serial + rows * job.row)")),
        "one rank is slow": best("one rank alone is not the slow one", (
            "job.slow if N > 1 else 1", "job.slow")),
        "nobody is slow": best("all ranks wait for the slow one", (
            "job.slow if N > 1 else 1", "1")),
        "the mean rank": best("all wait for the slowest rank", (
            "job.slow if N > 1 else 1", "(N - 1 + job.slow) / N if N > 1 else 1")),
        "alpha and beta swapped": best("alpha and beta have changed places", (
            "job.alpha + job.beta *", "job.beta + job.alpha *")),
        "2 N steps": best("a ring has 2 (N - 1) steps", ("2 * (N - 1) *", "2 * N *")),
        "one way": best("a ring has N - 1 steps in", ("2 * (N - 1) *", "(N - 1) *")),
        "whole tensors": best("a message of the ring is a chunk", (
            "job.size / N", "job.size")),
        "no all-reduce": best("the all-reduce is left out", (" * slow + ring", " * slow")),
        "alpha once": best("alpha is paid in each", (
            "2 * (N - 1) * (job.alpha + job.beta * job.size / N)",
            "(N > 1) * job.alpha + 2 * (N - 1) * job.beta * job.size / N")),
        "milliseconds": best("seconds are wanted", (
            "return job.serial + rows * job.row * slow + ring",
            "return 1e3 * (job.serial + rows * job.row * slow + ring)")),
        "prints": best(PRINTED, ("return job.serial", "print(job.serial"), (
            "slow + ring", "slow + ring)")),
        "the seconds of the best": best("the world size is wanted, not its seconds", (
            "return max(range(1, most + 1), key=rate)",
            "return step_seconds(job, max(range(1, most + 1), key=rate), weak)")),
        "the rows a second": best("the world size is wanted, not its rows", (
            "return max(range(1, most + 1), key=rate)",
            "return rate(max(range(1, most + 1), key=rate))")),
        "counted from 0": best("this is one too few", (
            "return max(range(1, most + 1), key=rate)",
            "return max(range(1, most + 1), key=rate) - 1")),
        "the shortest weak step": best("rows count that all ranks", (
            "(n if weak else 1)", "1")),
        "the last of equals": best("of several that are equally good", (
            "key=rate", "key=lambda n: (rate(n), n)")),
        "stops when it gets slower": best({"the search ends", "of several"}, (
            "    return max(range(1, most + 1), key=rate)", """\
    n = 1
    while n < most and rate(n + 1) >= rate(n):
        n += 1
    return n""")),
        "stops when it gets no better": best("the search ends", (
            "    return max(range(1, most + 1), key=rate)", """\
    n = 1
    while n < most and rate(n + 1) > rate(n):
        n += 1
    return n""")),
        "never the last": best("the last one is never tried", (
            "max(range(1, most + 1), key=rate)",
            "max(range(1, most), key=rate, default=1)")),
        "the most efficient": best("the best efficiency is that of one rank", (
            "key=rate", "key=lambda n: rate(n) / n")),
        "as many as there are": best({"more ranks are not", "of several"}, (
            "return max(range(1, most + 1), key=rate)", "return most")),
        "weak, as many as there are": best("weak scaling is not always better", (
            "return max(range(1, most + 1), key=rate)",
            "return most if weak else max(range(1, most + 1), key=rate)")),
        "the worst": best({"this is the worst", "the best efficiency"}, (
            "return max(range", "return min(range")),
        "no best": best(PRINTED, ("return max(range", "print(range"), (
            "1), key=rate)", "1))")),
        "slower, never the last": best("`most` itself counts", (
            "range(2, most + 1)", "range(2, most)")),
        "0 for none": best("None is wanted", (
            "            return n\n", "            return n\n    return 0\n")),
        "as long is slower": best("a step that takes as long", (
            "> step_seconds(job, n - 1, False)", ">= step_seconds(job, n - 1, False)")),
        "compared with one rank": best({"compare with one rank less", "there is such"}, (
            "step_seconds(job, n - 1, False)", "step_seconds(job, 1, False)")),
        "the one before": best("this is the last one that is not slower", (
            "            return n\n", "            return n - 1\n")),
        "the last of them": best({"this is the last, the first is wanted",
                                  "None is wanted"}, (
            "range(2, most + 1):\n        if", "range(most, 1, -1):\n        if")),
        "never any": best("there is such a number", (
            "            return n\n", "            return None\n")),
        "the last not tried": best({"there is such a number", None}, (
            "range(2, most + 1):\n        if", "range(2, 3):\n        if")),
    },
    "zero_bytes": {
        "no whole layer": zero("stage 3 needs room", ("shard + max(layers)", "shard")),
        "all layers whole": zero("at stage 3 one layer is whole", (
            "shard + max(layers)", "shard + whole")),
        "the last layer": zero("the whole layer is the largest one", (
            "max(layers)", "layers[-1]")),
        "its gradients too": zero("the whole layer has 2 bytes", (
            "shard + max(layers)", "shard + 2 * max(layers)")),
        "divided exactly": zero("a shard has whole weights", (
            "-(-layer // world_size)", "layer / world_size")),
        "rounded down": zero("round up, not down", (
            "-(-layer // world_size)", "layer // world_size")),
        "rounded up once": zero("each layer is cut by itself: round up", (
            "sum(-(-layer // world_size) for layer in layers)",
            "-(-sum(layers) // world_size)")),
        "one flat tensor": zero("each layer is cut by itself, and the largest", (
            "sum(-(-layer // world_size) for layer in layers)",
            "-(-sum(layers) // world_size)"), ("shard + max(layers)", "shard")),
        "nothing shared out": zero("nothing is shared out", (
            "    return weights + gradients + adam", "    return 16 * whole")),
        "a stage early": zero("stages are counted from 0", (
            "    whole = sum", "    stage += 1\n    whole = sum")),
        "of all ranks": zero("this is the memory of all ranks", (
            "return weights + gradients + adam",
            "return world_size * (weights + gradients + adam)")),
        "8 bytes of Adam": zero("Adam has 12 bytes", ("12 *", "8 *")),
        "all in 32 bits": zero("weights and gradients have 16 bits", (
            "12 *", "8 *"), ("= 2 * (", "= 4 * (")),
        "in gigabytes": zero("this is in gigabytes", (
            "return weights + gradients + adam", "return (weights + gradients + adam) / 1e9")),
        "in float32": zero("this is rounded", (
            "return weights + gradients + adam",
            "return torch.tensor(float(weights + gradients + adam))")),
        "sorts the layers": zero("the list is the caller's", (
            "    whole = sum", "    layers.sort()\n    whole = sum")),
        "prints": zero(PRINTED, (
            "return weights + gradients + adam", "print(weights + gradients + adam)")),
        "must be below": zero("what just fits, fits", ("<= memory", "< memory")),
        "begins with two": zero("one rank counts, too", (
            "range(1, most + 1)", "range(2, most + 1)")),
        "never the last": zero("`most` itself counts", (
            "range(1, most + 1)", "range(1, most)")),
        "one too few": zero("one too few", (
            "            return world_size\n", "            return world_size - 1\n")),
        "0 for none": zero("None is wanted", (
            "            return world_size\n",
            "            return world_size\n    return 0\n")),
        "most for none": zero("None is wanted", (
            "            return world_size\n",
            "            return world_size\n    return most\n")),
        "beyond most": zero("None is wanted", (
            "range(1, most + 1)", "range(1, 10 * most + 1)")),
        "the bytes": zero("the bytes are no number of ranks", (
            "            return world_size\n",
            "            return zero_bytes(layers, world_size, stage)\n")),
        "the largest": zero("this is the largest number", (
            "range(1, most + 1):\n        if", "range(most, 0, -1):\n        if")),
        "never any": zero("there is such a number", (
            "            return world_size\n", "            print(world_size)\n")),
    },
    "place": {
        "the local rank": put("this is the rank on its host", (
            "return rank,", "return local,")),
        "the host's number": put({"this is the host's number",
                                  "this is the rank on its host"}, (
            "return rank,", "return int(env.get('GROUP_RANK', 0)),")),
        "host times ranks": put("hosts may have different numbers", (
            "return rank,", "return int(env.get('GROUP_RANK', 0)) * "
                            "int(env.get('LOCAL_WORLD_SIZE', 1)) + local,")),
        "a text": put("numbers in an environment are texts", (
            "return rank,", "return env.get('RANK', 0),")),
        "always the first GPU": put("all ranks of this host would share one GPU", (
            "{local % gpus}", "0")),
        "the GPU of its rank": put("GPUs are counted on each host", (
            "{local % gpus}", "{rank}")),
        "more GPUs than there are": put("there are fewer GPUs than ranks", (
            "{local % gpus}", "{local}")),
        "spread over the GPUs": put("each rank takes the next GPU", (
            "{local % gpus}", "{local * max(1, gpus // "
            "int(env.get('LOCAL_WORLD_SIZE', 1))) % gpus}")),
        "no number": put("write the device as torch does", (
            'f"cuda:{local % gpus}"', '"cuda"')),
        "the CPU without torchrun": put("this host has a GPU", (
            'if gpus else', 'if gpus and "RANK" in env else')),
        "two ranks without torchrun": put("rows are dealt out over all ranks", (
            'env.get("WORLD_SIZE", 1)', 'env.get("WORLD_SIZE", 2)')),
        "never without a row": put("rows are dealt out over all ranks", (
            "list(range(rank, rows, size))", "list(range(rank, rows, size)) or [rank % rows]")),
        "counts its calls": ({"RANK counts over all hosts", "this is the rank on its host",
                              "this is the host's number"}, "CALLS = [1, 0]" + PLACE.replace(
            "    device", "    CALLS[:] = [size, CALLS[1] + 1 if CALLS[0] == size else 1]\n"
            "    rank = CALLS[1] - 1\n    device")),
        "a number": put("write the device as torch does", (
            'f"cuda:{local % gpus}"', "local % gpus")),
        "never the CPU": put('without a GPU it is "cpu"', (
            'f"cuda:{local % gpus}" if gpus else "cpu"', 'f"cuda:{local % max(1, gpus)}"')),
        "always the CPU": put("this host has a GPU", (
            'f"cuda:{local % gpus}" if gpus else "cpu"', '"cpu"')),
        "all rows": put("every rank has all rows", (
            "range(rank, rows, size)", "range(rows)")),
        "rows of a host": put("these are shared out on each host anew", (
            "range(rank, rows, size)",
            "range(local, rows, int(env.get('LOCAL_WORLD_SIZE', 1)))")),
        "rows in a block": put({"rows are dealt out in turn", "rows are dealt out over"}, (
            "range(rank, rows, size)",
            "range(rank * -(-rows // size), min(rows, (rank + 1) * -(-rows // size)))")),
        "rows dropped": put("some ranks have a row more", (
            "range(rank, rows, size)", "range(rank, rows // size * size, size)")),
        "how many rows": put("how many they are, not which", (
            "list(range(rank, rows, size))", "len(range(rank, rows, size))")),
        "rank 0 downloads": put("each host has a disk of its own", (
            "local == 0", "rank == 0")),
        "all download": put("one rank of a host is enough", ("local == 0", "True")),
        "text and number": put("LOCAL_RANK is a text", (
            "local == 0", "env.get('LOCAL_RANK', 0) == 0 and 'RANK' not in env")),
        "five things": put("return four things", (
            ", local == 0", ", local == 0, size")),
        "three things": put("return four things", (", local == 0", "")),
        "prints": put(PRINTED, ("return rank, device, mine, local == 0",
                                "print(rank, device, mine, local == 0)")),
        "sets a default": put("env is the caller's", (
            'env.get("RANK", 0)', 'env.setdefault("RANK", "0")')),
        "os.environ": ({"every rank has all rows", "RANK counts", "all ranks of this"}, """
import os
""" + PLACE.replace("env.get", "os.environ.get")),
    },
    "rows_left": {
        "seen by all": left("`seen` is what each old rank has read", (
            "seen * old", "seen")),
        "times the new ranks": left({"what was read is that of the old ranks",
                                     "`seen` is what each"}, ("seen * old", "seen * new")),
        "from the beginning": left("the epoch begins again", ("[seen * old:]", "")),
        "what was read": left("these are the rows that were read", (
            "[seen * old:]", "[:seen * old] if seen else order")),
        "for the old ranks": left("there are lists for the old ranks", (
            "left[rank::new] for rank in range(new)",
            "left[rank::old] for rank in range(old)")),
        "in blocks": left("rows are dealt out in turn", (
            "left[rank::new]", "left[rank * -(-len(left) // new):"
            "(rank + 1) * -(-len(left) // new)]")),
        "sorted": left("the order is lost", (
            "    return", "    left = sorted(left) if seen else left\n    return")),
        "rows dropped": left("rows are lost", (
            "left[rank::new]", "left[:len(left) // new * new][rank::new]")),
        "rows repeated": left("rows come twice", (
            "    return", "    left += left[:-len(left) % new]\n    return")),
        "a flat list": left({"return a list for each new rank"}, (
            "[left[rank::new] for rank in range(new)]", "left")),
        "rank by rank": left("what was read is that of the old ranks", (
            "order[seen * old:]", "order"), ("left[rank::new]", "left[rank::new][seen:]")),
        "shuffled again": left({"these are the right rows", "the order is lost"}, (
            "    return", "    torch.manual_seed(seen)\n    left = [left[i] for i in "
            "torch.randperm(len(left))] if seen else left\n    return")),
        "another order on other ranks": left("the same arguments must give", (
            "1000 * seed + epoch", "1000 * seed + epoch + 7 * new + 13 * old")),
        "drawn anew each time": left("the same arguments must give", (
            ".manual_seed(1000 * seed + epoch)", ""),
            ("generator = torch.Generator()",
             "generator = torch.Generator()\n    generator.seed()")),
        "the same in each epoch": left("another epoch has another order", (
            "1000 * seed + epoch", "seed")),
        "the same for each seed": left("another seed has another order", (
            "1000 * seed + epoch", "epoch")),
        "seed plus epoch": left("seed and epoch are added", (
            "1000 * seed + epoch", "seed + epoch")),
        "ten seeds plus epoch": left("two pairs of seed and epoch give the same number", (
            "1000 * seed + epoch", "10 * seed + epoch")),
        "twice the seed plus epoch": left("two pairs of seed and epoch give the same number", (
            "1000 * seed + epoch", "2 * seed + epoch")),
        "thirty-one seeds plus epoch": left("two pairs of seed and epoch give the same number", (
            "1000 * seed + epoch", "31 * seed + epoch")),
        "an exclusive or": left("two pairs of seed and epoch give the same number", (
            "1000 * seed + epoch", "seed ^ (epoch << 1)")),
        "a hundred epochs plus seed": left("two pairs of seed and epoch give the same number", (
            "1000 * seed + epoch", "100 * epoch + seed")),
        "a hundred seeds plus epoch": left("two pairs of seed and epoch give the same number", (
            "1000 * seed + epoch", "100 * seed + epoch")),
        "eight bits for the epoch": left("two pairs of seed and epoch give the same number", (
            "1000 * seed + epoch", "seed << 8 | epoch")),
        "seed times epoch": left({"another epoch has", "another seed has",
                                  "two pairs of seed and epoch give the same number"}, (
            "1000 * seed + epoch", "(seed + 1) * (epoch + 1)")),
        "not shuffled": left("the rows are not shuffled", (
            "torch.randperm(n, generator=generator).tolist()", "list(range(n))")),
        "counted from 1": left("rows are counted from 0", (
            ".tolist()", ".add(1).tolist()")),
        "with repetitions": left("each row comes once", (
            "torch.randperm(n, generator=generator)",
            "torch.randint(n, (n,), generator=generator)")),
        "torch's generator": left("take a generator of your own", (
            "torch.Generator().manual_seed", "torch.manual_seed")),
        "hash of a text": left("hash() of a text", (
            "1000 * seed + epoch", "abs(hash(f'{seed} {epoch}')) % 2**40")),
        "prints": left(PRINTED, ("    return [left[rank::new] for rank in range(new)]",
                                 "    print(left[::new])")),
    },
}
