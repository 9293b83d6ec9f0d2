"""Wrong answers to the lessons' exercises: {exercise: {mistake: (hint, cell)}}.

Most are those of a problem set. The ring's halves are written anew: they work on the
chunks of all ranks.
"""

from tests.support.wrong import ps1, ps3

REDUCE_SCATTER = """
def reduce_scatter(chunks):
    world_size = len(chunks)
    for step in range(world_size - 1):
        for rank in range(world_size):
            peer = (rank + 1) % world_size
            i = (rank - 1 - step) % world_size
            chunks[peer][i].add_(chunks[rank][i])
"""
ALLGATHER = """
def allgather(chunks):
    world_size = len(chunks)
    for step in range(world_size - 1):
        for rank in range(world_size):
            peer = (rank + 1) % world_size
            i = (rank - step) % world_size
            chunks[peer][i].copy_(chunks[rank][i])
"""
NO_RING = "the numbers are right, but they did not go round the ring"
REDUCES = {
    "does nothing": ("the tensors hold what they held", "for step in range", "return\n    "
                     "for step in range"),
    "one step too few": ("chunk 0 on rank 0 holds", "range(world_size - 1)",
                         "range(world_size - 2)"),
    "one step too many": ("chunk 0 on rank 0 holds", "range(world_size - 1)",
                          "range(world_size)"),
    "starts with the rank's own chunk": (
        "the chunks are finished on other ranks, chunk 0 on rank 2", "rank - 1 - step",
        "rank - step"),
    "starts two chunks back": (
        "the chunks are finished on other ranks, chunk 0 on rank 1", "rank - 1 - step",
        "rank - 2 - step"),
    "walks forward": ("chunk 0 on rank 0 holds", "rank - 1 - step", "rank + 1 + step"),
    "always its own chunk": ("chunk 0 on rank 0 holds", "(rank - 1 - step) % world_size",
                             "rank"),
    "copies and does not add": ("chunk 0 on rank 0 holds rank 1's", "add_", "copy_"),
    "puts a new tensor into the list": (
        "the list holds the sums", "chunks[peer][i].add_(chunks[rank][i])",
        "chunks[peer][i] = chunks[peer][i] + chunks[rank][i]"),
    "a new tensor that is lost": (
        "the tensors hold what they held", "chunks[peer][i].add_(chunks[rank][i])",
        "total = chunks[peer][i] + chunks[rank][i]"),
    "into the chunk after": (
        {"another chunk's numbers", "chunk 0 on rank 0"}, "chunks[peer][i].add_",
        "chunks[peer][(i + 1) % world_size].add_"),
    "the mean": ("this is the mean", "    for step in range", """\
    for row in chunks:
        for chunk in row:
            chunk.div_(world_size)
    for step in range"""),
    "returns the sums": ("the result is returned", "    for step in range", """\
    return [sum(row[rank] for row in chunks) for rank in range(world_size)]
    for step in range"""),
    "everything at rank 0": ("chunk 1 on rank 1 holds rank 1's", "    for step in range", """\
    for row in chunks[1:]:
        for i in range(world_size):
            chunks[0][i].add_(row[i])
    return
    for step in range"""),
    "all send to the rank that needs it": (NO_RING, "    for step in range", """\
    for rank in range(world_size):
        for other in range(world_size):
            if other != rank:
                chunks[rank][rank].add_(chunks[other][rank])
    return
    for step in range"""),
    "Python's sum, written at once": (NO_RING, "    for step in range", """\
    for rank in range(world_size):
        chunks[rank][rank].copy_(sum(row[rank] for row in chunks))
    return
    for step in range"""),
    "stacked, then summed": (NO_RING, "    for step in range", """\
    for rank in range(world_size):
        column = torch.stack([row[rank].clone() for row in chunks])
        chunks[rank][rank][:] = column.sum(dim=0)
    return
    for step in range"""),
    "the right sums by a star": (NO_RING, "    for step in range", """\
    for i in range(world_size):
        for row in chunks[1:]:
            chunks[0][i].add_(row[i])
        if i:
            chunks[i][i].copy_(chunks[0][i])
    return
    for step in range"""),
}
GATHERS = {
    "does nothing": ("the tensors hold what they held", "for step in range", "return\n    "
                     "for step in range"),
    "adds what arrives": ("what arrives is added", "copy_", "add_"),
    "one step too few": ("nothing has been written into chunk 1 on rank 0",
                         "range(world_size - 1)", "range(world_size - 2)"),
    "goes on as reduce_scatter began": (
        "chunk 0 on rank 0 holds chunk 0 of rank", "(rank - step)", "(rank - 1 - step)"),
    "always its own chunk": ("nothing has been written into chunk 1 on rank 0",
                             "(rank - step) % world_size", "rank"),
    "sends backward": ("chunk 0 on rank 0 holds chunk 0 of rank", "(rank - step)",
                       "(rank + 1 + step)"),
    "puts another tensor into the list": (
        "the list holds", "chunks[peer][i].copy_(chunks[rank][i])",
        "chunks[peer][i] = chunks[rank][i]"),
    "writes one chunk off": (
        {"chunk 0 on rank 0 holds", "another chunk's numbers", "nothing has been written"},
        "chunks[peer][i].copy_", "chunks[peer][(i + 1) % world_size].copy_"),
    "everybody gets rank 0's": (
        "nothing has been written into chunk 1 on rank 0", "    for step in range", """\
    for row in chunks[1:]:
        for i in range(world_size):
            row[i].copy_(chunks[0][i])
    return
    for step in range"""),
    "returns them": ("the result is returned", "    for step in range", """\
    return [[chunks[i][i] for i in range(world_size)] for _ in chunks]
    for step in range"""),
    "every rank sends to all": (NO_RING, "    for step in range", """\
    for i in range(world_size):
        for rank in range(world_size):
            if rank != i:
                chunks[rank][i].copy_(chunks[i][i])
    return
    for step in range"""),
    "joined, then cut": (NO_RING, "    for step in range", """\
    whole = torch.cat([chunks[i][i] for i in range(world_size)])
    for row in chunks:
        for chunk, part in zip(row, whole.split([len(c) for c in chunks[0]])):
            chunk[:] = part
    return
    for step in range"""),
    "zeros the rest": ({"nothing has been written", None, "another chunk's"},
                       "    for step in range", """\
    for rank, row in enumerate(chunks):
        for i in range(world_size):
            if i != rank:
                row[i].zero_()
    return
    for step in range"""),
}

