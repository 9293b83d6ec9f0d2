"""Wrong answers to problem set 7: {exercise: {mistake: (hint, cell)}}.

    POINTS   {exercise: {mistake: points}}, what the test's catch deserves; 0 if not said

The points were written down before any of the tests was tried. What they follow from
stands beside them: the bugs that get away.
"""

import re

# right answers, in which one part at a time is made wrong
PARTS = {
    "same_step": ("""
def same_step(train_batch):
    for k, rows in CASES:
        params = draw_params(k, DTYPE)
        replicas, one = [copy_params(params) for _ in range(k)], copy_params(params)
        for step in range(STEPS):
            X, y = BATCH
            train_batch(X, y, replicas, ["cpu"] * k, RATE)
            grads = torch.autograd.grad(loss(one, X, y).mean(), one)
            one = [(p - RATE * g).detach().requires_grad_() for p, g in zip(one, grads)]
            for replica in WHICH:
                for p, q in PAIRS:
                    if not SAME:
                        return False
    return True
""", {"CASES": "[(1, 4), (2, 7), (3, 7), (4, 5)]", "STEPS": "2", "RATE": "0.5",
      "DTYPE": "torch.float64", "BATCH": "draw_batch(rows, 10 * k + step, DTYPE)",
      "WHICH": "replicas", "PAIRS": "zip(replica, one)",
      "SAME": "torch.allclose(p, q, rtol=0, atol=1e-9)"}),
    "same_weights": ("""
def same_weights(train):
    for k, sizes in CASES:
        params = draw_params(k)
        batches = [draw_batch(rows, 10 * k + i) for i, rows in enumerate(sizes)]
        replicas = train(params, batches, k)
        one = REFERENCE
        for replica in WHICH:
            for p, q in zip(replica, one):
                near = TOLERANCE
                if not SAME:
                    return False
    return True
""", {"CASES": "[(2, [7, 5, 6]), (3, [7, 2, 7]), (4, [9, 3, 5])]",
      "REFERENCE": "train(params, batches, 1)[0]", "WHICH": "replicas",
      "TOLERANCE": "1e-4 if q.dtype == torch.float32 else 1e-9",
      "SAME": "(p - q).abs().max() <= near * max(1, q.abs().max())"}),
    "same_on_ranks": ("""
def same_on_ranks(step):
    k, rank, same = dist.get_world_size(), dist.get_rank(), True
    for rows in ROWS:
        params = draw_params(START)
        own, one = copy_params(params), copy_params(params)
        for t in range(STEPS):
            X, y = draw_batch(rows, SEED)
            step(HANDED, own, 0.5)
            grads = torch.autograd.grad(loss(one, X, y).mean(), one)
            one = [(p - 0.5 * g).detach().requires_grad_() for p, g in zip(one, grads)]
            REFERENCE
            same = same and all(SAME for p, q in zip(own, one))
            NOW
    return RESULT
""", {"ROWS": "(2 * k + 1, k - 1)", "START": "rows", "STEPS": "2", "SEED": "t",
      "HANDED": "X, y", "REFERENCE": "pass", "NOW": "pass",
      "SAME": "torch.allclose(p, q, rtol=0, atol=1e-9)", "RESULT": "spread(same)"}),
    "assert_same": ("""
def assert_same(model):
    digest = hashlib.sha256()
    for p in PARAMS:
        for t in TENSORS:
            digest.update(BYTES)
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, SENT)
    AFTER
    if WRONG:
        raise AssertionError("ranks differ")
""", {"PARAMS": "model.parameters()", "TENSORS": "(p, p.grad)",
      "BYTES": "b'none' if t is None else t.detach().numpy().tobytes()",
      "SENT": "digest.hexdigest()", "AFTER": "pass", "WRONG": "len(set(digests)) > 1"}),
    "cause": ("""
def cause(k, n, steps):
    def near(counts, number):
        return bool((counts - number).abs().max() < NEAR)
    first, second = steps
    row, size = first[0], -(-n // k)
    if near(first, 1):
        return SECOND
    if near(first, 0):
        return "late by a step"
    if not RANKS:
        return "sum on rank 0" if near(row, 1) else "not synchronised"
    if near(row, row[0]):
        return "sum of rows" if near(row[0], n) else "divided twice"
    if near(row[size:], 0):
        return "rank 0 for all"
    if near(row[-1], 0):
        return "last rank left out" if near(row[0], 1) else "rows dropped"
    if near(row[0], n / size):
        return SUMS
    return MEANS if near(row[0], n / k / size) else "rows repeated"
""", {"NEAR": "1e-3", "SECOND": '"healthy" if near(second, 1) else "old gradients"',
      "RANKS": "near(first, row)", "SUMS": '"sum of means"',
      "MEANS": '"mean of means"'}),
    "same_after_kill": ("""
def same_after_kill(Training, path):
    straight = Training(1)
    straight.run(FIRST + LATER)
    wanted = straight.weights()
    saving = Training(1)
    ONCE
    saving.run(FIRST - 2)
    TWICE
    saving.save(path)
    ON
    resumed = Training(2)
    resumed.load(path)
    resumed.run(LATER)
    ends = ENDS
    return all(SAME for end in ends for p, q in zip(end, wanted))
""", {"FIRST": "4", "LATER": "4", "ONCE": "saving.run(2); saving.save(path)",
      "TWICE": "pass", "ON": "saving.run(LATER)",
      "ENDS": "[saving.weights(), resumed.weights()]",
      "SAME": "p.numpy().tobytes() == q.numpy().tobytes()"}),
    "faster": ("""
def faster(a, b, synchronize, clock):
    def seconds(program):
        BEFORE
        start = clock()
        program()
        AFTER
        return clock() - start
    for _ in range(WARM):
        a()
        b()
    MEASURE
    return RESULT
""", {"BEFORE": "synchronize()", "AFTER": "synchronize()", "WARM": "10",
      "MEASURE": "times = [(seconds(a), seconds(b)) for _ in range(100)]",
      "RESULT": "statistics.quantiles([q / p for p, q in times], n=4)[2] < 0.9"}),
}
AWAY, FALSE, NOTHING = "got away: ", "accused, and right: ", "got away: "
CAUSES = "there is no such cause"
# {exercise: {mistake: (hint, points, parts)}}; 16 bugs are planted in the first
# exercise, 12 in each other, a quarter of a point each
CHANGES = {
    "same_step": {
        # away: all but own gradients, sum on rank 0, neighbours alone, mean of nothing,
        # others behind
        "are the replicas equal?": (AWAY, 1.25, {"PAIRS": "zip(replica, replicas[0])"}),
        # away: mean of means, never cleared, rows dropped, neighbours, mean of
        # nothing, filled up, one memory
        "one step of equal shards": (AWAY, 2.25, {"CASES": "[(2, 8)]", "STEPS": "1"}),
        # away: last parameter, never cleared, one memory
        "the first parameter after one step": (AWAY, 3.25, {
            "PAIRS": "list(zip(replica, one))[:1]", "STEPS": "1"}),
        # away: three digits, little decay
        "a tolerance of 0.01": (AWAY, 3.5, {
            "SAME": "torch.allclose(p, q, rtol=0, atol=1e-2)"}),
        # away: never cleared, one memory
        "only how far the weights went": (AWAY, 3.5, {
            "PAIRS": "[(p - s, q - s) for p, q, s in zip(replica, one, params)]",
            "SAME": "abs(p.norm() - q.norm()) < 1e-9", "STEPS": "1"}),
        # away: neighbours alone, mean of nothing
        "two devices only": (AWAY, 3.5, {"CASES": "[(2, 7)]"}),
        # away: rows dropped, labels of others, same rows, filled up
        "the same row over and over": (AWAY, 3, {
            "BATCH": "(t[:1].repeat(rows, *[1] * (t.dim() - 1)) "
                     "for t in draw_batch(rows, 10 * k + step))"}),
        # away: never cleared, one memory
        "no second step": (AWAY, 3.5, {"STEPS": "1"}),
        # caught: others behind, mean of nothing, labels of others; and a replica whose shard is
        # empty stands still with own gradients, and where rank 0 alone has the sum; two
        # more send replicas along other rows
        "does the loss fall?": (AWAY, 1.75, {
            "PAIRS": "[(replica, params)]", "STEPS": "1", "RATE": "0.01",
            "CASES": "[(2, 8), (4, 5)]",
            "SAME": "loss(p, X, y).mean() < loss(q, X, y).mean()"}),
        # away: sum on rank 0, never cleared, one memory, others behind
        "the first replica after one step": (AWAY, 3, {
            "WHICH": "replicas[:1]", "STEPS": "1"}),
        # away: others behind
        "the first replica": (AWAY, 3.75, {"WHICH": "replicas[:1]"}),
        # away: mean of nothing
        "NaN is not larger": (AWAY, 3.75, {"SAME": "not (p - q).abs().max() > 1e-9"}),
        "no empty shard": (AWAY, 3.75, {"CASES": "[(1, 4), (2, 7), (3, 7)]"}),
        # away: mean of means, rows dropped, filled up, mean of nothing
        "equal shards": (AWAY, 3, {"CASES": "[(2, 8), (3, 9), (4, 8)]"}),
        "bit for bit": (FALSE, 0, {"SAME": "torch.equal(p, q)"}),
        "float32 as if it were float64": (FALSE, 0, {"DTYPE": "torch.float32"}),
        "a hundred steps at a rate far too high": (FALSE, 0, {
            "STEPS": "100", "RATE": "20"}),
        "never suspicious": (NOTHING, 0, {"SAME": "True"}),
        "always suspicious": (FALSE, 0, {"SAME": "False"}),
    },
    "same_weights": {
        # away: every second sum, late by a step, rate by rank, small batches
        "one minibatch": (AWAY, 2, {"CASES": "[(2, [7]), (3, [7]), (4, [5])]"}),
        # away: two at most, small batches
        "two devices only": (AWAY, 2.5, {"CASES": "[(2, [7, 5, 6])]"}),
        # away: mean of means, small batches
        "equal shards": (AWAY, 2.5, {
            "CASES": "[(2, [8, 4, 6]), (3, [9, 6, 3]), (4, [8, 4, 8])]"}),
        # away: all but others behind, every second sum
        "are the replicas equal?": (AWAY, 0.5, {"REFERENCE": "replicas[0]"}),
        # away: half precision
        "a tolerance of 0.001": (AWAY, 2.75, {"TOLERANCE": "1e-3"}),
        "the tolerance of float32 for all": (AWAY, 2.75, {"TOLERANCE": "1e-4"}),
        # away: others behind
        "the first replica": (AWAY, 2.75, {"WHICH": "replicas[:1]"}),
        # away: as for one minibatch, and others behind
        "the first replica after one minibatch": (AWAY, 1.75, {
            "CASES": "[(2, [7]), (3, [7]), (4, [5])]", "WHICH": "replicas[:1]"}),
        "a tolerance for weights of size 1": (FALSE, 0, {
            "SAME": "(p - q).abs().max() <= near"}),
        "float32 as if it were float64": (FALSE, 0, {"TOLERANCE": "1e-9"}),
        "bit for bit": (FALSE, 0, {"SAME": "torch.equal(p, q)"}),
        "until the weights overflow": (FALSE, 0, {"CASES": "[(3, [7] * 10)]"}),
        "never suspicious": (NOTHING, 0, {"SAME": "True"}),
    },
    "same_on_ranks": {
        # away: never cleared, others behind, apart by a little
        "rank 0 after one step": (AWAY, 2.25, {
            "STEPS": "1", "RESULT": "spread(same or rank > 0)"}),
        # away: others behind
        "rank 0 alone": (AWAY, 2.75, {"RESULT": "spread(same or rank > 0)"}),
        # away: sum, mean of means, rank 0 for all, never cleared, rows dropped, last
        # rank twice, three digits
        "are the replicas equal?": (AWAY, 1.25, {
            "REFERENCE": "one = [p.detach().clone() for p in own]; "
                         "[dist.broadcast(p, 0) for p in one]; "
                         "one = copy_params(one)"}),
        # away: never cleared
        "no second step": (AWAY, 2.75, {"STEPS": "1"}),
        # away: mean of means, rows dropped, mean of nothing
        "equal shards": (AWAY, 2.25, {"ROWS": "(2 * k,)"}),
        # away: mean of nothing
        "no empty shard": (AWAY, 2.75, {"ROWS": "(2 * k + 1,)"}),
        # away: three digits, apart by a little
        "a tolerance of 0.001": (AWAY, 2.5, {
            "SAME": "torch.allclose(p, q, rtol=0, atol=1e-3)"}),
        "bit for bit": (FALSE, 0, {"SAME": "torch.equal(p, q)"}),
        "a shard in place of the minibatch": ("a program was handed no rows", 0, {
            "HANDED": "X[rank::k], y[rank::k]"}),
        "other rows on every rank": (FALSE, 0, {"SEED": "10 * rank + t"}),
        "other weights on every rank": (FALSE, 0, {"START": "rank"}),
        "never suspicious": (NOTHING, 0, {"SAME": "True"}),
    },
    "assert_same": {
        # away: last bit, minus zero, exchanged, rows turned, three of gradients
        "the sum of all weights": (AWAY, 1.25, {
            "SENT": "f'{sum(p.detach().double().sum() for p in model.parameters()):.9e}'"}),
        # away: last bit, minus zero, exchanged, opposite, rows turned, three of gradients
        "the lengths of the weights": (AWAY, 1, {
            "SENT": "' '.join(f'{p.detach().double().abs().sum():.12e}' "
                    "for p in model.parameters())"}),
        # away: three of gradients
        "weights alone": (AWAY, 2.25, {"TENSORS": "[p]"}),
        # away: all but three of gradients
        "gradients alone": (AWAY, 0.75, {"TENSORS": "[p.grad]"}),
        # away: opposite, rows turned, three of gradients, last parameter
        "the first parameter": (AWAY, 1.5, {"PARAMS": "[next(model.parameters())]"}),
        # away: the frozen one
        "only what is trained": (AWAY, 2.75, {
            "PARAMS": "[p for p in model.parameters() if p.requires_grad]"}),
        # away: the one that is missing
        "a missing gradient taken for zeros": (AWAY, 2.75, {
            "BYTES": "(torch.zeros(p.shape, dtype=p.dtype) if t is None else t)"
                     ".detach().numpy().tobytes()"}),
        # away: minus zero
        "zeros without their sign": (AWAY, 2.75, {
            "BYTES": "b'none' if t is None else (t.detach() + 0.0).numpy().tobytes()"}),
        "sends the model": ("it sends the model itself", 0, {
            "SENT": "b''.join(p.detach().numpy().tobytes() "
                    "for p in model.parameters())"}),
        "raises where the rank differs from rank 0": (
            "a rank that goes on alone", 0, {"WRONG": "digests[0] != digest.hexdigest()"}),
        "rank 0 alone raises": ("a rank that goes on alone", 0, {
            "WRONG": "dist.get_rank() == 0 and len(set(digests)) > 1"}),
        "rank 0 alone asks": (
            {FALSE, "a rank that goes on alone", "some rank waits"}, 0, {
                "AFTER": "dist.get_rank() or dist.barrier()"}),
        "running statistics too": (FALSE, 0, {"PARAMS": "[*model.parameters(), "
            "*model.buffers()]"}),
        "clears the gradients": ("a check that runs in every step must leave", 0, {
            "AFTER": "model.zero_grad()"}),
        "NaN is never equal": (FALSE, 0, {
            "WRONG": "len(set(digests)) > 1 or any(p.isnan().any() "
                     "for p in model.parameters())"}),
        "forgets to detach": ("this is no verdict, it is an error", 0, {
            "BYTES": "b'none' if t is None else t.numpy().tobytes()"}),
        "never raises": (NOTHING, 0, {"WRONG": "False"}),
    },
    "cause": {
        # away: old gradients
        "the first step alone": (AWAY, 2.75, {"SECOND": '"healthy"'}),
        # away: sum on rank 0, not synchronised
        "rank 0 alone": (AWAY, 2.5, {"RANKS": "True"}),
        # away: sum of means
        "sum and mean taken for one": (AWAY, 2.75, {"SUMS": '"mean of means"'}),
        # away: mean of means, sum of means
        "sum and mean exchanged": (AWAY, 2.5, {
            "SUMS": '"mean of means"', "MEANS": '"sum of means"'}),
        "float32 as if it were float64": (FALSE, 0, {"NEAR": "1e-12"}),
        "names of its own": (CAUSES, 0, {"MEANS": '"uneven"'}),
        "always healthy": (NOTHING, 0, {"NEAR": "float('inf')", "SECOND": '"healthy"'}),
        "never healthy": (FALSE, 0, {"SECOND": '"old gradients"'}),
    },
    "same_after_kill": {
        # away: the one that leaves out the rest of the epoch
        "a kill between epochs": (AWAY, 2.75, {"FIRST": "6"}),
        # away: order of the epochs to come
        "resumed to the end of the epoch": (AWAY, 2.75, {"LATER": "2"}),
        # away: float32
        "a tolerance of 1e-6": (AWAY, 2.75, {
            "SAME": "torch.allclose(p, q, rtol=0, atol=1e-6, equal_nan=True)"}),
        # away: the one that never writes again
        "one save": (AWAY, 2.75, {"ONCE": "saving.run(2)"}),
        # away: the one that never writes again, the one that disturbs
        "one save, and the saved run is not looked at": (AWAY, 2.5, {
            "ONCE": "saving.run(2)", "ENDS": "[resumed.weights()]"}),
        # away: all but float32, the last parameter, the one that never writes again
        "the weights after the load": (AWAY, 0.75, {
            "LATER": "0", "ENDS": "[resumed.weights()]"}),
        # away: all but the one that disturbs
        "the resumed run is not looked at": (AWAY, 0.25, {
            "ENDS": "[saving.weights()]"}),
        "NaN is not NaN": (FALSE, 0, {"SAME": "torch.equal(p, q)"}),
        "a second training in between": (FALSE, 0, {
            "TWICE": "Training(3).run(1)"}),
        "never suspicious": (NOTHING, 0, {"SAME": "True"}),
    },
    "faster": {
        # away: b was lucky, every second call
        "the fastest call": (AWAY, 2.5, {
            "RESULT": "min(q for p, q in times) < 0.9 * min(p for p, q in times)"}),
        "without synchronize": (FALSE, 0, {"BEFORE": "pass", "AFTER": "pass"}),
        "synchronize before, not after": (FALSE, 0, {"AFTER": "pass"}),
        "the mean": (FALSE, 0, {
            "RESULT": "sum(q for p, q in times) < 0.9 * sum(p for p, q in times)"}),
        "one call each": (FALSE, 0, {
            "WARM": "0", "MEASURE": "times = [(seconds(a), seconds(b))] * 2"}),
        "first all of a, then all of b": (FALSE, 0, {
            "MEASURE": "times = list(zip(*[[seconds(f) for _ in range(100)] "
                       "for f in (a, b)]))"}),
        "only if b takes half": (FALSE, 0, {
            "RESULT": "statistics.median(q / p for p, q in times) < 0.5"}),
        "few calls, no warm-up": (FALSE, 0, {
            "WARM": "0", "MEASURE":
                "times = [(seconds(a), seconds(b)) for _ in range(4)]"}),
        "the clock on the wall": (FALSE, 0, {
            "MEASURE": "import time\n    clock = time.time\n"
                       "    times = [(seconds(a), seconds(b)) for _ in range(100)]",
            "RESULT": "statistics.median(q - p for p, q in times) < -1"}),
        "never believes it": (FALSE, 0, {"RESULT": "False"}),
        "always believes it": (NOTHING, 0, {"RESULT": "True"}),
    },
}


def _changed(exercise, parts):
    cell, right = PARTS[exercise]
    for _ in range(2):  # a part may name another
        for part in right:
            new = parts.get(part, right[part])
            cell = re.sub(rf"\b{part}\b", new.replace("\\", r"\\"), cell)
    return cell


ANSWERS = {exercise: {name: (hint, _changed(exercise, parts))
                      for name, (hint, _, parts) in changes.items()}
           for exercise, changes in CHANGES.items()}
POINTS = {exercise: {name: points for name, (_, points, _) in changes.items()}
          for exercise, changes in CHANGES.items()}
RIGHT = {exercise: _changed(exercise, {}) for exercise in PARTS}
