"""A loader for each rank: what is drawn, and what would be right.

Many loaders are right. So each property is looked at by itself: who gets which rows, in
which order, and what their augmentations draw.
"""

from manual_dp.school.exercise import about, each, flat

MANY = 1000  # epoch and rank stay below it
# an epoch whose seeds begin so many after the last one's meets them again
STRIDES = (8, 10, 16, 20, 31, 32, 37, 50, 64, 97, 99, 100, 101, 128, 200, 250, 255, 256,
           257, 300, 400, 500, 512, 600, 700, 750, 800, 900, 997, 999)


def draw(random):
    """Draw how many rows and ranks there are, two seeds and three epochs.

    Last come some of very many ranks, and the first of them an epoch later.
    """
    for world_size, rows in ((2, 11), (3, 10), (4, 3), (1, 5)):
        seed, epoch = random.randrange(1000), random.randrange(500)
        seeds = [seed, seed + 1]
        epochs = [epoch, epoch + 1, epoch + random.randrange(2, 500)]
        yield {"world_size": world_size, "rows": rows, "seeds": seeds, "epochs": epochs,
               "asked": [[seed, epoch, rank] for seed in seeds for epoch in epochs
                         for rank in range(world_size)], "looks": 2}
    seed, epoch = random.randrange(1000), random.randrange(998)
    far = {0, 1, *STRIDES, *random.sample(range(MANY), 20)}
    yield {"world_size": MANY, "rows": MANY, "seeds": [seed], "looks": 1,
           "epochs": [epoch, epoch + 1],
           "asked": [*([seed, epoch, rank] for rank in sorted(far)),
                     [seed, epoch + 1, 0]]}


def judge(case, got):
    """Compare rows first, then the training's own draws, then orders and draws."""
    k, rows, seed = case["world_size"], case["rows"], case["seeds"][0]
    say = about(f"{rows} rows, {k} ranks, seed {seed}")
    both = {name: each(looks, "rows") for name, looks in got.items()}
    seen = {name: [row for row, _ in looks[0]] for name, looks in both.items()}
    draws = {name: [noise for _, noise in looks[0]] for name, looks in both.items()}

    def of(table, seed=seed, epoch=case["epochs"][0]):
        return [table[f"{seed} {epoch} {rank}"] for rank in range(k)]
    if k < MANY:
        yield from _judge_rows(case, say, of(seen))
    for _, looks in sorted(got.items()):
        yield say("are the training's own random numbers what they would be without "
                  "the loader?", all(one["same"] for one in looks), True, [
            ("torch's global generator is not yours: put its state back each time, as "
             "torch.random.fork_rng() does, before a row is handed over", True)])
    again = [name for name, looks in sorted(both.items()) if looks[0] != looks[-1]]
    yield say("loaders that yield something else when they are made again", again, [], [
        ("the rows come in another order: shuffle with a generator of your own that "
         "has a seed", bool(again) and [row for row, _ in both[again[0]][1]]
         != seen[again[0]]),
        ("the augmentations draw other numbers: their seed, too, must come from seed, "
         "epoch and rank alone", True)])
    if rows >= 10 and k < MANY:  # of few rows, two orders may be equal by chance
        yield from _judge_order(case, say, of, seen)
    yield from _judge_draws(case, say, draws)
    if k < MANY:
        first, second = (flat(of(draws, seed=one)) for one in case["seeds"])
        yield say("are the augmentations others with another seed?", first != second,
                  True, [("the augmentations' seed must hold `seed`", True)])


def _judge_rows(case, say, dealt):
    k, rows = case["world_size"], case["rows"]
    yield say("the rows of all ranks, sorted", sorted(flat(dealt)), list(range(rows)), [
        ("every rank has all rows", k > 1 and len(flat(dealt)) == k * rows),
        ("some rows come twice: DistributedSampler pads, so that all ranks have the "
         "same number. Deal permutation[rank::world_size]",
         len(flat(dealt)) > rows and set(flat(dealt)) == set(range(rows))),
        ("some rows are left out at the end: deal all of them",
         len(flat(dealt)) < rows and len(set(flat(dealt))) == len(flat(dealt))),
        ("the ranks shuffle in different ways, so rows come twice and others never: "
         "the permutation's seed must not hold the rank", True)])
    sizes = [len(own) for own in dealt]
    yield say("rows of the ranks: most minus fewest", max(sizes) - min(sizes),
              int(rows % k > 0), [
        ("deal evenly: a rank has one row more at most", True)])


def _judge_order(case, say, of, seen):
    seed, other = case["seeds"]
    orders = [of(seen, epoch=epoch) for epoch in case["epochs"]]
    yield say("different orders in three epochs", len({str(o) for o in orders}), 3, [
        ("the order is the same in every epoch: the permutation's seed must hold the "
         "epoch", True)])
    yield say("is the order another one with another seed?",
              of(seen) != of(seen, seed=other), True, [
        ("the permutation's seed must hold `seed`", True)])
    in_order = [list(range(rank, case["rows"], len(orders[0])))
                for rank in range(len(orders[0]))]
    yield say("are the rows shuffled?", orders[0] != in_order, True)


def _judge_draws(case, say, draws):
    table = {(epoch, rank): draws[f"{seed} {epoch} {rank}"]
             for seed, epoch, rank in case["asked"] if seed == case["seeds"][0]}
    epochs = len({epoch for epoch, _ in table})
    wanted = sum(map(len, table.values()))
    met = {}
    for place, own in table.items():
        for noise in own:
            met.setdefault(noise, []).append(place)
    twice = [places for places in met.values() if len(places) > 1]
    yield say(f"different numbers drawn by augmentations, {epochs} epochs", len(met),
              wanted, [
        ("the ranks draw the same numbers in an epoch: their seed must hold the rank",
         any(a[0] == b[0] and a[1] != b[1] for a, b in _pairs(twice))),
        ("a rank draws the same numbers in every epoch: their seed must hold the epoch",
         any(a[1] == b[1] and a[0] != b[0] for a, b in _pairs(twice))),
        ("one rank draws in one epoch what another one draws in the next: epoch + rank "
         "is the same for both. Take 1000 * epoch + rank",
         any(a[0] != b[0] and a[1] != b[1] for a, b in _pairs(twice))),
        ("every row is augmented in the same way: seed once for the loader, not for "
         "each row", True)])


def _pairs(groups):
    return [(a, b) for group in groups for a in group for b in group]
