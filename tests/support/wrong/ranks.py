"""Wrong answers to the exercises of lessons 08 to 10: {exercise: {mistake: (hint, cell)}}.

Most are one right answer with one thing changed. The hook's are those of problem set 4.
"""

from tests.support.right.ranks import ANSWERS as RIGHT
from tests.support.wrong import ps4


def _changed(cell, *changes):
    for old, new in zip(changes[::2], changes[1::2]):
        if old not in cell:
            raise ValueError(f"no {old!r} to change")
        cell = cell.replace(old, new, 1)
    return cell


STORE = "dist.FileStore(path, world_size)"
INIT = ('dist.init_process_group("gloo", store=store, rank=rank, '
        'world_size=world_size)')
NOT_ALL = "a rank waits for others that do not come"
OPENS = {
    "does nothing": ("no group is open", INIT, "pass"),
    "only rank 0 opens it": (NOT_ALL, INIT, f"rank or {INIT}"),
    "no backend is said": ("say which backend", '"gloo", store', "store"),
    "each alone": ("every rank opened a group of its own",
                   "rank=rank, world_size=world_size", "rank=0, world_size=1",
                   STORE, "dist.HashStore()"),
    "a file for each rank": (NOT_ALL, STORE, "dist.FileStore(path + str(rank), world_size)"),
    "a store that no other process sees": (NOT_ALL, STORE, "dist.HashStore()"),
    "waits for one rank more": (NOT_ALL, "world_size=world_size",
                                "world_size=world_size + 1"),
    "all are rank 0": (NOT_ALL, "rank=rank", "rank=0"),
    "the ranks counted from the end": (
        "these are not the ranks that were handed over", "rank=rank",
        "rank=world_size - 1 - rank"),
    "another file": ("the store is the file at `path`", "FileStore(path, ",
                     "FileStore(path + '.store', "),
    "opened and closed again": ("no group is open", INIT,
                                f"{INIT}\n    dist.destroy_process_group()"),
}

PARITY = RIGHT["08/exchange"]["the order by rank"]
SENDING = RIGHT["08/exchange"]["isend, recv, wait"]
ARRIVING = RIGHT["08/exchange"]["irecv, send, wait"]
EXCHANGES = {
    "both send first": ("both ranks wait in send", _changed(
        PARITY, "dist.get_rank() < other", "True")),
    "both receive first": ("both ranks wait for a message", _changed(
        PARITY, "dist.get_rank() < other", "False")),
    "returns its own": ("this is the rank's own tensor", _changed(
        SENDING, "return box", "return tensor")),
    "returns nothing": ("return the tensor that came", _changed(
        SENDING, "return box", "pass")),
    "receives into what it was given": ("the tensor that was handed over", _changed(
        PARITY, "torch.empty_like(tensor)", "tensor")),
    "writes into what it was given, too": ("the tensor that was handed over", _changed(
        SENDING, "return box", "return tensor.copy_(box)")),
    "does not wait for irecv": ("nothing has arrived yet", """
def exchange(tensor, other):
    box = torch.zeros_like(tensor)
    early = box.clone()
    arriving, sending = dist.irecv(box, other), dist.isend(tensor, other)
    exchange.kept = arriving, sending, box
    return early
"""),
    "the sum": ("this is the sum of both", _changed(
        SENDING, "return box", "return box + tensor")),
    "the other is always 1 - rank": (
        "`other` says which rank it is", _changed(
            SENDING, "dst=other", "dst=1 - dist.get_rank()",
            "src=other", "src=1 - dist.get_rank()")),
    "only the lower rank is given something": ("nothing has arrived", """
def exchange(tensor, other):
    box = torch.zeros_like(tensor)
    if dist.get_rank() < other:
        dist.recv(box, other)
    else:
        dist.send(tensor, other)
    return box
"""),
    "a list": ("return the tensor itself", _changed(
        SENDING, "return box", "return [box]")),
    "a collective": ("`other` says which rank it is, and only these two", """
def exchange(tensor, other):
    boxes = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, tensor)
    return boxes[other]
"""),
}

