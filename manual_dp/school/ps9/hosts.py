"""Places on hosts, and the rows that are left after a stop.

    draw_places, judge_places    who a process is that torchrun has started
    draw_rows, judge_rows        which rows an epoch still has
"""

from manual_dp.school.exercise import differ, flat, shorten
from manual_dp.school.ps9.form import compare
from manual_dp.school.ps9.run import CHANGED

PARTS = ("rank", "device", "rows", "downloads")
# what is added to a drawn seed, and epochs: in `100 * seed + epoch` two pairs collide
SEEDS = (0, 1, 2, 10, 31, 100, 256)
EPOCHS = (0, 1, 2, 3, 10, 31, 100, 256, 500, 999)


def draw_places(random):
    """Draw hosts with ranks, and what torchrun tells each of these."""
    for sizes, gpus in (([2, 2], [2, 2]), (None, [0]), ([3, 1], [3, 1]),
                        ([2, 4], [2, 2]), ([1, 3], [0, 8]),
                        (None, [random.randint(1, 2)])):
        world_size = sum(sizes or [1])
        rows = random.choice([world_size - 1, 3 * world_size, random.randint(5, 30)])
        if sizes == [2, 2] and gpus == [2, 2]:
            rows = random.choice([13, 14, 15])  # some ranks have one more
        if sizes == [3, 1]:
            rows = random.randint(1, 3)         # and some have none
        ranks = []
        for host, size in enumerate(sizes or []):
            for local in range(size):
                ranks.append([_environment(len(ranks), local, world_size, size, host),
                              gpus[host]])
        ranks = ranks or [[{"HOME": "/", "PATH": "/bin"}, gpus[0]]]
        random.shuffle(ranks)
        yield {"rows": rows, "ranks": ranks}


def _environment(rank, local, world_size, size, host):
    numbers = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": world_size,
               "LOCAL_WORLD_SIZE": size, "GROUP_RANK": host, "MASTER_PORT": 29500}
    return {name: str(value) for name, value in numbers.items()} | {
        "MASTER_ADDR": "10.0.0.1", "HOME": "/"}


def _place(env, gpus, rows, number=lambda env, name: int(env.get(name, 0))):
    """Return the four parts of a place."""
    local, rank = number(env, "LOCAL_RANK"), number(env, "RANK")
    device = f"cuda:{local % gpus}" if gpus else "cpu"
    return [rank, device, list(range(rank, rows, int(env.get("WORLD_SIZE", 1)))),
            local == 0]


def judge_places(case, got):
    """Compare the parts of each rank's place."""
    for (env, gpus), found in sorted(zip(case["ranks"], got, strict=True),
                                     key=lambda pair: _int(pair[0][0], "RANK")):
        known = {name: env[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE",
                                              "LOCAL_WORLD_SIZE") if name in env}
        given = (f"{known or 'an environment without RANK'}, {gpus} GPUs on this host, "
                 f"{case['rows']} rows")
        wanted = _place(env, gpus, case["rows"])
        yield differ(given, found, wanted, [
            ("nothing is returned: print shows a result, return hands it on",
             found is None),
            ("env is the caller's: leave it as it is", found == CHANGED),
            ("return four things: rank, device, rows, downloads", True)]) if (
                not isinstance(found, list) or len(found) != 4) else None
        for name, value, right in zip(PARTS, found, wanted):
            if name == "downloads" and value in (0, 1):
                value = bool(value)
            yield differ(f"{given}; {name}", value, right,
                         HINTS[name](env, gpus, case["rows"], value), 0)


def _of_rank(env, gpus, rows, value):
    yield "numbers in an environment are texts: int(...)", value == env.get("RANK")
    yield ("this is the rank on its host, LOCAL_RANK: RANK counts over all hosts",
           value == _int(env, "LOCAL_RANK"))
    yield ("hosts may have different numbers of ranks: torchrun has counted them, in "
           "RANK", value == int(env.get("LOCAL_WORLD_SIZE", 1)) * _int(
               env, "GROUP_RANK") + _int(env, "LOCAL_RANK"))
    yield ("this is the host's number: RANK counts over all hosts",
           value == _int(env, "GROUP_RANK"))
    yield "RANK counts over all hosts", True


