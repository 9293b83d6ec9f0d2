"""Problem set 2, all-reduce that scales: programs that send messages, a rank each.

A right answer has the right numbers and reaches two counts, the steps and the numbers
out of the busiest rank. Both are bounds: who needs less is right as well.

In a lesson one function has the chunks of all ranks: its numbers alone are compared,
and in the ring the last bits of a sum tell in which order it was added up.
"""

from functools import partial, reduce
from itertools import chain, permutations, product

import torch

from course.lab.rounds import RoundsError, run_rounds
from course.school.checks import about, close, exercise, flat, numbers, shorten
from course.school.draws import describe, rand, summed, sums_at, unwritten

# ranks, how often they go into the numbers, and whether some numbers are left over.
# Three ranks come first: of two, each is the other's left and right neighbour.
SIZES = [
    (3, 2, False),
    (2, 2, True),
    (1, 4, False),
    (3, 1, True),
    (4, 2, True),
    (4, 0, True),
    (5, 2, True),
    (7, 2, True),
    (7, 0, True),
    (6, 1, True),
    (8, 2, False),
]
PARAMS = [
    (3, 6),
    (2, 3),
    (1, 3),
    (3, 5),
    (3, 2),
    (4, 6),
    (4, 8),
    (5, 7),
    (7, 4),
    (8, 9),
]
STOPS = {  # what to say where a program was stopped
    "no yield": "without a yield this is a plain function; a rank that has nothing to "
    "send still has one, for what arrives",
    "a program": "another program runs inside this one by yield from",
    "no such rank": "look whether there is such a rank: the last one is "
    "world_size - 1. Round a ring its neighbour is rank 0, (rank + 1) % world_size; in "
    "a tree it may have no partner, and waits",
    "at once": "in one step every rank sends to another one; a rank that has nothing "
    "to send yields all the same, and so stays in step",
}
# what to say of too many numbers, and of too many steps
RING = (
    "send one chunk in a step, never the whole tensor, and none twice in N - 1 "
    "steps: round a ring, a rank sends on the chunk that came last",
    "all ranks send at once, each to the next one, and a chunk has only N - 1 "
    "others to meet",
)
OF_ANY_SHAPE = (  # the first holds for the halves too; there a tensor is flat
    "send one chunk of the flat tensor in a step (rows of a matrix may be longer), "
    "never the whole, and none twice in N - 1 steps: round a ring, a rank sends on the "
    "chunk that came last",
    RING[1],
)
SPREAD = (
    "to an owner go its own parameters, from an owner go its own parameters, "
    "and no others",
    "in one step all ranks can send, if each sends to another one, and a message "
    "may hold several parameters",
)
TREE = (
    "a rank hands its sum up once, and the whole down at most once at each distance",
    "all pairs at one distance send in the same step, and there are ceil(log2 N) "
    "distances",
)
# for one function of all ranks: ranks, and numbers in each one's tensor, so that chunks
# are of one size, of two, of none
CHUNKED = [(3, 6), (3, 7), (2, 5), (1, 4), (4, 8), (4, 3), (5, 12), (7, 9)]


@exercise("ps2/reduce_scatter", points=4)
def reduce_scatter(random, reduce_scatter):
    """Sum each chunk up on its rank; what else a rank holds then is its affair."""
    yield from run_programs(
        draw_tensors(random), reduce_scatter, _scattered, _ring, RING
    )


@exercise("ps2/allgather", points=2)
def allgather(random, allgather):
    """Hand each rank's chunk round."""
    yield from run_programs(draw_tensors(random), allgather, _copied, _ring, RING)


def supply():
    """Return what `ring_allreduce` is judged with: the two halves of the ring."""

    def go_round(first, write, rank, world_size, tensor):
        chunks = tensor.tensor_split(world_size)
        for i in range(rank - first, rank - first - world_size + 1, -1):
            came = yield (rank + 1) % world_size, chunks[i % world_size]
            if came is None:
                raise ValueError(
                    "nothing has come into this half of the ring: what arrives at your "
                    "yield must go on to it, as yield from does"
                )
            write(chunks[(i - 1) % world_size], came)

    return {
        "reduce_scatter": partial(go_round, 1, torch.Tensor.add_),
        "allgather": partial(go_round, 0, torch.Tensor.copy_),
    }