RING = RIGHT["08/ring"]["isend, recv: what came goes on"]
RINGS = {
    "does nothing": ("the tensors hold what they held", "range(world_size - 1)", "[]"),
    "one pass too few": ("the tensor on rank 0 holds", "range(world_size - 1)",
                         "range(world_size - 2)"),
    "one pass too many": ("the tensor on rank 0 holds rank 0's twice",
                          "range(world_size - 1)", "range(world_size)"),
    "passes on the sum": ("the tensor on rank 0 holds", "parcel = box",
                          "parcel = tensor.clone()"),
    "passes on its own again": ("the tensor on rank 0 holds", "        parcel = box\n", ""),
    "copies and does not add": ("the tensor on rank 0 holds rank", "tensor += box",
                                "tensor.copy_(box)"),
    "a new tensor that is lost": ("the tensors hold what they held", "tensor += box",
                                  "tensor = tensor + box"),
    "returns the sum": ("the result is returned", "tensor += box", "tensor = tensor + box",
                        "parcel = box\n", "parcel = box\n    return tensor\n"),
    "all send first": ("every rank waits in send", "dist.isend(parcel, right)",
                       "dist.send(parcel, right)", "        sending.wait()\n", ""),
    "all receive first": ("every rank waits for a message",
                          "sending = dist.isend(parcel, right)", "dist.recv(box, left)",
                          "dist.recv(box, left)\n        sending.wait()",
                          "dist.send(parcel, right)"),
    "the mean": ("this is the mean", "parcel = box\n",
                 "parcel = box\n    tensor /= world_size\n"),
    "torch's all_reduce": ("the ring is yours to build", RING[RING.index("    rank"):],
                           "    dist.all_reduce(tensor)\n"),
    "gathers, then adds": (
        "the ring is yours to build", RING[RING.index("    rank"):], """\
    boxes = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(boxes, tensor)
    tensor.copy_(sum(boxes))
"""),
    "a star": ("in a ring each rank sends to one neighbour",
               RING[RING.index("    left"):], """\
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
    else:
        for other in range(1, world_size):
            box = torch.empty_like(tensor)
            dist.recv(box, other)
            tensor += box
        for other in range(1, world_size):
            dist.send(tensor, other)
"""),
    "made for four ranks": ("the tensor on rank 0 holds", "world_size - 1)", "3)"),
}

PACKED = RIGHT["09/bucket"]["cat and split"]
PLACES = RIGHT["09/bucket"]["a place that moves on"]
BUCKETS = {
    "a list of flat tensors": ("this is a list: join the parts", PACKED,
                               "torch.cat([t.reshape(-1) for t in tensors])",
                               "[t.reshape(-1) for t in tensors]"),
    "the last comes first": ("the last tensor's numbers come first", PACKED,
                             "for t in tensors])", "for t in tensors[::-1]])"),
    "the last is forgotten": ("numbers are missing", PACKED, "for t in tensors])",
                              "for t in tensors[:-1]])"),
    "scalars are forgotten": ("numbers are missing", PACKED, "for t in tensors])",
                              "for t in tensors if t.dim()])"),
    "room, but no numbers": ("these are all zeros", PACKED,
                             "torch.cat([t.reshape(-1) for t in tensors])",
                             "torch.zeros(sum(t.numel() for t in tensors))"),
    "one row of a matrix": ("the flat tensor has one dimension", PACKED, "for t in tensors])",
                            "for t in tensors])[None]"),
    "the sum of each": ("numbers are missing", PACKED, "t.reshape(-1) for",
                        "t.sum().reshape(-1) for"),
    "rounds to float32": ("these agree to five digits", PACKED, "t.reshape(-1)",
                          "t.reshape(-1).float()"),
    "always from the start of flat": ("every tensor was given the numbers at the start",
                                      PLACES, "t.numel()].reshape(t.shape)\n"
                                      "        start += t.numel()",
                                      "t.numel()].reshape(t.shape)"),
    "puts new tensors into the list": (
        "the list holds them", PACKED, "for t, part in zip(", "for i, (t, part) in "
        "enumerate(zip(", "for t in tensors])):", "for t in tensors]))):",
        "t.copy_(part.view(t.shape))", "tensors[i] = part.view(t.shape)"),
    "binds a name": ("nothing was written", PACKED, "t.copy_(part.view(t.shape))",
                     "t = part.view(t.shape)"),
    "adds to what was there": ("these numbers were added", PACKED, "t.copy_", "t.add_"),
    "unpacks from the end": ("the numbers are cut off in another order", PACKED,
                             "zip(tensors, flat.split([t.numel() for t in tensors]))",
                             "zip(tensors[::-1], flat.split([t.numel() for t in "
                             "tensors[::-1]]))"),
    "returns them": ("the result is returned", PACKED, "    for t, part in",
                     "    return [part.view(t.shape) for t, part in zip(tensors, "
                     "flat.split([t.numel() for t in tensors]))]\n    for t, part in"),
    "overwrites what it packs": ("pack has changed the tensors", PACKED, "    return torch",
                                 "    for t in tensors:\n        t /= 2\n"
                                 "    return torch"),
}