FORWARD = """
def forward(module, devices, X):
    X_shards = [shard for shard in scatter(X, devices) if len(shard)]
    replicas = replicate(module, devices[:len(X_shards)])
    return gather(parallel_apply(replicas, X_shards), devices[0])
"""
FORWARDS = {
    "the bare module": (
        "the module itself was called", FORWARD[FORWARD.index("    X_shards"):],
        "    return module(X)\n"),
    "no replicas": (
        "the module itself was called", "parallel_apply(replicas, X_shards)",
        "[module(shard) for shard in X_shards]"),
    "plain copies": (
        "no gradient comes back to the module",
        "replicate(module, devices[:len(X_shards)])",
        "[__import__('copy').deepcopy(module) for _ in X_shards]"),
    "devices without rows": ("a device without rows takes no part", FORWARD[
        FORWARD.index("    X_shards"):FORWARD.index("    return")], """\
    X_shards, replicas = scatter(X, devices), replicate(module, devices)
"""),
    "not gathered": ("these are parts", "gather(parallel_apply(replicas, X_shards), "
                     "devices[0])", "parallel_apply(replicas, X_shards)"),
    "the first device's only": (
        "these are the rows of one device only", "X_shards), devices",
        "X_shards)[:1], devices"),
    "in the wrong order": ("the outputs are not in the order of the rows",
                           "X_shards), devices", "X_shards)[::-1], devices"),
    "nothing returned": ("return the outputs", "return gather", "gather"),
    "rounded": ("these agree to five digits", ", devices[0])", ", devices[0]).float()"),
    "cut off from the graph": (
        "no gradient comes back to the module", ", devices[0])", ", devices[0]).detach()"),
    "twice": ("each replica works on its own shard, once", "    return",
              "    parallel_apply(replicas, X_shards)\n    return"),
}

