"""Is it the sum over ranks? And if not, what is it? For problem set 2.

    judge_everywhere  the sum of what all ranks held, on every rank, part by part
    judge_sums        sums at certain places
    judge_copies      chunk i on every rank as rank i had it
    cut, add, flat    chunks of a list, the sum of lists, nested lists as one
    describe          a case in words

A message shows one place, the first that is wrong, and says what stands there if that
can be told: which ranks' numbers, how often, or those of another place.
"""

from itertools import product

from manual_dp.school.exercise import close, differ, shorten


def judge_everywhere(case, got, parts, where, late=("", False)):
    """Judge whether every rank holds the sum of what all held.

    parts: the parts of one rank's numbers, to be looked at one by one. where: what to
    call one, given its index and its rank. late: a hint if there is no other.
    """
    before = [parts(row) for row in case["tensors"]]
    wanted = [_total(case["tensors"])] * len(before)
    places = [(where.format(i, rank), flat(part), [flat(row[i]) for row in before])
              for rank, row in enumerate(got["tensors"])
              for i, part in enumerate(parts(row))]
    return (judge_sums(case, places, not_written(case, got, [wanted]), late)
            or differ(describe(case), got["tensors"], wanted))


def judge_sums(case, places, early, late=("", False)):
    """Judge places, triples: a name, the numbers there, and each rank's addend.

    early, late: hints to be tried before and after those about the place.
    """
    for where, numbers, addends in places:
        wanted = add(addends)
        given = (f"{describe(case)}; {where}; ranks 0, 1, ... held "
                 f"{shorten(addends, 200)} there")
        if not close(numbers, wanted):
            mean = [x / len(addends) for x in wanted]
            others = [name for name, _, parts in places if close(numbers, add(parts))]
            return differ(given, numbers, wanted, [
                *early, ("this is the mean; the sum is wanted", mean),
                *_made_of(where, numbers, addends),
                (f"{others and others[0]} should hold these numbers", bool(others)),
                late])
    return None


def judge_copies(case, got, late):
    """Judge whether chunk i of every rank is what rank i had as its chunk i."""
    tensors, k = case["tensors"], len(case["tensors"])
    before = [cut(row, k) for row in tensors]
    wanted = [[x for rank in range(k) for x in before[rank][rank]]] * k
    early = not_written(case, got, [wanted])
    for rank, row in enumerate(got["tensors"]):
        for i, chunk in enumerate(cut(row, k)):
            if not close(chunk, before[i][i]):
                walk = [before[(i + j) % k][i] for j in range((rank - i) % k + 1)]
                return differ(
                    f"{describe(case)}; chunk {i} on rank {rank}, where "
                    f"{shorten(before[rank][i], 100)} was; rank {i} has it right",
                    chunk, before[i][i], [
                        *early, ("what arrives is added to what was there; it must "
                                 "replace it", add(walk)),
                        *_copy_of(rank, i, chunk, before), late])
    return differ(describe(case), got["tensors"], wanted)


def not_written(case, got, wanted):
    """Return hints for tensors that are as they were; `wanted` may stand elsewhere."""
    same = len(case["tensors"]) > 1 and close(got["tensors"], case["tensors"])
    return [
        ("the list holds the sums, the parameters do not: params[i] = ... puts another "
         "tensor into the list; write into the old one, with add_ or copy_",
         any(close(got["lists"], value) for value in wanted)
         and not close(got["lists"], got["tensors"])),
        ("the result is returned; it must be written into the tensor",
         any(close(got["returned"], value) for value in wanted)),
        ("the tensors hold what they held: tensor = tensor + ... makes a new one, and "
         "so does clone; write into the old one, with add_ or copy_", same)]


def describe(case):
    """Return what was given, in words."""
    k, own = len(case["tensors"]), case["tensors"][0]
    what = (f"parameters of {', '.join(str(len(flat(p))) for p in own)} numbers"
            if case.get("params") else f"{len(own)} numbers")
    return f"{k} ranks with {what} each" if k > 1 else f"1 rank with {what}"


def cut(numbers, world_size):
    """Return the chunks of a list, the first ones longer if it does not divide."""
    size, more = divmod(len(numbers), world_size)
    cuts = [rank * size + min(rank, more) for rank in range(world_size + 1)]
    return [numbers[start:stop] for start, stop in zip(cuts, cuts[1:])]


def add(rows):
    """Return the sum of lists of numbers, place by place."""
    return [sum(column) for column in zip(*rows)]


def flat(value):
    """Return nested lists of numbers as one list."""
    if isinstance(value, list):
        return [number for part in value for number in flat(part)]
    return [value]


def _total(values):
    if isinstance(values[0], list):
        return [_total(part) for part in zip(*values)]
    return sum(values)


def _made_of(where, numbers, addends):
    """Return hints: how often is each rank's addend in these numbers?"""
    often = (1, 0, 2, 3) if len(addends) < 5 else (1, 0, 2)
    for times in product(often, repeat=len(addends)):
        if numbers and _is_sum(numbers, times, addends):
            terms = [f"rank {rank}'s{('', ' twice', ' 3 times')[count - 1]}"
                     for rank, count in enumerate(times) if count]
            return [(f"{where} holds {' + '.join(terms) or 'zeros'}; every rank "
                     "belongs in it once", True)]
    return []


def _is_sum(numbers, times, addends):
    first = sum(count * addend[0] for count, addend in zip(times, addends))
    return close(numbers[:1], [first]) and close(numbers, add(
        [count * x for x in addend] for count, addend in zip(times, addends)))


def _copy_of(rank, i, chunk, before):
    """Return hints: whose chunk is this that stands where rank i's chunk i should?"""
    found = [(owner, j) for owner, j in product(range(len(before)), repeat=2)
             if close(chunk, before[owner][j])]
    if (rank, i) in found:
        return [(f"nothing has been written into chunk {i} on rank {rank}", True)]
    return [(f"chunk {i} on rank {rank} holds chunk {j} of rank {owner}; it must hold "
             f"chunk {i} of rank {i}", True) for owner, j in found[:1]]
