"""Right answers to problem set 8: {exercise: {style: cell}}."""

from tests.course.school.right import changed

RIGHT = {
    "ps8/train_step_amp": {
        "the flag and the clipping by hand": changed(
            "ps8/train_step_amp",
            (
                "with nullcontext():\n            share",
                "model.require_backward_grad_sync = i == n - 1\n"
                "        with nullcontext():\n            share",
            ),
            (
                "nn.utils.clip_grad_norm_(params, max_norm)",
                "norm = sum((p.grad ** 2).sum() for p in params) ** 0.5\n"
                "    [p.grad.mul_(min(1, max_norm / norm)) for p in params]",
            ),
            BACKWARD="nullcontext()",
        ),
        "one backward for all losses": changed(
            "ps8/train_step_amp",
            ("scaler.scale(share).backward()", "total = share + (total if i else 0)"),
            BEFORE="scaler.scale(total).backward(); scaler.unscale_(optimizer)",
        ),
    },
    "ps8/local_sgd": {
        "a start by objects, torch's optimizer": changed(
            "ps8/local_sgd",
            (
                "for p in model.parameters():\n            p.data -= lr * p.grad",
                "o.step()",
            ),
            START="box = [model.state_dict()]; dist.broadcast_object_list(box)\n"
            "    model.load_state_dict(box[0]); o = torch.optim.SGD(model.parameters(), lr)",
        ),
        "one flat tensor, in rounds": """
def local_sgd(model, batches, lr, every):
    [dist.broadcast(p.detach(), src=0) for p in model.parameters()]
    for first in range(0, len(batches), every):
        for X, y in batches[first:first + every]:
            params = list(model.parameters())
            grads = torch.autograd.grad(F.cross_entropy(model(X), y), params)
            [p.data.add_(g, alpha=-lr) for p, g in zip(params, grads)]
        flat = nn.utils.parameters_to_vector(params).detach()
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / dist.get_world_size(), params)
%time sum(range(9))
""",
    },
    "ps8/replay": {
        "in place, a tensor of ages": changed(
            "ps8/replay",
            ("w = w -", "w -="),
            ("return w, staleness", "return [w, torch.tensor(staleness)]"),
        ),
        "all versions are kept": """
def replay(events, gradient, w0, lr):
    versions, seen, staleness = [w0], {}, []
    for kind, rank in events:
        if kind == "read":
            seen[rank] = len(versions) - 1
            continue
        staleness.append(len(versions) - 1 - seen[rank])
        versions.append(versions[-1] - lr * gradient(rank, versions[seen[rank]]))
    return [versions[-1].clone(), tuple(staleness)]
""",
    },
    "ps8/schedule_steps": {
        "counted": """
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    batches = range(0, len(range(0, rows, world_size)), batch_size)
    return sum(len(batches[::accumulate]) for _ in range(epochs))
""",
        "tried in its cell": changed("ps8/schedule_steps", ("return ", "return 1 * "))
        + """
check("ps8/schedule_steps", schedule_steps)
""",
    },
    "ps8/epoch_loss": {
        "to rank 0 and back, a number": changed(
            "ps8/epoch_loss",
            RESULT="total[1].item()",
            REDUCE="dist.reduce(total, 0); dist.broadcast(total, 0)",
        ),
        "gathered objects": changed(
            "ps8/epoch_loss",
            REDUCE="every = [None] * dist.get_world_size()\n"
            "    dist.all_gather_object(every, total); total = sum(every)",
        ),
    },
    "ps8/once": {
        "rank 0 raises its own error": changed(
            "ps8/once",
            ("errors = [None]", "errors, mine = [None], None"),
            FAILED="errors, mine = [repr(caught)], caught",
            RAISE="raise mine or OSError(errors[0])",
        ),
        "errors gathered, another name": changed(
            "ps8/once",
            (
                "dist.broadcast_object_list(errors)",
                "everyone = 3 * [None]\n"
                "    dist.all_gather_object(everyone, errors); errors = everyone[0]",
            ),
            PLACE="path + '~'",
        ),
    },
}