PARTS = RIGHT["09/accumulate"]["all but the last in no_sync"]
ACCUMULATES = {
    "never steps": ("nothing has moved", "optimizer.step()", "pass"),
    "means are added up": ("the means of 3 microbatches are added up",
                           ") / len(parts)", ") / 1", ") / len(parts)", ") / 1"),
    "the last part alone": ("one step is wanted", "    X, y = parts[-1]",
                            "    optimizer.zero_grad()\n    X, y = parts[-1]"),
    "the last part is left out": ("replicas differ", "    X, y = parts[-1]",
                                  "    optimizer.step()\n    return\n    X, y = parts[-1]"),
    "no no_sync": ("no_sync is for all microbatches but the last", "model.no_sync()",
                   "torch.enable_grad()"),
    "the forward before no_sync": (
        "no_sync is for all microbatches but the last", "    with model.no_sync():\n"
        "        for X, y in parts[:-1]:\n            (loss(model(X), y) / len(parts))"
        ".backward()", "    for X, y in parts[:-1]:\n        l = loss(model(X), y) / "
        "len(parts)\n        with model.no_sync():\n            l.backward()"),
    "all in no_sync": ("replicas differ", "    X, y = parts[-1]\n    (loss",
                       "    X, y = parts[-1]\n    with model.no_sync(): (loss"),
    "a step for each part": (
        "one step is wanted", "    with model", "    for X, y in parts:\n"
        "        optimizer.zero_grad()\n        loss(model(X), y).backward()\n"
        "        optimizer.step()\n    return\n    with model"),
    "never clears": ("one step is wanted", "optimizer.zero_grad()", "pass"),
    "divides by the ranks, too": (
        "the step is 2 times too small", "len(parts)).backward()\n    optimizer",
        "len(parts) / dist.get_world_size()).backward()\n    optimizer",
        "len(parts)).backward()", "len(parts) / dist.get_world_size()).backward()"),
    "averages once more": (
        "leave averaging to DDP", "    optimizer.step()",
        "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n"
        "        p.grad /= dist.get_world_size()\n    optimizer.step()"),
    "a barrier before the step": ("when the last backward returns", "    optimizer.step()",
                                  "    dist.barrier()\n    optimizer.step()"),
    "all parts joined to one": (
        "all rows go through at once", "    with model", "    X, y = map(torch.cat, zip(*parts))"
        "\n    loss(model(X), y).backward()\n    optimizer.step()\n    return\n    with model"),
    "one backward of all losses": (
        "call backward after each forward",
        "            (loss(model(X), y) / len(parts)).backward()",
        "            total = total + loss(model(X), y) / len(parts)", "    with model",
        "    total = 0\n    with model", "(loss(model(X), y) / len(parts)).backward()\n    opt",
        "(total + loss(model(X), y) / len(parts)).backward()\n    opt"),
}

