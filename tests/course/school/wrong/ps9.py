"""Wrong answers to problem set 9: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "ps9/fit": (
        """
def fit(sizes, seconds):
    <<BEFORE: pass>>
    t, s = (torch.tensor(row, dtype=torch.float64) for row in (seconds, sizes))
    w = <<WEIGHT: 1 / t ** 2>>
    x, y = (w * s).sum() / w.sum(), (w * t).sum() / w.sum()
    beta = (w * (s - x) * (t - y)).sum() / (w * (s - x) ** 2).sum()
    return <<RESULT: y - beta * x, beta>>
""",
        {
            "alpha comes first": {"RESULT": "beta, y - beta * x"},
            "beta is the seconds of a byte": {"RESULT": "y - beta * x, 1 / beta"},
            "each error counts relative": {"WEIGHT": "torch.ones_like(t)"},
            "each error is divided": {"WEIGHT": "1 / t ** 4"},
            "1 / t stands at": {"WEIGHT": "1 / t"},
            "two measurements without": {
                "BEFORE": "sizes, seconds = sizes[::len(sizes) - 1], seconds[::len(sizes) - 1]"
            },
        },
    ),
    "ps9/allreduce_seconds": (
        """
def allreduce_seconds(way, N, size, alpha, beta):
    <<BEFORE: pass>>
    n, levels = <<NUMBERS: size // 4>>, <<LEVELS: (N - 1).bit_length()>>
    chunk = lambda parts: <<CHUNK: -(-n // parts)>>
    messages = {"star": [n] * (N - 1), "tree": [n] * levels, "ring": [chunk(N)] * (N - 1),
                "halving-doubling": [chunk(2 ** (i + 1)) for i in range(levels)]}[way]
    return <<HALVES: 2>> * (<<STEPS: len(messages)>> * alpha + 4 * sum(messages) * beta)
""",
        {
            "this is one half": {"HALVES": "1"},
            "alpha is paid in each step": {"STEPS": "(N > 1)"},
            "`size` is in bytes already": {"NUMBERS": "size"},
            "round up, to whole numbers": {
                "CHUNK": "n / parts",
                "LEVELS": "N.bit_length() - 1",
            },
            "a step whose messages": {"STEPS": "len(messages) * (size > 0)"},
            "one rank needs no steps": {"BEFORE": "N = N + 1"},
        },
    ),
    "ps9/halving_doubling": (
        """
def exchange(rank, power, tensor, d):
    if d < power:
        low, high = <<HALVES: tensor.tensor_split(2)>>
        mine, other = (high, low) if rank // d % 2 else (low, high)
        mine.add_((yield (rank ^ d), other))
        yield from exchange(rank, power, mine, 2 * d)
        other.<<COPY: copy_>>((yield (rank ^ d), mine))
def halving_doubling(rank, world_size, tensor):
    power = <<POWER: 2 ** (world_size.bit_length() - 1)>>
    extra = world_size - power
    if rank >= power:
        yield rank - power, tensor
        for _ in range(2 * (power.bit_length() - 1)):
            yield
        tensor.copy_((yield))
    else:
        came = (yield) if extra else None
        tensor.add_(came if rank < extra else 0)
        yield from exchange(rank, power, tensor, 1)
        <<AFTER: pass>>
        if extra: yield (rank + power, tensor) if rank < extra else None
""",
        {
            "chunk 1 on rank 0 holds": {"COPY": "add_"},
            "send half of what is": {"HALVES": "tensor, tensor"},
            "N is no power of two": {"POWER": "2 ** (world_size - 1).bit_length()"},
            "partners send to each other": {
                "AFTER": "if power > 1: yield rank ^ 1, tensor[:0]"
            },
        },
    ),
    "ps9/two_level": (
        """
def two_level(rank, k, tensor, g):
    <<BEFORE: pass>>
    ranks, node, i = torch.arange(k).view(-1, g), rank // g, rank % g
    chunks = tensor.tensor_split(g)
    inside = ranks[node].tolist(), i, chunks
    across = ranks[:, i].tolist(), node, chunks[i].tensor_split(len(ranks))
    rounds = [(0, inside), <<ACROSS: (0, across), (1, across)>>, <<LAST: (1, inside)>>]
    for back, (own, me, cut) in rounds:
        own_sum = chunks[i].clone()
        for shift in range(1, len(own)):
            to, source = (me + shift) % len(own), (me - shift) % len(own)
            came = yield own[to], [<<SENT: cut[me if back else to]>>, *<<MORE: ()>>]
            <<TAKE: cut[source].copy_(came[0]) if back else cut[me].add_(came[0])>>
    <<AFTER: pass>>
""",
        {
            "numbers leave a node in the first": {"BEFORE": "g = 1"},
            "up to": {
                "ACROSS": "(2, across)",
                "SENT": "own_sum if back == 2 else cut[me if back else to]",
                "TAKE": "chunks[i].add_(came[0]) if back == 2 else "
                "(cut[source].copy_ if back else cut[me].add_)(came[0])",
            },
            "rank i of each node": {"LAST": "*()"},
            "each rank has the sum": {"ACROSS": "(0, across)", "LAST": "*()"},
            "inside a node chunks go round": {"MORE": "[tensor] * (own is inside[0])"},
            "all rings inside nodes": {"LAST": "(1, inside), (1, inside)"},
        },
    ),
    "ps9/finish": (
        """
def finish(ready, sizes, link, N):
    now, steps = 0, 2 * (N - 1)
    <<BEFORE: pass>>
    for start, size in zip(ready, sizes):
        took = <<ALPHAS: steps>> * link.alpha + steps * size / <<PARTS: N>> / link.bandwidth
        now = <<QUEUE: max(now, start) + took>>
    return now
def best_cap(ready, sizes, link, N, caps):
    def end(cap):
        full = []
        for start, size in zip(ready, sizes):
            if full and <<OPEN: full[-1][1] < cap>>:
                full[-1] = [<<READY: start>>, full[-1][1] + size]
            else:
                full.append([start, size])
        <<AFTER: pass>>
        return finish([start for start, _ in full], [size for _, size in full], link, N)
    return <<RESULT: min(caps, key=lambda cap: (end(cap), <<EQUAL: -cap>>))>>
""",
        {
            "buckets share the link": {"QUEUE": "max(now, start + took)"},
            "each bucket has 2 (N - 1) steps": {"ALPHAS": "1"},
            "a step sends 1 / N": {"PARTS": "1"},
            "a bucket leaves when it is ready": {"QUEUE": "now + took"},
            "N - 1 steps add up": {"BEFORE": "steps = N - 1"},
            "a bucket need not wait until all": {"BEFORE": "now = ready[-1]"},
            "a bucket that holds just": {"OPEN": "full[-1][1] <= cap"},
            "a gradient that does not fit": {"OPEN": "full[-1][1] + size <= cap"},
            "a bucket is ready when its last": {"READY": "full[-1][0]"},
            "the last bucket is missing": {"AFTER": "full.pop()"},
            "a bucket is ready when its last gradient is: not": {
                "AFTER": "full = [(ready[-1], size) for _, size in full]"
            },
            "of several caps": {"EQUAL": "cap"},
            "of several caps with": {"EQUAL": "0"},
            "this is none of": {"RESULT": "min(map(end, caps))"},
            "look at your buckets": {"OPEN": "full[-1][1] + 2 * size < cap"},
        },
    ),
}
