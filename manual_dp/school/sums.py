"""Is it the sum over ranks? And if not, what is it?

    judge_everywhere  the sum of what all ranks held, on every rank, part by part
    judge_chunks      the sum of the chunks i, on rank i
    judge_copies      chunk i on every rank as rank i had it
    in_place          is it in the memory that the tensors had?
    met               did rows and weights meet on one device?
    cut, describe     chunks of a list; a case in words

A case holds each rank's `tensors`, and `params` if these are lists of parameters. What
was got holds the same tensors afterwards, and what may hold the result in their stead:
the `list` in which they were handed over, and what was `returned`. Each judge takes a
function `late`, from a case to hints that are tried last.

A message shows one place, the first that is wrong, and says what stands there if that
can be told: which ranks' numbers, how often, or those of another place.
"""

from itertools import chain, product
from operator import mul

from manual_dp.school.exercise import close, differ, flat, shorten, so_many
from manual_dp.school.tools.plain import tensor

LAST = 1e-12  # far above what another order of float64 changes, far below a short cut


def judge_everywhere(case, got, parts=lambda tensor, _: [tensor],
                     where="the tensor on rank {1}", late=lambda case: []):
    """Judge whether every rank holds the sum of what all held.

    parts: the parts of one rank's numbers, given the world size, to be looked at one by
    one. where: what to call one, given its index and its rank.
    """
    k = len(case["tensors"])
    before = [parts(row, k) for row in case["tensors"]]
    wanted = [_total(case["tensors"])] * k
    at_rank0 = [wanted[0], *case["tensors"][1:]]
    early = [*_not_written(case, got, [wanted]),
             ("only rank 0 has the sum: send it back", close(got["tensors"], at_rank0))]
    places = [(where.format(i, rank), flat(part), [flat(row[i]) for row in before])
              for rank, row in enumerate(got["tensors"])
              for i, part in enumerate(parts(row, k))]
    yield from _judge_places(case, places, early, late)
    yield differ(describe(case), got["tensors"], wanted, tolerance=LAST)
    if "memory" in got:
        yield in_place(f"{describe(case)}; the tensors' memory", got["memory"], wanted)


def in_place(given, got, wanted):
    """Return None, or the message if the memory has not what the tensors have."""
    return differ(given, got, wanted, [
        ("its memory is as it was: x.data = ... and set_ put other memory under a "
         "tensor, and whoever holds a view of it sees nothing; write into the old one, "
         "with add_ or copy_", True)])


def met(got):
    """Return None, or the message if rows stayed on another device than the weights."""
    return differ("two replicas on a device called meta, the minibatch on the CPU; do "
                  "rows and weights meet on one device?", got, "yes", [
        ("move each shard to its replica's device: X_shard.to(device)", True)])


def judge_chunks(case, got, late):
    """Judge whether rank i holds the sum of all chunks i, whatever else it holds."""
    tensors, k = case["tensors"], len(case["tensors"])
    before = [cut(row, k) for row in tensors]
    after = [cut(row, k) for row in got["tensors"]]
    total = _total(tensors)
    wanted = cut(total, k)
    shift = next((shift for shift in range(1, k) if all(
        close(after[(i + shift) % k][i], wanted[i]) for i in range(k))), 0)
    places = [(f"chunk {i} on rank {i}", after[i][i], [row[i] for row in before])
              for i in range(k)]
    yield from _judge_places(case, places, [
        *_not_written(case, got, [wanted, [total] * k]),
        (f"the chunks are finished on other ranks, chunk 0 on rank {shift}; chunk i "
         "belongs on rank i", shift > 0)], late)


def judge_copies(case, got, late):
    """Judge whether chunk i of every rank is what rank i had as its chunk i."""
    k = len(case["tensors"])
    before = [cut(row, k) for row in case["tensors"]]
    wanted = [flat([before[rank][rank] for rank in range(k)])] * k
    early = _not_written(case, got, [wanted])
    for rank, row in enumerate(got["tensors"]):
        for i, chunk in enumerate(cut(row, k)):
            yield differ(
                f"{describe(case)}; chunk {i} on rank {rank}, where "
                f"{shorten(before[rank][i], 100)} was; rank {i} has it right",
                chunk, before[i][i],
                chain(early, _copied(rank, i, chunk, before), late(case)))
    yield differ(describe(case), got["tensors"], wanted)


def describe(case):
    """Return what was given, in words."""
    k, own = len(case["tensors"]), case["tensors"][0]
    what = (f"parameters of {', '.join(str(len(flat(p))) for p in own)} numbers"
            if case.get("params") else so_many(len(flat(own)), "number"))
    return f"{so_many(k, 'rank')} with {what}{' each' * (k > 1)}"


def cut(numbers, world_size):
    """Return the chunks of a list, the first ones longer if it does not divide."""
    return [part.tolist() for part in tensor(numbers).tensor_split(world_size)]


def _judge_places(case, places, early, late):
    """Judge places, triples: a name, the numbers there, and each rank's addend."""
    for where, numbers, addends in places:
        yield differ(f"{describe(case)}; {where}; ranks 0, 1, ... held "
                     f"{shorten(addends, 200)} there", numbers, _total(addends),
                     chain(early, _made_of(places, where, addends), late(case)))


def _not_written(case, got, wanted):
    """Return hints for tensors that are as they were; `wanted` may stand elsewhere."""
    same = len(case["tensors"]) > 1 and close(got["tensors"], case["tensors"])
    return [
        ("the list holds the sums, the tensors that were in it do not: list[i] = ... "
         "puts another one there; write into the old one, with add_ or copy_",
         any(close(got["list"], value) for value in wanted)
         and not close(got["list"], got["tensors"])),
        ("the result is returned; it must be written into the tensor",
         any(close(got["returned"], value) for value in wanted)),
        ("the tensors hold what they held: tensor = tensor + ... makes a new one, and "
         "so does clone; write into the old one, with add_ or copy_", same)]


def _total(values):
    if isinstance(values[0], list):
        return [_total(part) for part in zip(*values)]
    return sum(values)


def _made_of(places, where, addends):
    """Yield hints: how often is each rank's addend in these numbers?"""
    k = len(addends)
    yield "this is the mean; the sum is wanted", [x / k for x in _total(addends)]
    for times in product((1, 0, 2, 3) if k < 5 else (1, 0, 2), repeat=k):
        terms = [f"rank {rank}'s{('', ' twice', ' 3 times')[count - 1]}"
                 for rank, count in enumerate(times) if count]
        yield (f"{where} holds {' + '.join(terms) or 'zeros'}; every rank belongs in "
               "it once", [sum(map(mul, times, column)) for column in zip(*addends)])
    for name, _, parts in places:
        yield f"{name} should hold these numbers", _total(parts)


def _copied(rank, i, chunk, before):
    """Yield hints: whose chunk is this that stands where rank i's chunk i should?"""
    k = len(before)
    walk = [before[(i + j) % k][i] for j in range((rank - i) % k + 1)]
    yield "what arrives is added to what was there; it must replace it", _total(walk)
    yield (f"nothing has been written into chunk {i} on rank {rank}",
           close(chunk, before[rank][i]))
    for owner, j in product(range(k), repeat=2):
        yield (f"chunk {i} on rank {rank} holds chunk {j} of rank {owner}; it must "
               f"hold chunk {i} of rank {i}", before[owner][j])