SAMPLER = RIGHT["10/sampler"]["a generator, a list, a stride"]
SAMPLES = {
    "torch's own generator": ("whatever draws next", "torch.Generator()", "torch"),
    "the same order in each epoch": ("the order is the same in each epoch",
                                     "seed + epoch", "seed"),
    "without the seed": ("the seed is left out", "seed + epoch", "epoch"),
    "not shuffled": ("nothing is shuffled",
                     "torch.randperm(length, generator=generator).tolist()",
                     "list(range(length))"),
    "a block for each rank": ("this is a block of neighbouring places",
                              "order[rank::world_size]",
                              "order[rank * (n := len(order) // world_size):][:n]"),
    "not filled up": ("some ranks have fewer rows", "while len(order) % world_size:",
                      "while False:"),
    "drops the tail": ("the tail is dropped", "while len(order) % world_size:",
                       "order = order[:length // world_size * world_size]\n"
                       "    while len(order) % world_size:"),
    "filled up with the last": ("the order is filled up from its own start",
                                "order[:-len(order) % world_size]", "order[-1:]"),
    "filled up with row 0": ("the order is filled up from its own start",
                             "order[:-len(order) % world_size]", "[0]"),
    "a draw that nobody can repeat": (None, ", generator=generator", ""),
    "another seed for each rank": ("each rank draws an order of its own", "seed + epoch",
                                   "seed + epoch + rank"),
    "the ranks counted from the end": ("these are another rank's rows", "order[rank::",
                                       "order[world_size - 1 - rank::"),
    "seed times epoch": ("torch's seed for an epoch is seed + epoch", "seed + epoch",
                         "seed * epoch"),
    "sorted": ("the right rows in another order", "return order[rank::world_size]",
               "return sorted(order[rank::world_size])"),
    "all rows": ("every rank has all rows", "order[rank::world_size]", "order"),
}

COUNTS = RIGHT["10/evaluate"]["both counts in one tensor"]
EVALUATES = {
    "without eval": ("the test runs in training mode", "    model.eval()\n", ""),
    "without eval, at a copy": ("the test runs in training mode", "    was = model.training\n"
                                "    model.eval()\n",
                                "    import copy\n    was = True\n"
                                "    model = copy.deepcopy(model)\n"),
    "eval comes too late": ("the test runs in training mode", "    model.eval()\n", "",
                            "    model.train(was)", "    model.eval().train(was)"),
    "still in eval mode": ("dropout would stay off", "    model.train(was)\n", ""),
    "always in training mode": ("it was in eval mode before", "model.train(was)",
                                "model.train()"),
    "the outermost module alone": ("model.training is the mode of the outermost module",
                                   "model.train(was)", "model.training = was"),
    "its own rows only": ("every rank has the accuracy of its own rows",
                          "    dist.all_reduce(counts)\n", "    counts[1].clamp_(min=1)\n"),
    "the mean of the ranks' accuracies": (
        "this is the mean of the ranks' accuracies", "    dist.all_reduce(counts)\n"
        "    right, rows = counts.tolist()\n    return right / rows",
        "    part = counts[0] / counts[1].clamp(min=1)\n    dist.all_reduce(part)\n"
        "    return part / dist.get_world_size()"),
    "the mean over ranks that have rows": (
        "this is the mean of the ranks' accuracies", "    dist.all_reduce(counts)\n"
        "    right, rows = counts.tolist()\n    return right / rows",
        "    part = torch.stack([counts[0] / counts[1].clamp(min=1), counts[1].clamp(max=1)])\n"
        "    dist.all_reduce(part)\n    return part[0] / part[1]"),
    "divides by nothing on a rank with no rows": (
        "a rank can have no rows", "    dist.all_reduce(counts)",
        "    own = counts[0].item() / counts[1].item()\n    dist.all_reduce(counts)"),
    "not a number where there are no rows": (
        "a rank can have no rows", "    dist.all_reduce(counts)",
        "    own = counts[0] / counts[1]\n    dist.all_reduce(counts)\n"
        "    return counts[0] / counts[1] + 0 * own"),
    "leaves where there are no rows": (
        "all ranks must call the same collectives", "    counts =",
        "    if not len(X):\n        return 0.0\n    counts ="),
    "the sum over its own rows": ("the sum is that of all ranks, the number of rows is not",
                                  "return right / rows", "return right / max(1, len(y))"),
    "counts, not a part": ("this is how many are right", "return right / rows",
                           "return right"),
    "rank 0 alone": ("every rank needs the answer", "return right / rows",
                     "return right / rows if dist.get_rank() == 0 else None"),
    "reduced to rank 0": ("only rank 0 has the sums", "dist.all_reduce(counts)",
                          "dist.reduce(counts, 0); counts[1].clamp_(min=1)"),
    "percent": ("this is in percent", "return right / rows", "return 100 * right / rows"),
    "the errors": ("this is the part that is wrong", "== y", "!= y"),
    "divided by the ranks, too": ("divided by the number of ranks", "return right / rows",
                                  "return right / rows / dist.get_world_size()"),
}

