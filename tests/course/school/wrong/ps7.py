"""Wrong answers to problem set 7: {exercise: (cell, {hint: changes})}.

A hint is the list of what such a test misses, or accuses.
"""

AWAY, ACCUSED = "got away: ", "accused, and right: "

WRONG = {
    "ps7/same_step": (
        """
def same_step(train_batch):
    for k, rows in [(1, 4), (2, 7), (3, 7), (4, 5)]:
        params = draw_params(k, <<DTYPE: torch.float64>>)
        replicas, one = [copy_params(params) for _ in range(k)], copy_params(params)
        for step in range(<<STEPS: 2>>):
            X, y = draw_batch(rows, 10 * k + step, DTYPE)
            train_batch(X, y, replicas, ["cpu"] * k, <<RATE: 0.5>>)
            grads = torch.autograd.grad(loss(one, X, y).mean(), one)
            one = [(p - RATE * g).detach().requires_grad_() for p, g in zip(one, grads)]
            for replica in <<WHICH: replicas>>:
                for p, q in <<PAIRS: zip(replica, one)>>:
                    if not <<SAME: torch.allclose(p, q, rtol=0, atol=1e-9)>>:
                        return False
    return True
""",
        {
            f"{AWAY}average the shards' means, whatever their sizes; keep": {
                "PAIRS": "zip(replica, replicas[0])"
            },
            f"{AWAY}keep the gradients of the steps before": {"STEPS": "1"},
            f"{AWAY}round the gradients to three digits": {
                "SAME": "torch.allclose(p, q, rtol=0, atol=1e-2)"
            },
            f"{AWAY}step on the first device": {"WHICH": "replicas[:1]"},
            f"{AWAY}divide by the rows of a shard": {
                "SAME": "not (p - q).abs().max() > 1e-9"
            },
            f"{ACCUSED}average the shards' means, each weighed by its rows; deal": {
                "SAME": "torch.equal(p, q)"
            },
        },
    ),
    "ps7/same_weights": (
        """
def same_weights(train):
    for k, sizes in <<CASES: [(2, [7, 5, 6]), (3, [7, 2, 7]), (4, [9, 3, 5])]>>:
        params = draw_params(k)
        batches = [draw_batch(rows, 10 * k + i) for i, rows in enumerate(sizes)]
        replicas = train(params, batches, k)
        one = train(params, batches, 1)[0]
        for replica in replicas:
            for p, q in zip(replica, one):
                near = <<TOLERANCE: 1e-4 if q.dtype == torch.float32 else 1e-9>>
                if not (p - q).abs().max() <= near * <<SIZE: max(1, q.abs().max())>>:
                    return False
    return True
""",
        {
            f"{AWAY}skip a minibatch that has fewer rows than ranks; synchronise": {
                "CASES": "[(2, [7]), (3, [7]), (4, [5])]"
            },
            f"{AWAY}add up the first two ranks' gradients, and forget any third; skip": {
                "CASES": "[(2, [7, 5, 6])]"
            },
            f"{AWAY}send the gradients in float16": {"TOLERANCE": "1e-4"},
            f"{ACCUSED}train at a rate at which the loss explodes": {"SIZE": "1"},
            f"{ACCUSED}train in float32, whatever it is given": {"TOLERANCE": "1e-9"},
        },
    ),
    "ps7/same_on_ranks": (
        """
def same_on_ranks(step):
    k, rank, same = dist.get_world_size(), dist.get_rank(), True
    for rows in <<ROWS: (2 * k + 1, k - 1)>>:
        params = draw_params(rows)
        own, one = copy_params(params), copy_params(params)
        for t in range(2):
            X, y = draw_batch(rows, <<SEED: t>>)
            step(X, y, own, 0.5)
            grads = torch.autograd.grad(loss(one, X, y).mean(), one)
            one = [(p - 0.5 * g).detach().requires_grad_() for p, g in zip(one, grads)]
            same = same and all(
                <<SAME: torch.allclose(p, q, rtol=0, atol=1e-9)>> for p, q in zip(own, one))
            <<NOW: pass>>
    return <<RESULT: spread(same)>>
""",
        {
            f"{AWAY}step on rank 0 alone": {"RESULT": "spread(same or rank > 0)"},
            f"{AWAY}average the ranks' means, whatever their rows; divide": {
                "ROWS": "(2 * k,)"
            },
            f"{AWAY}let each rank divide by a number that is a little its own": {
                "SAME": "torch.allclose(p, q, rtol=0, atol=1e-3)"
            },
            f"{ACCUSED}deal the rows out like cards": {"SEED": "10 * rank + t"},
            "a rank that returns early": {"NOW": "if not same: return False"},
            "a rank that returns early leaves the others waiting": {
                "RESULT": "same and spread(same)"
            },
        },
    ),
    "ps7/assert_same": (
        """
def assert_same(model):
    <<FIRST: pass>>
    digest = hashlib.sha256()
    for p in <<PARAMS: model.parameters()>>:
        for t in <<TENSORS: (p, p.grad)>>:
            digest.update(<<BYTES: b'none' if t is None else t.detach().numpy().tobytes()>>)
    <<REST: pass>>
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, <<SENT: digest.hexdigest()>>)
    if <<DIFFER: len(set(digests)) > 1>>:
        raise <<ERROR: AssertionError>>("ranks differ")
""",
        {
            f"{AWAY}have another gradient on the last rank; have no": {
                "TENSORS": "[p]"
            },
            f"{AWAY}have no gradient for one parameter on rank 1": {
                "BYTES": "(torch.zeros(p.shape, dtype=p.dtype) if t is None else t)"
                ".detach().numpy().tobytes()"
            },
            f"{AWAY}have no gradient for one parameter on rank 1, and none for": {
                "TENSORS": "(p,)",
                "REST": "[digest.update(p.grad.numpy().tobytes()) "
                "for p in model.parameters() if p.grad is not None]",
            },
            f"{AWAY}have a weight of zero, which has a minus sign on the last rank": {
                "BYTES": "b'none' if t is None else (t.detach() + 0.0).numpy().tobytes()"
            },
            "it sends the model itself": {
                "SENT": "b''.join(p.detach().numpy().tobytes() for p in model.parameters())"
            },
            "a rank that goes on alone": {"DIFFER": "digests[0] != digest.hexdigest()"},
            f"{ACCUSED}have running statistics of each rank's own": {
                "PARAMS": "[*model.parameters(), *model.buffers()]"
            },
            f"{ACCUSED}have the same NaN on all ranks": {
                "DIFFER": "len(set(digests)) > 1 or "
                "any(p.isnan().any() for p in model.parameters())"
            },
            "this has to stay as it is": {
                "FIRST": "for p in model.parameters(): p.data.nan_to_num_()"
            },
            "requires_grad was switched": {"FIRST": "model.requires_grad_(False)"},
            "p.grad has to stay as it is": {
                "FIRST": "for p in model.parameters():\n"
                "        if p.grad is None: p.grad = torch.zeros_like(p)"
            },
            "this is no verdict": {
                "BYTES": "b'none' if t is None else t.numpy().tobytes()"
            },
            "this is no verdict: an AssertionError is one": {"ERROR": "ValueError"},
        },
    ),
    "ps7/same_after_kill": (
        """
def same_after_kill(Training, path):
    straight = Training(1)
    straight.run(<<FIRST: 4>> + <<LATER: 4>>)
    wanted = straight.weights()
    saving = Training(1)
    <<ONCE: saving.run(2); saving.save(path)>>
    saving.run(FIRST - 2)
    <<TWICE: pass>>
    saving.save(path)
    saving.run(LATER)
    resumed = Training(2)
    resumed.load(path)
    resumed.run(LATER)
    ends = <<ENDS: [saving.weights(), resumed.weights()]>>
    return all(<<SAME: p.numpy().tobytes() == q.numpy().tobytes()>>
               for end in ends for p, q in zip(end, wanted))
""",
        {
            f"{AWAY}leaves out the rest of the epoch": {"FIRST": "6"},
            f"{AWAY}forgets what draws the order of the epochs to come": {"LATER": "2"},
            f"{AWAY}never writes into a file that is there": {"ONCE": "saving.run(2)"},
            f"{AWAY}disturbs the run that goes on after the save; never writes": {
                "ONCE": "saving.run(2)",
                "ENDS": "[resumed.weights()]",
            },
            f"{AWAY}saves the momentum in float32": {
                "SAME": "torch.allclose(p, q, equal_nan=True)"
            },
            f"{ACCUSED}trains at a rate at which its weights end as NaN": {
                "SAME": "torch.equal(p, q)"
            },
            f"{ACCUSED}saves a second time": {"TWICE": "Training(3).run(1)"},
        },
    ),
    "ps7/faster": (
        """
def faster(a, b, synchronize, clock):
    def seconds(program):
        <<BEFORE: synchronize()>>
        start = clock()
        program()
        <<AFTER: synchronize()>>
        return clock() - start
    for _ in range(<<WARM: 10>>):
        a()
        b()
    <<MEASURE: times = [(seconds(a), seconds(b)) for _ in range(100)]>>
    return <<RESULT: statistics.quantiles([q / p for p, q in times], n=4)[2] < 0.9>>
""",
        {
            f"{AWAY}b was lucky now and then": {
                "RESULT": "min(q for p, q in times) < 0.9 * min(p for p, q in times)"
            },
            f"{ACCUSED}both only start their work, and b's is shorter": {
                "BEFORE": "pass",
                "AFTER": "pass",
            },
            f"{AWAY}a is interrupted now and then": {
                "RESULT": "sum(q for p, q in times) < 0.9 * sum(p for p, q in times)"
            },
            f"{ACCUSED}b has first calls that are slow, then takes four fifths": {
                "WARM": "0",
                "MEASURE": "times = [(seconds(a), seconds(b))] * 2",
            },
            f"{ACCUSED}b takes two thirds, on a machine that gets slower": {
                "MEASURE": "times = list(zip(*[[seconds(f) for _ in range(100)] for f in (a, b)]))"
            },
        },
    ),
}