SECONDS = """
def seconds(steps, link):
    return sum(link.alpha + max(step) / link.bandwidth for step in steps)
"""
PRICES = {
    "all messages one after the other": (
        "every message is counted", "link.alpha + max(step) / link.bandwidth",
        "sum(link.alpha + size / link.bandwidth for size in step)"),
    "the sum of a step": ("a step's messages travel at the same time", "max(step)",
                          "sum(step)"),
    "the shortest": ("a step takes as long as its longest message, not its shortest",
                     "max(step)", "min(step)"),
    "the mean": ("a step takes as long as its longest message, not the mean",
                 "max(step)", "sum(step) / len(step)"),
    "alpha once": ("alpha is paid once in each step",
                   "sum(link.alpha + max(step) / link.bandwidth for step in steps)",
                   "link.alpha + sum(map(max, steps)) / link.bandwidth"),
    "no alpha": ("alpha is left out", "link.alpha + ", ""),
    "nothing for an empty message": (
        "a message of 0 bytes costs alpha", "for step in steps)",
        "for step in steps if max(step))"),
    "sorts what it was given": ("the lists are the caller's", "max(step)",
                                "(step.sort() or step[-1])"),
    "empties what it was given": (
        "the lists are the caller's", "max(step) / link.bandwidth for step in steps",
        "max(steps.pop()) / link.bandwidth for _ in range(len(steps))"),
    "no bytes": ("the bytes are left out", "link.alpha + max(step) / link.bandwidth",
                 "link.alpha"),
    "times the bandwidth": ("bandwidth is bytes a second", "/ link", "* link"),
    "in bits": ("the sizes are bytes", "max(step)", "8 * max(step)"),
    "the longest step of all": (
        "steps follow each other",
        "sum(link.alpha + max(step) / link.bandwidth for step in steps)",
        "max((link.alpha + max(s) / link.bandwidth for s in steps), default=0)"),
}

OLD = "the gradients held numbers before the step"
CLEAR = """\
    for params in device_params:
        for p in params:
            p.grad = None
"""
CUT = "    X_shards, y_shards ="
CLEARED = {name: (hint, cell.replace(CUT, CLEAR + CUT))
           for name, (hint, cell) in ps1.ANSWERS["train_batch"].items()
           if name != "gradients of the last step kept"}  # those do no harm here


def _changed(cell, old, new):
    if old not in cell:
        raise ValueError(f"no {old!r} to change")
    return cell.replace(old, new, 1)


ZERO = """
def zero_bytes(params, world_size, stage):
    weights, gradients, adam = 2, 2, 12
    if stage >= 1:
        adam /= world_size
    if stage >= 2:
        gradients /= world_size
    if stage >= 3:
        weights /= world_size
    return params * (weights + gradients + adam)
"""
KEPT = {
    "nothing shared out": ("nothing is shared out", "stage >= ", "stage > 3 + "),
    "all at stage 1": ("stage 1 shares out Adam's 12 bytes only", ZERO[ZERO.index("    if"):
                       ZERO.index("    return")], """\
    if stage:
        return 16 * params / world_size
"""),
    "one thing at a time": ("each stage shares out one thing more", "stage >= ", "stage == "),
    "one stage early": ("here stage 0 is what", "stage >= ", "stage + 1 >= "),
    "Adam's two means only": ("Adam has 12 bytes", "12", "8"),
    "all in 32 bits": ("weights and gradients have 16 bits", "2, 2, 12", "4, 4, 8"),
    "of all ranks": ("this is the memory of all ranks", "return ", "return world_size * "),
    "in gigabytes": ("this is in gigabytes", "return ", "return 1e-9 * "),
    "of one weight": ("this is for one weight", "params * (", "("),
    "nothing": ("return the bytes", "return ", "_ = "),
}


def _kept(hint, old, new):
    if old not in ZERO:
        raise ValueError(f"no {old!r} to change")
    return hint, ZERO.replace(old, new)