def _of_device(env, gpus, rows, value):
    local, rank = _int(env, "LOCAL_RANK"), _int(env, "RANK")
    here = int(env.get("LOCAL_WORLD_SIZE", 1))
    yield "without a GPU it is \"cpu\"", not gpus
    yield ("all ranks of this host would share one GPU: LOCAL_RANK says which it is",
           value in ("cuda", "cuda:0") and local > 0)
    yield ("write the device as torch does: cuda:0",
           value in ("cuda", local, str(local), f"gpu:{local}"))
    yield ("each rank takes the next GPU: 0, 1, 2, ..., whatever is left over",
           local > 0 and value == f"cuda:{local * (gpus // here)}")
    yield ("GPUs are counted on each host: LOCAL_RANK, not RANK",
           value in (f"cuda:{rank}", f"cuda:{rank % gpus if gpus else 0}"))
    yield ("there are fewer GPUs than ranks here: they are given out in turn, so "
           "LOCAL_RANK % gpus", value == f"cuda:{local}")
    yield "this host has a GPU", value == "cpu"


def _of_rows(env, gpus, rows, value):
    rank, k = _int(env, "RANK"), int(env.get("WORLD_SIZE", 1))
    local, here = _int(env, "LOCAL_RANK"), int(env.get("LOCAL_WORLD_SIZE", 1))
    size = -(-rows // k)
    yield ("every rank has all rows: each row belongs to one rank",
           value == list(range(rows)))
    yield ("these are shared out on each host anew: all hosts would read every row",
           value == list(range(local, rows, here)))
    yield ("some ranks have a row more: none is dropped",
           value == list(range(rank, rows // k * k, k)))
    yield ("rows are dealt out in turn: rank, rank + world_size, ...",
           value in (list(range(rank * size, min(rows, (rank + 1) * size))),
                     list(range(rank * (rows // k), (rank + 1) * (rows // k)))))
    yield ("how many they are, not which", value == len(range(rank, rows, k)))
    yield ("rows are dealt out over all ranks: from RANK, in steps of WORLD_SIZE", True)


def _of_downloads(env, gpus, rows, value):
    rank, local = _int(env, "RANK"), _int(env, "LOCAL_RANK")
    yield ("LOCAL_RANK is a text: \"0\" is not 0", value is False and local == 0
           and rank == 0)
    yield ("each host has a disk of its own: one rank of each host downloads",
           value is (rank == 0))
    yield "one rank of a host is enough", value is True
    yield "True or False is wanted", not isinstance(value, bool)
    yield "the first rank of each host downloads, LOCAL_RANK 0", True


HINTS = {"rank": _of_rank, "device": _of_device, "rows": _of_rows,
         "downloads": _of_downloads}


def _int(env, name):
    return int(env.get(name, 0))


def draw_rows(random):
    """Draw epochs and stops: n, seen, old, new, seed, epoch."""
    for n in (random.randint(40, 60), random.randint(61, 90), 12):
        seed = random.randint(1, 99)
        epochs = [[seed + more, epoch] for more in SEEDS for epoch in EPOCHS]
        asked, few = [], [[seed, 0], [seed, 1], [seed + 1, 0]]
        for old, new in ((4, 2), (2, 3), (3, 7), (1, 1), (4, 4), (5, 1)):
            seen = random.randint(1, n // old // 2)
            asked.append([n, seen, old, new, *random.choice(few)])
        asked += [[n, 0, 3, 4, seed, 1], [n, n // 4, 4, 3, seed, 0],
                  [n, n, 1, 2, seed, 0]]
        yield {"n": n, "epochs": epochs, "asked": asked}


def judge_rows(case, got):
    """Look at the orders, then compare what each rank still reads."""
    n, orders = case["n"], got["orders"]
    for (seed, epoch), order in zip(case["epochs"], orders):
        yield _judge_order(n, seed, epoch, order)
    orders = [order[0] for order in orders]
    yield None if orders[0] != list(range(n)) else differ(
        f"n {n}, seed and epoch {case['epochs'][0]}; the order", "no shuffle",
        "a random order", [("the rows are not shuffled", True)])
    yield _judge_pairs(n, case["epochs"], orders)
    known = {tuple(key): order for key, order in zip(case["epochs"], orders)}
    for args, shares in zip(case["asked"], got["shares"], strict=True):
        yield _judge_shares(args, shares, known[tuple(args[4:])], got["hashed"])
    yield differ("torch's generator, which the training draws from",
                 "moved" if got["drawn"] else "as it was", "as it was", [
        ("take a generator of your own: torch.Generator().manual_seed(...)", True)])


def _judge_order(n, seed, epoch, found):
    given = f"rows_left({n}, 0, 1, 1, {seed}, {epoch}): nothing is read yet, one rank"
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], list):
        return compare(given, found, [["a list of rows"]], [
            ("return a list for each new rank, with its rows in it", True)])
    rows = found[0]
    if sorted(map(str, rows)) == sorted(map(str, range(n))):
        return None
    return differ(f"{given}; its rows, sorted", sorted(rows, key=str), list(range(n)), [
        ("rows are counted from 0", sorted(map(str, rows)) == sorted(
            map(str, range(1, n + 1)))),
        ("each row comes once", True)])


def _judge_pairs(n, pairs, orders):
    """Return the message if two pairs of seed and epoch have the same order."""
    first = {}
    for (seed, epoch), order in zip(pairs, map(tuple, orders)):
        other, before = first.setdefault(order, (seed, epoch))
        if (other, before) != (seed, epoch):
            break
    else:
        return None
    added = (len(set(map(tuple, orders))) == len(set(map(sum, pairs)))
             and seed + epoch == other + before)
    pair = f"seed {other}, epoch {before} and seed {seed}, epoch {epoch}"
    return differ(f"n {n}; {pair}", "the same order", "two orders", [
        ("another epoch has another order", other == seed),
        ("another seed has another order", before == epoch),
        (f"seed and epoch are added: {pair} have the same sum", added),
        ("two pairs of seed and epoch give the same number: each pair needs one of its "
         "own", True)])


def _judge_shares(args, shares, order, hashed):
    n, seen, old, new, seed, epoch = args
    given = (f"rows_left{tuple(args)}: each of {old} ranks has read {seen} rows of "
             f"{n}; the epoch's order, from a call with seen 0 and one rank, is "
             f"{shorten(order, 120)}")

    def dealt(rows, count=new):
        return [rows[rank::count] for rank in range(count)]
    left = order[seen * old:]
    wanted = dealt(left)
    size = -(-len(left) // new)
    rows = flat(shares)
    twice = len(rows) != len(set(map(str, rows)))
    whole = isinstance(shares, list) and all(isinstance(s, list) for s in shares)
    return differ(given, shares, wanted, [
        ("nothing is returned: print shows a result, return hands it on",
         shares is None),
        ("return a list for each of the new ranks",
         not whole or len(shares) != new and len(shares) != old),
        ("there are lists for the old ranks: `new` ranks go on",
         new != old and dealt(left, old)),
        ("`seen` is what each old rank has read: together they have read `old` times "
         "as many", dealt(order[seen:])),
        ("what was read is that of the old ranks: seen * old, not seen * new",
         dealt(order[seen * new:])),
        ("the epoch begins again: rows that were read come a second time",
         dealt(order)),
        ("these are the rows that were read: the others are wanted",
         dealt(order[:seen * old])),
        ("rows are dealt out in turn: rank, rank + new, ...",
         [left[rank * size:(rank + 1) * size] for rank in range(new)]),
        ("the order is lost: what is left stays in the epoch's order",
         dealt(sorted(left))),
        ("rows are lost, so that all ranks have as many: some may have one more",
         dealt(left[:len(left) // new * new])),
        ("rows come twice, so that all ranks have as many: some may have one less",
         twice and set(map(str, rows)) == set(map(str, left))),
        ("hash() of a text is another number in each process: take numbers", hashed),
        ("the same arguments must give the same order, on any number of ranks: does it "
         "depend on old, new or seen, or on what was drawn before?",
         sorted(map(str, rows)) != sorted(map(str, left))),
        ("these are the right rows: what is left stays in the epoch's order, dealt out "
         "in turn", True)], 0)