@exercise("ps2/ring_allreduce", points=2, supply=supply)
def ring_allreduce(random, ring_allreduce):
    """Hand out tensors of several shapes, whose numbers lie in rows, or in columns."""
    # the last ones are a matrix of four rows: they cannot be even chunks on six ranks
    for own in (*draw_tensors(random), [rand(random, 8) for _ in range(6)]):
        shape, turned = _shape(random, len(own[0]))

        def program(rank, world_size, tensor, shape=shape, turned=turned):
            view = tensor.view(shape)
            return ring_allreduce(rank, world_size, view.t() if turned else view)

        yield from run_programs(
            [own],
            program,
            partial(_of_any_shape, shape, turned),
            lambda k, sizes: [2 * bound for bound in _ring(k, sizes)],
            OF_ANY_SHAPE,
        )


def _shape(random, numel):
    """Return a shape of so many numbers, and whether its transpose is handed out."""
    rows = next(rows for rows in (2, 3, 5, numel) if numel % rows == 0)
    columns = numel // rows
    if rows > 1 and columns > 1:  # there flatten makes a copy without a word
        return (rows, columns), True
    shapes = [(numel,), (rows, columns)]
    if numel == 1:
        shapes.append(())
    return random.choice(shapes), False


def _of_any_shape(shape, turned, held, after, *others):
    """Yield whether nothing was written, then how the tensors are not the sum."""
    k, places = len(held), torch.arange(len(held[0])).view(shape)
    order = (places.t() if turned else places).flatten().tolist()  # as it was handed
    held, after = ([[row[i] for i in order] for row in rows] for rows in (held, after))
    yield about(f"{describe(held)}, of shape {shape}{', transposed' * turned}")(
        "are the numbers still those from before?",
        k > 1 and close(after, held),
        False,
        {
            "nothing came into the tensor. Did both halves run, each by yield from? "
            "Where rows do not lie one behind the other, flatten and reshape make a "
            "copy: write the sum back, with copy_": True
        },
    )
    yield from summed_in_chunks(held, after, late=_other_chunk(held))


@exercise("ps2/spread_allreduce", points=4)
def spread_allreduce(random, spread_allreduce):
    """Give each parameter an owner, which adds it up."""

    def bounds(k, sizes):
        owned = [sum(sizes[rank::k]) for rank in range(k)]
        return (
            2 * (k - 1),
            max(sum(sizes) + (k - 2) * own for own in owned),
            2 * (k - 1),
        )

    yield from run_programs(
        _params(random),
        spread_allreduce,
        partial(summed, cut=list, where="parameter {} on rank {}"),
        bounds,
        SPREAD,
    )


@exercise("ps2/tree_allreduce", points=4)
def tree_allreduce(random, tree_allreduce):
    """Go up a tree, and down again."""

    def bounds(k, sizes):
        levels = (k - 1).bit_length()
        return 2 * levels, levels * sum(sizes), 2 * (k - 1)

    yield from run_programs(draw_tensors(random), tree_allreduce, summed, bounds, TREE)


def draw_tensors(random):
    """Yield what the ranks hold: a tensor each, for each line of SIZES."""
    for k, whole, more in SIZES:
        numel = whole * k + (random.randint(1, k - 1) if more else 0)
        yield [rand(random, numel) for _ in range(k)]


def _params(random):
    for number, (k, count) in enumerate(PARAMS):
        shapes = [(2,)] * count
        if number:  # in the first all are of one shape: a wrong place is no error there
            for i in range(count):
                shapes[i] = (random.randint(1, 4), *random.choice([(), (2,)]))
        held = []
        for _ in range(k):
            held.append([rand(random, *shape) for shape in shapes])
        yield held


def _ring(k, sizes):
    """Return the bounds: steps, numbers out of a rank, and how often each is sent.

    How often at least: for a number to be summed up somewhere, N - 1 ranks must send
    it on, and N - 1 times it must be sent to reach all ranks from there.
    """
    return k - 1, sum(sizes) - sum(sizes) // k, k - 1