AMDAHL = """
def amdahl(serial, world_size):
    return RETURN
"""
SPEEDUPS = {
    "the time": ("this is the time of a step", "serial + (1 - serial) / world_size"),
    "the ranks": ("the serial part is divided, too", "world_size"),
    "the parts swapped": ("the parts have changed places",
                          "1 / (1 - serial + serial / world_size)"),
    "the efficiency": ("this is the efficiency",
                       "1 / (serial + (1 - serial) / world_size) / world_size"),
    "all is divided": ("what is divided by the ranks is 1 - serial",
                       "1 / (serial + 1 / world_size)"),
    "the work grows": ("here the work grows", "serial + (1 - serial) * world_size"),
    "the limit": ("the number of ranks does not matter", "1 / serial"),
    "divides by the serial part": (
        "with `serial` 0", "1 / serial / (1 + (1 - serial) / serial / world_size)"),
    "cut off": ("this is a whole number",
                "int(1 / (serial + (1 - serial) / world_size))"),
    "rounded": (None, "round(1 / (serial + (1 - serial) / world_size), 2)"),
    "nothing": ("return the speed-up", "None"),
}

ROWS = """
def rows_to_go(order, seen, rank, world_size):
    left = order[seen:]
    return RETURN
"""
TO_GO = {
    "from the front": ("these begin at the front again", "order[rank::world_size]"),
    "seen by each": ("`seen` counts the rows of all ranks",
                     "order[seen * world_size:][rank::world_size]"),
    "each leaves out its own": ("`seen` counts the rows of all ranks",
                                "order[rank::world_size][seen:]"),
    "everything": ("every rank gets all that is left", "left"),
    "from its own number on": ("each rank skips as far as its own number", "left[rank:]"),
    "blocks": ("no row is lost or read twice, but these are blocks",
               "left[rank * -(-len(left) // world_size):]"
               "[:-(-len(left) // world_size)]"),
    "loses the last": ("the last rows are lost where they do not divide",
                       "left[:len(left) // world_size * world_size][rank::world_size]"),
    "fills up": ("some rows are read twice, to give each rank as many",
                 "(left + (left * world_size)[:-len(left) % world_size])"
                 "[rank::world_size]"),
    "places": ("these are places in the order",
               "list(range(seen + rank, len(order), world_size))"),
    "sorted": ("these rows are sorted", "sorted(left)[rank::world_size]"),
    "counts from one": (None, "left[rank + 1::world_size]"),
    "nothing": ("return the list of rows", "None"),
    "cuts the order": ("the order is the caller's",
                       "order.__delitem__(slice(seen)) or order[rank::world_size]"),
}

ANSWERS = {
    "19/rows_to_go": {name: (hint, ROWS.replace("RETURN", change))
                      for name, (hint, change) in TO_GO.items()},
    "18/zero_bytes": {name: _kept(*change) for name, change in KEPT.items()},
    "17/amdahl": {name: (hint, AMDAHL.replace("RETURN", change))
                  for name, (hint, change) in SPEEDUPS.items()},
    "02/get_params": ps1.ANSWERS["get_params"],
    "03/allreduce": ps1.ANSWERS["allreduce"],
    "03/reduce_scatter": {name: (hint, _changed(REDUCE_SCATTER, *change))
                          for name, (hint, *change) in REDUCES.items()},
    "03/allgather": {name: (hint, _changed(ALLGATHER, *change))
                     for name, (hint, *change) in GATHERS.items()},
    "04/split_batch": ps1.ANSWERS["split_batch"],
    "05/sgd": ps1.ANSWERS["sgd"],
    "05/train_batch": CLEARED | {
        "gradients never cleared": (OLD, ps1.TRAIN_RIGHT),
        "gradients cleared at the end": (OLD, ps1.TRAIN_RIGHT.replace(
            "    return", CLEAR + "    return"))},
    "06/evaluate_accuracy": ps3.ANSWERS["evaluate_accuracy"],
    "06/learning_rate": ps3.ANSWERS["learning_rate"],
    "07/forward": {name: (hint, _changed(FORWARD, *change))
                   for name, (hint, *change) in FORWARDS.items()},
    "16/seconds": {name: (hint, _changed(SECONDS, *change))
                   for name, (hint, *change) in PRICES.items()},
}
