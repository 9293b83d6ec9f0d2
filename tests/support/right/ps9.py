"""Right answers to problem set 9, by style: {exercise: {style: cell}}."""

ANSWERS = {
    "fit": {
        "numpy's polyfit": """
import numpy as np

def fit(sizes, seconds):
    t = np.array(seconds)
    beta, alpha = np.polyfit(sizes, t, 1, w=1 / t)
    return alpha, beta
""",
        "normal equations, by hand": """
def fit(sizes, seconds):
    a = sum(1 / t ** 2 for t in seconds)
    b = sum(s / t ** 2 for s, t in zip(sizes, seconds))
    c = sum(s * s / t ** 2 for s, t in zip(sizes, seconds))
    d = sum(1 / t for t in seconds)
    e = sum(s / t for s, t in zip(sizes, seconds))
    whole = a * c - b * b
    return [(c * d - b * e) / whole, (a * e - b * d) / whole]
""",
        "a weighted mean, by hand": """
def fit(sizes, seconds):
    w = [1 / t ** 2 for t in seconds]
    mean = sum(x * s for x, s in zip(w, sizes)) / sum(w)
    late = sum(x * t for x, t in zip(w, seconds)) / sum(w)
    beta = (sum(x * (s - mean) * (t - late) for x, s, t in zip(w, sizes, seconds))
            / sum(x * (s - mean) ** 2 for x, s in zip(w, sizes)))
    return late - beta * mean, beta
""",
        "numpy's lstsq, an array": """
import numpy as np

def fit(sizes, seconds):
    s, t = np.array(sizes, dtype=float), np.array(seconds)
    return np.linalg.lstsq(np.c_[1 / t, s / t], np.ones(len(t)), rcond=None)[0]
""",
        "torch's solve, a tensor with a column": """
def fit(sizes, seconds):
    t = torch.tensor(seconds, dtype=torch.float64)
    s = torch.tensor(sizes, dtype=torch.float64) / 1e6
    A = torch.stack([1 / t, s / t], 1)
    found = torch.linalg.solve(A.T @ A, A.T @ torch.ones(len(t), 1).double())
    return found / torch.tensor([[1.0], [1e6]])
""",
        "a search, to eight digits": """
def fit(sizes, seconds):
    def best(alpha):  # beta for this alpha, and what it costs
        w = [1 / t ** 2 for t in seconds]
        beta = (sum(a * s * (t - alpha) for a, s, t in zip(w, sizes, seconds))
                / sum(a * s * s for a, s in zip(w, sizes)))
        return sum(((alpha + beta * s) / t - 1) ** 2 for s, t in zip(sizes, seconds)), beta
    low, high = 0.0, 2 * max(seconds)
    while high - low > 1e-8 * high:
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        if best(left) < best(right):
            high = right
        else:
            low = left
    return low, best(low)[1]
""",
        "a named tuple, prints too": """
from collections import namedtuple
Link = namedtuple("Link", "alpha beta")

def fit(sizes, seconds):
    t = torch.tensor(seconds).double()
    t = torch.tensor([float(x) for x in seconds], dtype=torch.float64)
    rows = torch.stack([1 / t, torch.tensor(sizes, dtype=torch.float64) / t]).T
    print(rows.shape)
    return Link(*torch.linalg.lstsq(rows, torch.ones_like(t)[:, None]).solution[:, 0])
""",
    },
    "allreduce_seconds": {
        "a formula for each": """
def allreduce_seconds(way, world_size, size, alpha, beta):
    N, n = world_size, size // 4
    if N == 1:
        return 0
    if way == "star":
        return 2 * (N - 1) * (alpha + size * beta)
    if way == "ring":
        return 2 * (N - 1) * (alpha + 4 * math.ceil(n / N) * beta)
    if way == "tree":
        return 2 * math.ceil(math.log2(N)) * (alpha + beta * size)
    k = round(math.log2(N))
    return 2 * k * alpha + 8 * beta * sum(math.ceil(n / 2 ** i) for i in range(1, k + 1))
""",
        "step by step": """
def allreduce_seconds(way, world_size, size, alpha, beta):
    def step(numbers):
        return alpha + beta * 4 * numbers
    total, numbers = 0.0, size // 4
    if way in ("star", "ring"):
        chunk = numbers if way == "star" else (numbers + world_size - 1) // world_size
        for _ in range(world_size - 1):
            total += step(chunk) + step(chunk)
    else:
        reached = 1
        while reached < world_size:
            reached *= 2
            if way == "halving-doubling":
                numbers -= numbers // 2
            total += 2 * step(numbers)
    return total
""",
        "tensor_split says how long": """
def allreduce_seconds(way, world_size, size, alpha, beta):
    numbers = torch.empty(size // 4, device="meta")
    levels = len(bin(world_size - 1)) - 2 if world_size > 1 else 0
    if way == "ring":
        longest = [max(len(c) for c in numbers.tensor_split(world_size))] * (world_size - 1)
    elif way == "star":
        longest = [len(numbers)] * (world_size - 1)
    elif way == "tree":
        longest = [len(numbers)] * levels
    else:
        longest = []
        for _ in range(levels):
            numbers = numbers.tensor_split(2)[0]
            longest.append(len(numbers))
    return torch.tensor([alpha + 4 * n * beta for n in longest * 2],
                        dtype=torch.float64).sum()
""",
        "numpy, and a table of functions": """
import numpy as np

def allreduce_seconds(way, world_size, size, alpha, beta):
    n, levels = size / 4, int(np.ceil(np.log2(world_size)))
    bytes_of = {"star": lambda: np.full(world_size - 1, size),
                "ring": lambda: np.full(world_size - 1, 4 * np.ceil(n / world_size)),
                "tree": lambda: np.full(levels, size),
                "halving-doubling": lambda: 4 * np.ceil(n / 2.0 ** np.arange(1, levels + 1))}
    return 2 * np.sum(alpha + beta * bytes_of[way]())
""",
    },
    "halving_doubling": {
        "near partners first, halves of views": """
def halving_doubling(rank, world_size, tensor):
    power = 1
    while 2 * power <= world_size:
        power *= 2
    extra = world_size - power
    if extra:
        if rank >= power:
            yield rank - power, tensor
        else:
            arrived = yield
            if rank < extra:
                tensor += arrived
    parts, held, d = [], tensor, 1
    while d < power:
        if rank >= power:
            yield
        else:
            low, high = held.tensor_split(2)
            mine, other = (low, high) if rank & d == 0 else (high, low)
            arrived = yield rank ^ d, other
            mine += arrived
            parts.append((d, mine, other))
            held = mine
        d *= 2
    if rank >= power:
        d = power
        while d > 1:
            yield
            d //= 2
    for d, mine, other in reversed(parts):
        arrived = yield rank ^ d, mine
        other.copy_(arrived)
    if extra:
        if rank < extra:
            yield rank + power, tensor
        else:
            arrived = yield
            if rank >= power:
                tensor.copy_(arrived)
""",
        "guests are the odd ranks": """
def halving_doubling(rank, world_size, tensor):
    power = 2 ** int(math.log2(world_size))
    extra = world_size - power
    guests = [2 * i + 1 for i in range(extra)]
    keepers = [r for r in range(world_size) if r not in guests]
    levels = int(math.log2(power))
    if guests:
        if rank in guests:
            yield rank - 1, tensor
        else:
            arrived = yield
            if arrived is not None:
                tensor.add_(arrived)
    if rank in guests:
        for _ in range(2 * levels):
            yield
    else:
        place, held, stack = keepers.index(rank), tensor, []
        for level in range(levels):
            d = 2 ** level
            peer = keepers[place ^ d]
            halves = held[:(len(held) + 1) // 2], held[(len(held) + 1) // 2:]
            upper = bool(place & d)
            arrived = yield peer, halves[1 - upper]
            held = halves[upper]
            held.add_(arrived)
            stack.append((peer, halves, upper))
        while stack:
            peer, halves, upper = stack.pop()
            arrived = yield peer, halves[upper]
            halves[1 - upper].copy_(arrived)
    if guests:
        arrived = yield (rank + 1, tensor) if rank + 1 in guests else None
        if rank in guests:
            tensor.copy_(arrived)
""",
        "by recursion": """
def exchange(rank, power, tensor, d):
    if d == power:
        return
    low, high = tensor.tensor_split(2)
    mine, other = (high, low) if rank // d % 2 else (low, high)
    arrived = yield (rank ^ d), other
    mine.add_(arrived)
    yield from exchange(rank, power, mine, 2 * d)
    arrived = yield (rank ^ d), mine
    other.copy_(arrived)

def halving_doubling(rank, world_size, tensor):
    power = 1 << (world_size.bit_length() - 1)
    extra = world_size - power
    if rank >= power:
        yield rank - power, tensor
        for _ in range(2 * (power.bit_length() - 1)):
            yield
        tensor.copy_((yield))
        return
    if extra:
        arrived = yield
        if rank < extra:
            tensor.add_(arrived)
    yield from exchange(rank, power, tensor, 1)
    if extra:
        yield (rank + power, tensor) if rank < extra else None
""",
        "directly to each owner, in pairs": """
def halving_doubling(rank, world_size, tensor):
    M = 2 ** (world_size.bit_length() - 1)
    chunks = list(tensor.tensor_split(M))
    if M < world_size:
        arrived = yield (rank - M, tensor) if rank >= M else None
        if arrived is not None:
            tensor.add_(arrived)
    def group(place, d):  # the chunks of the block of d that place is in
        first = place // d * d
        return chunks[first:first + d]
    distances = [2 ** i for i in range(M.bit_length() - 1)]
    for d in reversed(distances):
        if rank < M:
            arrived = yield rank ^ d, group(rank ^ d, d)
            for c, a in zip(group(rank, d), arrived):
                c += a
        else:
            yield
    for d in distances:
        if rank < M:
            arrived = yield rank ^ d, group(rank, d)
            for c, a in zip(group(rank ^ d, d), arrived):
                c[:] = a
        else:
            yield
    if M < world_size:
        arrived = yield (rank + M, tensor) if rank + M < world_size else None
        if rank >= M:
            tensor.copy_(arrived)
""",
    },
    "two_level": {
        "four loops": """
def two_level(rank, world_size, tensor, per_node):
    g, M = per_node, world_size // per_node
    node, i = rank // g, rank % g
    chunks = tensor.tensor_split(g)
    right = node * g + (i + 1) % g
    for s in range(g - 1):
        arrived = yield right, chunks[(i - 1 - s) % g]
        chunks[(i - 2 - s) % g].add_(arrived)
    parts, far = chunks[i].tensor_split(M), (rank + g) % world_size
    for s in range(M - 1):
        arrived = yield far, parts[(node - 1 - s) % M]
        parts[(node - 2 - s) % M].add_(arrived)
    for s in range(M - 1):
        arrived = yield far, parts[(node - s) % M]
        parts[(node - 1 - s) % M].copy_(arrived)
    for s in range(g - 1):
        arrived = yield right, chunks[(i - s) % g]
        chunks[(i - 1 - s) % g].copy_(arrived)
""",
        "directly to each owner": """
def reduce(ranks, me, chunks):
    k = len(ranks)
    for shift in range(1, k):
        to = (me + shift) % k
        chunks[me].add_((yield ranks[to], chunks[to]))

def spread(ranks, me, chunks):
    k = len(ranks)
    for shift in range(1, k):
        arrived = yield ranks[(me + shift) % k], chunks[me]
        chunks[(me - shift) % k].copy_(arrived)

def two_level(rank, world_size, tensor, per_node):
    ranks = torch.arange(world_size).view(-1, per_node)
    node, i = rank // per_node, rank % per_node
    inside, across = ranks[node].tolist(), ranks[:, i].tolist()
    chunks = list(tensor.tensor_split(per_node))
    parts = list(chunks[i].tensor_split(len(across)))
    yield from reduce(inside, i, chunks)
    yield from reduce(across, node, parts)
    yield from spread(across, node, parts)
    yield from spread(inside, i, chunks)
""",
        "rings to the left": """
def around(rank, ranks, chunks, add):
    k, me = len(ranks), ranks.index(rank)
    for step in range(k - 1):
        out = me + 1 + step if add else me + step
        arrived = yield ranks[me - 1], chunks[out % k]
        into = chunks[(out + 1) % k]
        into.copy_(into + arrived if add else arrived)

def two_level(rank, world_size, tensor, per_node):
    home = rank - rank % per_node
    node = [r for r in range(home, home + per_node)]
    peers = [r for r in range(world_size) if r % per_node == rank % per_node]
    chunks = tensor.tensor_split(per_node)
    own = chunks[rank % per_node].tensor_split(len(peers))
    yield from around(rank, node, chunks, True)
    yield from around(rank, peers, own, True)
    yield from around(rank, peers, own, False)
    yield from around(rank, node, chunks, False)
""",
        "on copies, written back at the end": """
def two_level(rank, world_size, tensor, per_node):
    g, nodes = per_node, world_size // per_node
    node, i = divmod(rank, g)
    work = tensor.clone()
    chunks = work.tensor_split(g)
    for shift in range(1, g):
        peer = (i + shift) % g
        chunks[i].add_((yield node * g + peer, chunks[peer]))
    parts = chunks[i].tensor_split(nodes)
    for shift in range(1, nodes):
        other = (node + shift) % nodes
        parts[node].add_((yield other * g + i, parts[other]))
    for shift in range(1, nodes):
        arrived = yield (node + shift) % nodes * g + i, parts[node]
        parts[(node - shift) % nodes].copy_(arrived)
    for shift in range(1, g):
        arrived = yield node * g + (i + shift) % g, chunks[i]
        chunks[(i - shift) % g].copy_(arrived)
    tensor.copy_(work)
""",
    },
    "finish": {
        "buckets as pairs": """
def finish(ready, sizes, link):
    free = 0.0
    for i in range(len(ready)):
        begin = ready[i] if ready[i] > free else free
        free = begin + link.alpha + sizes[i] / link.bandwidth
    return free

def best_cap(ready, sizes, link, caps):
    best = None
    for cap in sorted(caps, reverse=True):
        held, buckets = [], []
        for t, size in zip(ready, sizes):
            if held and sum(s for _, s in held) + size > cap:
                buckets.append(held)
                held = []
            held.append((t, size))
        if held:
            buckets.append(held)
        end = finish([b[-1][0] for b in buckets],
                     [sum(s for _, s in b) for b in buckets], link)
        if best is None or end < best[0]:
            best = end, cap
    return best[1]
""",
        "from each bucket to the end": """
def finish(ready, sizes, link):
    # the last bucket waits for the longest of: bucket i's start, and all sends from there
    sends = [link.alpha + size / link.bandwidth for size in sizes]
    return max((t + sum(sends[i:]) for i, t in enumerate(ready)), default=0)

def best_cap(ready, sizes, link, caps):
    def end(cap):
        cuts, held = [0], 0
        for i, size in enumerate(sizes):
            if i > cuts[-1] and held + size > cap:
                cuts.append(i)
                held = 0
            held += size
        spans = list(zip(cuts, cuts[1:] + [len(sizes)]))
        return finish([ready[b - 1] for _, b in spans], [sum(sizes[a:b]) for a, b in spans],
                      link)
    ends = {cap: end(cap) for cap in caps}
    return max(cap for cap in caps if ends[cap] == min(ends.values()))
""",
        "a tensor": """
def finish(ready, sizes, link):
    now = torch.tensor(0.0, dtype=torch.float64)
    for start, size in zip(ready, sizes):
        now = torch.clamp(now, min=start) + link.alpha + size / link.bandwidth
    return now

def best_cap(ready, sizes, link, caps):
    def bucketed(cap):
        when, how_much = [], []
        for start, size in zip(ready, sizes):
            if how_much and how_much[-1] + size <= cap:
                when[-1], how_much[-1] = start, how_much[-1] + size
            else:
                when.append(start), how_much.append(size)
        return when, how_much
    caps = torch.tensor(caps).sort(descending=True).values
    ends = torch.stack([finish(*bucketed(cap.item()), link) for cap in caps])
    return caps[[i for i in range(len(caps)) if ends[i] == ends.min()][0]]
""",
        "a helper for one bucket": """
def send(now, start, size, link):
    return max(now, start) + (link.alpha + size * (1 / link.bandwidth))

def finish(ready, sizes, link):
    now = 0
    for start, size in zip(ready, sizes):
        now = send(now, start, size, link)
    return now

def best_cap(ready, sizes, link, caps):
    def end(cap):
        now = held = last = 0
        for start, size in zip(ready, sizes):
            if held and held + size > cap:
                now, held = send(now, last, held, link), 0
            held, last = held + size, start
        return send(now, last, held, link)
    return sorted(caps, key=lambda cap: (end(cap), -cap))[0]
""",
    },
    "best_world_size": {
        "loops": """
def step_seconds(job, world_size, weak):
    rows = job.rows if weak else -(-job.rows // world_size)
    seconds = job.serial
    for row in range(rows):
        seconds += job.row * (job.slow if world_size >= 2 else 1)
    for step in range(2 * (world_size - 1)):
        seconds += job.alpha + job.beta * job.size / world_size
    return seconds

def best_world_size(job, most, weak):
    best, record = None, -1
    for n in range(1, most + 1):
        rate = (n * job.rows if weak else job.rows) / step_seconds(job, n, weak)
        if rate > record * (1 + 1e-12):
            best, record = n, rate
    return best

def first_slower(job, most):
    times = [step_seconds(job, n, False) for n in range(1, most + 1)]
    for n, (before, now) in enumerate(zip(times, times[1:]), 2):
        if now > before * (1 + 1e-12):
            return n
    return None
""",
        "tensors": """
def step_seconds(job, world_size, weak):
    shards = torch.arange(job.rows).tensor_split(1 if weak else world_size)
    rows = max(len(s) for s in shards)
    k = torch.tensor(float(world_size), dtype=torch.float64)
    ring = 2 * (k - 1) * job.alpha + 2 * (k - 1) / k * job.size * job.beta
    return job.serial + job.row * rows * (job.slow if world_size > 1 else 1) + ring

def best_world_size(job, most, weak):
    counts = torch.arange(1, most + 1, dtype=torch.float64)
    times = torch.stack([step_seconds(job, int(n), weak) for n in counts])
    cost = times / counts if weak else times
    return int(cost.argmin()) + 1

def first_slower(job, most):
    for n in range(2, most + 1):
        if bool(step_seconds(job, n, False) > step_seconds(job, n - 1, False)):
            return torch.tensor(n)
""",
        "numpy": """
import numpy as np

def step_seconds(job, world_size, weak):
    rows = job.rows if weak else int(np.ceil(job.rows / world_size))
    factor = np.where(world_size > 1, job.slow, 1)
    return np.sum([job.serial, factor * rows * job.row,
                   2 * (world_size - 1) * (job.alpha + job.size / world_size * job.beta)])

def best_world_size(job, most, weak):
    n = np.arange(1, most + 1)
    t = np.array([step_seconds(job, k, weak) for k in n])
    return n[np.argmax(n ** int(weak) / t)]

def first_slower(job, most):
    t = np.array([step_seconds(job, k, False) for k in range(1, most + 1)])
    where = np.nonzero(np.diff(t) > 0)[0]
    return where[0] + 2 if len(where) else None
""",
        "the rank whose shard is largest": """
def step_seconds(job, world_size, weak):
    per_rank = []
    for rank in range(world_size):
        rows = job.rows if weak else len(range(rank, job.rows, world_size))
        speed = job.slow if rank == 0 and world_size > 1 else 1
        per_rank.append(rows * job.row * speed)
    return (max(per_rank) + job.serial + (world_size - 1) * 2 * job.alpha
            + job.beta * (2 * job.size - 2 * job.size / world_size))

def best_world_size(job, most, weak):
    def seconds_a_row(n):
        return step_seconds(job, n, weak) / (job.rows * n if weak else job.rows)
    return min(range(1, most + 1), key=lambda n: (seconds_a_row(n), n))

def first_slower(job, most):
    return next((n for n in range(2, most + 1) if
                 step_seconds(job, n, False) - step_seconds(job, n - 1, False) > 0), None)
""",
    },
    "zero_bytes": {
        "layer by layer": """
def zero_bytes(layers, world_size, stage):
    total = 0
    for layer in layers:
        shard = (layer + world_size - 1) // world_size
        total += 2 * (shard if stage == 3 else layer)
        total += 2 * (shard if stage in (2, 3) else layer)
        total += 12 * (layer if stage == 0 else shard)
    if stage == 3:
        total += 2 * sorted(layers)[-1]
    return total

def fewest_ranks(layers, stage, memory, most):
    low, high = 1, most + 1  # the smallest that fits is in [low, high]
    while low < high:
        middle = (low + high) // 2
        if zero_bytes(layers, middle, stage) <= memory:
            high = middle
        else:
            low = middle + 1
    return low if low <= most else None
""",
        "tensors of whole numbers": """
def zero_bytes(layers, world_size, stage):
    whole = torch.tensor(layers)
    cut = (whole + world_size - 1) // world_size
    kept = 12 * (cut if stage > 0 else whole) + 2 * (cut if stage > 1 else whole)
    kept = kept + 2 * (cut if stage > 2 else whole)
    return kept.sum() + (2 * whole.max() if stage > 2 else 0)

def fewest_ranks(layers, stage, memory, most):
    fits = [n for n in range(1, most + 1) if zero_bytes(layers, n, stage) <= memory]
    return fits[0] if fits else None
""",
        "math.ceil and a table": """
CUT = {0: (False, False, False), 1: (True, False, False), 2: (True, True, False),
       3: (True, True, True)}

def zero_bytes(layers, world_size, stage):
    return sum(size * (math.ceil(layer / world_size) if cut else layer)
               for size, cut in zip((12, 2, 2), CUT[stage])
               for layer in layers) + (max(layers) * 2 if stage == 3 else 0)

def fewest_ranks(layers, stage, memory, most):
    n = 1
    while zero_bytes(layers, n, stage) > memory:
        n += 1
        if n > most:
            return None
    return n
""",
        "floats, of whole numbers": """
import numpy as np

def zero_bytes(layers, world_size, stage):
    layers = np.array(layers, dtype=np.float64)
    cut = np.ceil(layers / world_size)
    parts = [cut if stage >= s else layers for s in (3, 2, 1)]
    return np.array([2.0, 2.0, 12.0]) @ np.stack(parts).sum(1) + 2 * layers.max() * (stage == 3)

def fewest_ranks(layers, stage, memory, most):
    for n in range(1, most + 1):
        if not zero_bytes(layers, n, stage) > memory:
            return float(n)
""",
    },
    "place": {
        "a range and torch's device": """
def place(env, gpus, rows):
    number = {name: int(env.get(name, default)) for name, default in
              (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))}
    device = torch.device("cuda", number["LOCAL_RANK"] % gpus) if gpus > 0 else torch.device("cpu")
    return (number["RANK"], device, range(number["RANK"], rows, number["WORLD_SIZE"]),
            number["LOCAL_RANK"] == 0)
""",
        "a list, tensors": """
def place(env, gpus, rows):
    if "RANK" not in env:
        return [0, "cuda:0" if gpus else "cpu", torch.arange(rows), True]
    rank, local = int(env["RANK"]), int(env["LOCAL_RANK"])
    mine = torch.arange(rows)[rank::int(env["WORLD_SIZE"])]
    return [rank, f"cuda:{local % gpus}" if gpus else "cpu", mine, env["LOCAL_RANK"] == "0"]
""",
        "loops, and 1 for True": """
def place(env, gpus, rows):
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **env}
    rank, mine = int(env["RANK"]), []
    row = rank
    while row < rows:
        mine.append(row)
        row += int(env["WORLD_SIZE"])
    gpu = int(env["LOCAL_RANK"])
    while gpus and gpu >= gpus:
        gpu -= gpus
    first = 1 - min(1, int(env["LOCAL_RANK"]))
    return rank, "cuda:" + str(gpu) if gpus else "cpu", tuple(mine), first
""",
        "each row asked": """
def place(env, gpus, rows):
    def get(name, default):
        return int(env[name]) if name in env else default
    rank, size, local = get("RANK", 0), get("WORLD_SIZE", 1), get("LOCAL_RANK", 0)
    devices = [f"cuda:{i}" for i in range(gpus)] or ["cpu"]
    return (rank, devices[local % len(devices)],
            [row for row in range(rows) if row % size == rank], not local)
""",
    },
    "rows_left": {
        "Python's random": """
import random

def rows_left(n, seen, old, new, seed, epoch):
    order = random.Random(seed * 1000 + epoch).sample(range(n), n)
    rest = order[seen * old:]
    return [rest[r::new] for r in range(new)]
""",
        "tensors": """
def rows_left(n, seen, old, new, seed, epoch):
    g = torch.Generator()
    g.manual_seed(10 ** 6 * epoch + seed)
    rest = torch.randperm(n, generator=g)[old * seen:]
    return tuple(rest[r::new] for r in range(new))
""",
        "numpy": """
import numpy as np

def rows_left(n, seen, old, new, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return [order[seen * old + rank::new] for rank in range(new)]
""",
        "what was read, crossed out": """
def rows_left(n, seen, old, new, seed, epoch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7919 * seed + epoch)
        order = torch.randperm(n).tolist()
    read = set()
    for rank in range(old):
        read.update(order[rank::old][:seen])
    shares = [[] for _ in range(new)]
    for place, row in enumerate(row for row in order if row not in read):
        shares[place % new].append(row)
    return shares
""",
        "a shuffled list": """
from random import Random

def rows_left(n, seen, old, new, seed, epoch):
    order = list(range(n))
    Random(f"{seed} {epoch}").shuffle(order)
    del order[:seen * old]
    return [order[rank:len(order):new] for rank in range(new)]
""",
    },
}