RESUME = RIGHT["10/resume"]["state dicts"]
WEIGHTS = 'model.load_state_dict(saved["model"])'
STATE = 'optimizer.load_state_dict(saved["optimizer"])'
RESUMES = {
    "the weights without the buffers": (
        "a state dict holds buffers", WEIGHTS,
        'for name, p in model.named_parameters():\n'
        '        p.data.copy_(saved["model"][name])'),
    "does nothing": ("these are the new model's own weights", WEIGHTS, "pass", STATE,
                     "pass"),
    "the weights alone": ("the optimizer begins anew", STATE, "pass"),
    "the optimizer alone": ("these are the new model's own weights", WEIGHTS, "pass"),
    "into a copy of the model": ("these are the new model's own weights", WEIGHTS,
                                 "import copy\n    model = copy.deepcopy(model)\n    "
                                 + WEIGHTS),
    "a new optimizer that nobody uses": (
        "the optimizer begins anew", STATE,
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"),
    "the rate, and not the state": (
        "the optimizer begins anew", STATE,
        'optimizer.param_groups[0]["lr"] = saved["optimizer"]["param_groups"][0]["lr"]'),
    "the state, and not the rate": (
        "the learning rate is the new optimizer's", STATE,
        'lr = optimizer.param_groups[0]["lr"]\n    ' + STATE
        + '\n    optimizer.param_groups[0]["lr"] = lr'),
    "steps once more": ("resume does not train", STATE,
                        STATE + "\n    model(torch.ones(2, 3, dtype=torch.float64)).sum()"
                        ".backward()\n    optimizer.step()"),
    "forgets the state again": ("the optimizer begins anew", STATE,
                          STATE + "\n    optimizer.state.clear()"),
    "returns nothing": ("return where the run is", 'return saved["epoch"], saved["step"]',
                        "pass"),
    "step before epoch": ("epoch first", 'saved["epoch"], saved["step"]',
                          'saved["step"], saved["epoch"]'),
    "the next step": ("the file already names the step that comes next",
                      'saved["step"]', 'saved["step"] + 1'),
    "rank 0 alone reads": ("every rank reads the file", "saved = load(path)",
                           "if dist.get_rank():\n        return 0, 0\n"
                           "    saved = load(path)"),
    "from the start": ("the run goes on where the file says",
                       'saved["epoch"], saved["step"]', "0, 0"),
}

ANSWERS = {
    "08/open_group": {name: (hint, _changed(RIGHT["08/open_group"]["a store, then the group"],
                                            *changes))
                      for name, (hint, *changes) in OPENS.items()},
    "08/exchange": EXCHANGES,
    "08/ring": {name: (hint, _changed(RING, *changes))
                for name, (hint, *changes) in RINGS.items()},
    "09/bucket": {name: (hint, _changed(*changes))
                  for name, (hint, *changes) in BUCKETS.items()},
    "09/hook": {name: (hint, cell.replace("average_in_hooks", "average_when_ready"))
                for name, (hint, cell) in ps4.ANSWERS["average_in_hooks"].items()},
    "09/accumulate": {name: (hint, _changed(PARTS, *changes))
                      for name, (hint, *changes) in ACCUMULATES.items()},
    "10/sampler": {name: (hint, _changed(SAMPLER, *changes))
                   for name, (hint, *changes) in SAMPLES.items()},
    "10/evaluate": {name: (hint, _changed(COUNTS, *changes))
                    for name, (hint, *changes) in EVALUATES.items()},
    "10/resume": {name: (hint, _changed(RESUME, *changes))
                  for name, (hint, *changes) in RESUMES.items()},
}