def summed_in_chunks(held, *others, late=()):
    """Yield how the ranks' tensors are not the sum, chunk by chunk."""
    return summed(
        held,
        *others,
        where="chunk {} on rank {}",
        cut=lambda row: _cut(row, len(held)),
        late=late,
    )


def run_programs(draws, program, compare, bounds, hints, also=lambda held, done: None):
    """Run a program on every rank; yield what keeps it from its end, sums and bounds.

    draws: what the ranks hold, several times. compare(held, after, handed, returned)
    yields what is wrong with the numbers. hints: of too many numbers, too many steps.
    also: a comparison of what run_rounds returns, before that of the counts.
    """
    for own in draws:  # run_rounds hands out copies
        yield from _run_program(program, compare, bounds, hints, also, own)


def _run_program(program, compare, bounds, hints, also, own):
    """Run a program once: see `run_programs`."""
    held, handed = numbers(own), []

    def noted(rank, world_size, tensor):
        handed.append(tensor)
        return program(rank, world_size, tensor)

    try:
        done = run_rounds(noted, own)
    except RoundsError as error:
        yield about(describe(held))(
            "do all messages arrive?",
            f"stopped: {error}",
            "every message can be delivered, and every program comes to its end",
            {hint: error.kind == kind for kind, hint in STOPS.items()},
        )
    yield from compare(held, numbers(done["tensors"]), handed, done["returned"])
    yield also(held, done)
    yield _counted(held, done, bounds, *hints)


def _counted(held, done, bounds, much, slow):
    """Compare steps and numbers sent with their bounds."""
    k, sizes = len(held), [len(flat(part)) for part in held[0]]
    sent, steps = done["sent"], done["steps"]
    most_steps, most, times = bounds(k, sizes)
    enough = sum(sent) >= times * sum(sizes)
    right = f"steps at most {most_steps}, out of each rank at most {most}"
    fits = steps <= most_steps and max(sent) <= most and enough
    star = False
    if 2 < k <= sum(sizes) and steps == 2 * (k - 1):
        star = max(sent) >= 2 * sorted(sent)[-2]
    return about(describe(held))(
        "the numbers in the tensors are right; steps, and numbers out of each rank",
        right if fits else f"steps {steps}, out of each rank {sent}",
        right,
        {
            "numbers came to a rank without being sent: a rank may use its own tensor "
            "and what arrives, and nothing else": not enough,
            f"rank {sent.index(max(sent))} is the centre of a star: everything goes "
            "through it": star,
            slow: steps > most_steps,
            much: True,
        },
    )


def _cut(values, k):
    """Return the k chunks of a list, the first ones longer if it does not divide."""
    chunks = torch.tensor(values, dtype=torch.float64).tensor_split(k)
    return [chunk.tolist() for chunk in chunks]


def _other_chunk(held):
    rest = len(held[0]) % len(held)
    return {
        "the tensor is cut at other places: the chunks are "
        "tensor.tensor_split(world_size), the first ones longer by one": rest > 0,
        "numbers of another chunk have come in: which of its chunks does the left "
        "neighbour send in this step?": True,
    }


def _scattered(held, after, handed, returned):
    """Yield how rank i does not hold the sum of all chunks i."""
    k, total = len(held), [sum(column) for column in zip(*held)]
    before, now = [_cut(row, k) for row in held], [_cut(row, k) for row in after]
    wanted, shift = _cut(total, k), 0
    for other in range(k - 1, 0, -1):
        found = [now[(i + other) % k][i] for i in range(k)]
        if close(found, wanted):
            shift = other
    early = unwritten(held, after, handed, returned, wanted, [total] * k)
    places = []
    for i, addends in enumerate(zip(*before)):
        places.append((f"chunk {i} on rank {i}", now[i][i], list(addends)))
    yield from sums_at(
        describe(held),
        places,
        {
            **early,
            f"the chunks are finished on other ranks, chunk 0 on rank {shift}"
            "; chunk i belongs on rank i": shift > 0,
        },
        _other_chunk(held),
    )


