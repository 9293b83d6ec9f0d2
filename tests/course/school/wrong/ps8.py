"""Wrong answers to problem set 8: {exercise: (cell, {hint: changes})}."""

WRONG = {
    "ps8/train_step_amp": (
        """
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    k, n, params = dist.get_world_size(), len(microbatches), list(model.parameters())
    optimizer.zero_grad()
    for i, (X, y) in enumerate(microbatches):
        with <<FORWARD: BACKWARD>>:
            share = <<SHARE: loss(model(X), y) * len(y) * k / rows>>
        with <<BACKWARD: model.no_sync() if i < n - 1 else nullcontext()>>:
            <<SCALED: scaler.scale(share)>>.backward()
    <<BEFORE: scaler.unscale_(optimizer)>>
    nn.utils.clip_grad_norm_(<<CLIPPED: params>>, max_norm)
    <<STEP: scaler.step(optimizer); scaler.update()>>
""",
        {
            "a scaled gradient is too large": {
                "STEP": "optimizer.step(); scaler.update()"
            },
            "replicas differ": {"BACKWARD": "model.no_sync()"},
            "DDP takes the mean over ranks": {
                "SHARE": "loss(model(X), y) * len(y) / rows"
            },
            "the gradient is not clipped": {"CLIPPED": "[]"},
            "this was clipped while scaled": {"BEFORE": "pass"},
            "one step: the mean of all rows": {"SHARE": "loss(model(X), y) / n"},
            "DDP averages once": {"FORWARD": "nullcontext()"},
            "call scaler.update() once": {
                "BEFORE": "pass",
                "SCALED": "share",
                "STEP": "optimizer.step()",
            },
        },
    ),
    "ps8/local_sgd": (
        """
def local_sgd(model, batches, lr, every):
    <<START: [dist.broadcast(p.data, 0) for p in model.parameters()]>>
    for step, (X, y) in enumerate(batches, 1):
        model.zero_grad()
        F.cross_entropy(model(X), y).backward()
        for p in model.parameters():
            p.data -= lr * p.grad
        if <<DUE: step % every == 0 or step == len(batches)>>:
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= dist.get_world_size()
""",
        {
            "the ranks begin with different weights": {"START": "pass"},
            "this is an average in every step": {"DUE": "True"},
            "the ranks end with different weights": {"DUE": "step % every == 0"},
            "take the mean after steps 3, 6": {"DUE": "step == len(batches)"},
            "communicate only when": {
                "DUE": "dist.barrier() or step % every == 0 or step == len(batches)"
            },
        },
    ),
    "ps8/replay": (
        """
def replay(events, gradient, w0, lr):
    w, held, writes, staleness = w0.clone(), {}, 0, []
    for kind, rank in events:
        if kind == "read":
            held[rank] = w.clone(), writes
        else:
            staleness.append(<<LATE: writes - held[rank][1]>>)
            w = w - <<RATE: lr>> * gradient(rank, <<COPY: held[rank][0]>>)
            writes += 1
    return w, staleness
""",
        {
            "the gradient is that at": {"COPY": "w"},
            "a write is one step": {"RATE": "lr / len(held)"},
            "the own write counts, too": {"LATE": "writes - held[rank][1] + 1"},
            "count all ranks' writes": {"LATE": "writes"},
        },
    ),
    "ps8/schedule_steps": (
        """
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    up = lambda n, d: -(-n // d)
    return <<STEPS: up(up(up(rows, world_size), batch_size), accumulate) * epochs>>
""",
        {
            "batch_size is that of": {
                "STEPS": "up(up(rows, batch_size), accumulate) * epochs"
            },
            "these are batches": {
                "STEPS": "up(up(rows, world_size), batch_size) * epochs"
            },
            "each epoch": {
                "STEPS": "rows // world_size // batch_size // accumulate * epochs"
            },
        },
    ),
    "ps8/epoch_loss": (
        """
def epoch_loss(sums, counts):
    total = torch.stack([sums.sum(), counts.sum().double()])
    <<REDUCE: dist.all_reduce(total)>>
    return total[0] / <<RESULT: total[1]>>
""",
        {
            "a collective is for all ranks": {
                "REDUCE": "len(sums) and dist.all_reduce(total)"
            },
            "every rank has the mean": {"REDUCE": "pass"},
            "this is no mean over all rows": {"RESULT": "dist.get_world_size()"},
        },
    ),
    "ps8/once": (
        """
def once(function, path):
    errors = [None]
    if dist.get_rank() == 0 and <<TODO: not os.path.exists(path)>>:
        try:
            function(<<PLACE: f"{path}.part">>)
            os.replace(PLACE, path)
        except Exception as caught:
            <<FAILED: errors = [str(caught) or repr(caught)]>>
    dist.broadcast_object_list(errors)
    if errors[0]:
        <<RAISE: raise RuntimeError(errors[0])>>
""",
        {
            "rank 0 has failed": {"FAILED": "raise"},
            "a file that is there": {"TODO": "True"},
            "half a file is left there": {"PLACE": "path"},
            "an error may have no words": {"FAILED": "errors = [str(caught)]"},
            "rank 0 downloads, others wait": {"RAISE": "return"},
        },
    ),
}