def _copied(held, after, handed, returned):
    """Yield how chunk i is not on every rank what rank i had."""
    k = len(held)
    before = [_cut(row, k) for row in held]
    wanted = [flat([before[rank][rank] for rank in range(k)])] * k
    early = unwritten(held, after, handed, returned, wanted)
    for rank, row in enumerate(after):
        for i, chunk in enumerate(_cut(row, k)):
            yield about(describe(held))(
                f"chunk {i} on rank {rank}, where {shorten(before[rank][i], 100)} was; "
                f"rank {i} has it right",
                chunk,
                before[i][i],
                chain(
                    early.items(),
                    _whose(rank, i, chunk, before),
                    _other_chunk(held).items(),
                ),
            )


def _whose(rank, i, chunk, before):
    """Yield hints: whose chunk is this that stands where rank i's chunk i should?"""
    k = len(before)
    walk = [before[(i + j) % k][i] for j in range((rank - i) % k + 1)]
    yield (
        "what arrives is added to what was there; it must replace it",
        [sum(column) for column in zip(*walk)],
    )
    if i == rank:
        for owner in range(k):
            yield (
                f"rank {rank} had this chunk finished, and rank {owner}'s unfinished "
                "one came over it: in the first step a rank can send only its own",
                before[owner][i],
            )
    for owner, j in product(range(k), repeat=2):
        yield (
            f"chunk {i} on rank {rank} holds chunk {j} of rank {owner}; it must "
            f"hold chunk {i} of rank {i}",
            before[owner][j],
        )


@exercise("allreduce/reduce_scatter")
def reduce_scatter_of_all(random, reduce_scatter_):
    """Ask for the same of one function, which is given the chunks of all ranks."""
    yield from _on_chunks(
        random,
        reduce_scatter_,
        _scattered,
        lambda rank, row: row[rank] if row and isinstance(row[0], list) else row,
    )
    yield from _round_the_ring(random, reduce_scatter_)


def _round_the_ring(random, reduce_scatter_):
    """Compare in which order each chunk was added up: sums of rounded numbers tell.

    Round the ring its owner adds last.
    """
    k, each = 4, 40  # 40 numbers: no two orders give the same bits in all of them
    # numbers of `rand` have too few digits: their sums are hardly ever rounded
    held = [rand(random, k * each).exp() for _ in range(k)]
    kept = [t.clone() for t in held]
    reduce_scatter_([list(t.tensor_split(k)) for t in kept])
    chunks = [t.tensor_split(k) for t in held]
    for i in range(k):
        rings = [[(i + way * hop) % k for hop in range(1, k + 1)] for way in (1, -1)]
        finished = kept[i].tensor_split(k)[i]
        found = [
            list(order)
            for order in (*rings, *permutations(range(k)))
            if torch.equal(_sum_of(chunks, i, order), finished)
        ]
        got = found[0] if found else ["another one"]
        yield about(f"{k} ranks with {each} numbers in each chunk")(
            f"the ranks in the order in which chunk {i} was added up",
            got,
            rings[0],
            {
                "this goes the other way round: send to rank (rank + 1) % N": rings[1],
                "this is no walk round the ring. There each rank adds its own to what "
                "has come, and sends it on: the sum begins at the owner's neighbour, "
                "and the owner adds last": True,
            },
        )


def _sum_of(chunks, i, order):
    """Return the sum of chunk i over ranks, added up in this order."""
    return reduce(torch.add, [chunks[rank][i] for rank in order])


@exercise("allreduce/allgather")
def allgather_of_all(random, allgather_):
    """Ask for the same of one function, which is given the chunks of all ranks."""
    yield from _on_chunks(random, allgather_, _copied, lambda rank, row: flat(row))


def _on_chunks(random, answer, compare, form):
    """Run the answer on all chunks; compare the tensors that these were cut from.

    form: of the chunks that are in a rank's list, those that are looked at.
    """

    def rows(chunks):  # which may be anything: what is returned, or left in a list
        known = numbers(chunks) if isinstance(chunks, (list, tuple)) else []
        return [
            form(rank, row) for rank, row in enumerate(known) if isinstance(row, list)
        ]

    for k, numel in CHUNKED:
        held = [rand(random, numel) for _ in range(k)]
        kept = [t.clone() for t in held]
        chunks = [list(t.tensor_split(k)) for t in kept]
        returned = answer(chunks)
        yield from compare(numbers(held), numbers(kept), rows(chunks), rows(returned))
