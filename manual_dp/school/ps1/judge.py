"""Problem set 1, by hand: what is drawn, and what would be right.

For each exercise, _draw_... yields the inputs and _judge_... knows the truth and likely
mistakes. The truth of the last, a step of LeNet, is autograd on the unsplit minibatch.
"""

import torch

from manual_dp.lenet import lenet, loss
from manual_dp.school.exercise import (
    Exercise,
    close,
    differ,
    flat,
    shorten,
    so_many,
    unequal,
)
from manual_dp.school.ps1.run import entries, network
from manual_dp.school.sums import in_place, judge_everywhere, met
from manual_dp.school.tools.devices import UNKNOWN
from manual_dp.school.tools.images import images
from manual_dp.school.tools.plain import numbers, random_numbers, tensor

SHAPES = [(), (1,), (5,), (3, 4)]


def _draw_params(random):
    for world_size in (3, 2, 4, 1):
        yield {"world_size": world_size, "trained": world_size % 2 == 0,
               "params": [random_numbers(random, *shape) for shape in SHAPES]}


def _judge_params(case, got):
    params, world_size = case["params"], case["world_size"]
    who = f"parameters of shapes {SHAPES} and {so_many(world_size, 'device')}"
    yield differ(who, got["made"], [params] * world_size, [
        ("rounded to float32: keep the dtype",
         close(got["made"][0][2], torch.tensor(params[2]).tolist(), 0)),
        ("the numbers are right, their shapes are not: a copy has its tensor's shape",
         close(flat(got["made"]), flat([params] * world_size))),
        ("a replica starts from the parameters' own numbers", True)])
    yield differ(f"{who}; then each replica was written into", got["source"], params, [
        ("a replica is the parameter itself: .to(device) copies nothing on the same "
         "device", True)])
    yield differ(f"{who}; then 10 was added to replica 0, 100 to replica 1, ...",
                 got["written"], [[tensor(p) + 10 ** (rank + 1) for p in params]
                                  for rank in range(world_size)],
                 [("replicas share memory", True)])
    ready = sorted({word for params in got["ready"] for word in params})
    yield differ(f"{who}; is every tensor of a replica a leaf that wants a gradient "
                 "and has none yet?", ready, ["yes"], [
        ("a copy hangs on the graph of what it was copied from: detach first",
         "no leaf" in ready),
        ("requires_grad_() is missing: backward would leave no gradient here",
         "wants no gradient" in ready),
        ("a replica begins without a gradient: leave p.grad behind",
         "has a gradient already" in ready)])
    yield differ(f"{who}; do yours want gradients now?", got["source wants gradients"],
                 [case["trained"]] * len(params), [
        ("requires_grad_() was called on the parameters: call it on their copies",
         True)])
    yield differ(f"{who}; the parameters' own gradients", got["source's gradients"],
                 [torch.ones(shape) if case["trained"] else None for shape in SHAPES], [
        ("leave the parameters' own gradients alone: they are in the middle of "
         "training", True)])
    yield differ(f"{who}; are these where they were in memory?", got["source stays"],
                 [True] * len(params), [
        ("the parameters were given other memory: p.data = ... moves them", True)])
    yield _moved("a device called meta", got["homes"], ["meta"] * len(params),
                 "detach().to(device, copy=True)")


def _moved(who, got, wanted, how):
    if got == UNKNOWN:
        return None
    return differ(f"{who}; on which device is each?", got, wanted,
                  [(f"move each tensor to the device that was given for it: {how}",
                    True)])


def _draw_split(random):
    for world_size, rows in [(3, 10), (4, 10), (4, 5), (4, 3), (3, 9), (2, 5), (1, 4)]:
        yield {"world_size": world_size, "X": random_numbers(random, rows, 2),
               "y": random.sample(range(100), rows)}
    yield {"world_size": 2, "X": random_numbers(random, 6, 2), "y": [3, 1, 2, 0]}


def _judge_split(case, got):
    X, y, world_size = case["X"], case["y"], case["world_size"]
    given = f"{len(X)} rows, {len(y)} labels, {so_many(world_size, 'device')}"
    if len(X) != len(y):
        yield differ(f"{given}, then the other way round; did it raise ValueError?",
                     got["refused"], [True, True], [
                      ("an assert raises AssertionError, and python -O leaves it out: "
                       "write if ...: raise ValueError(...)",
                       "an AssertionError" in got["refused"]),
                      ("compare len(X) with len(y) before you cut: either may be the "
                       "longer one", True)])
        yield _moved("devices meta, cpu, meta; X_shards and y_shards", got["homes"],
                     [["meta", "cpu", "meta"]] * 2, "shard.to(device)")
        return
    rows = -(-len(X) // world_size)
    cuts = [slice(rank * rows, (rank + 1) * rows) for rank in range(world_size)]
    yield differ(f"{given}; rows of each shard", [len(shard) for shard in got["X"]],
                 [len(X[cut]) for cut in cuts], [
        ("torch's chunk returns fewer shards than devices when rows run out: add empty "
         "ones", len(got["X"]) < world_size),
        ("shards are of ceil(rows / devices) rows, the last ones shorter",
         sum(map(len, got["X"])) == len(X)),
        ("rows are lost or repeated", True)])
    yield differ(f"{given}; y = {y}; y_shards", got["y"], [y[cut] for cut in cuts],
                 [("cut y where X is cut, and keep its order", True)])
    yield differ(f"{given}; X_shards", got["X"], [X[cut] for cut in cuts])
    wanted = [[f"{dtype} of shape {(len(X[cut]), *shape)}" for cut in cuts]
              for dtype, shape in (("torch.float64", (2,)), ("torch.int64", ()))]
    yield differ(f"{given}; what each shard is, of X and of y", got["forms"], wanted, [
        ("a shard is a tensor, not a list", "a list" in flat(got["forms"])),
        ("a shard keeps its dtype: labels are whole numbers, int64", any(
            mine.split()[0] != right.split()[0]
            for mine, right in zip(flat(got["forms"]), flat(wanted)))),
        ("an empty shard keeps the other dimensions: X[:0] does", True)])


def _draw_allreduce(random):
    for world_size in (3, 2, 5, 1):  # with one rank, few mistakes can be told apart
        line = () if world_size == 2 else (random.randint(1, 5),)
        for shape in line, (random.randint(2, 4), 3):
            yield {"tensors": random_numbers(random, world_size, *shape)}


def _draw_sgd(random):
    for number, batch_size in enumerate(random.sample(range(2, 50), 4)):
        shapes = [(1,), (random.randint(1, 5),), (2, 3)]
        # first a rate that // batch_size does not make 0
        yield {"lr": random.uniform(0.1, 1) if number else 1.5 * batch_size + 0.25,
               "batch_size": batch_size,
               "params": [random_numbers(random, *shape) for shape in shapes],
               "grads": [random_numbers(random, *shape) for shape in shapes]}


def _judge_sgd(case, got):
    lr, batch_size, params = case["lr"], case["batch_size"], case["params"]

    def stepped(rate, form=torch.clone):
        return [tensor(p) - rate * form(tensor(grad))
                for p, grad in zip(params, case["grads"])]
    rounded = [tensor(p) - lr * tensor(grad) // batch_size
               for p, grad in zip(params, case["grads"])]
    yield differ(f"lr {lr:.3f}, batch_size {batch_size}, parameters "
                 f"{shorten(params, 100)}, gradients {shorten(case['grads'], 100)}",
                 got["params"], stepped(lr / batch_size), [
        ("the gradients were zeroed before the step: zero them after it",
         close(got["params"], params) and got["gradients left"] == 0),
        ("// rounds down: one / divides",
         close(got["params"], numbers(stepped(lr // batch_size)))
         or close(got["params"], numbers(rounded))),
        ("the parameters have not moved: p = p - ... makes a new tensor", params),
        ("the gradient is a sum over the batch: divide by batch_size", stepped(lr)),
        ("divide by batch_size, not by the number of parameters",
         stepped(lr / len(params))),
        ("this walks uphill", stepped(-lr / batch_size)),
        ("only the sign of the gradient is left; its size counts, too",
         stepped(lr / batch_size, torch.sign)),
        ("some parameters have not moved: step with every one",
         any(close(p, old) for p, old in zip(got["params"], params)))])
    yield differ("the same; sum of |gradient| afterwards", got["gradients left"], 0.0,
                 [("gradients must be zeroed, or the next step adds to them", True)])
    yield in_place("the same; the parameters' memory", got["memory"],
                   stepped(lr / batch_size))
    yield differ("the same; do the parameters still want gradients?",
                 got["want gradients"], [True] * len(params), [
        ("requires_grad_(False) stays in force: torch.no_grad() ends by itself", True)])


def _draw_train(random):
    for world_size, sizes in [(3, (7, 4)), (2, (5, 4)), (4, (3, 6)), (1, (4, 4))]:
        case = {"seed": random.getrandbits(32), "lr": random.uniform(0.05, 0.2),
                "world_size": world_size,
                "batches": [(random.getrandbits(32), rows) for rows in sizes]}
        grads = _grads(network(case), *images(*case["batches"][0]))
        # where the first step moves the weights most, and anywhere
        case["places"] = [[*grad.flatten().abs().topk(min(5, grad.numel())).indices
                           .tolist(), *random.choices(range(grad.numel()), k=5)]
                          for grad in grads]
        yield case


def _grads(params, X, y, k=1):
    """Return the gradient of the sum of k shards' mean losses, divided by k."""
    params = [p.clone().requires_grad_() for p in params]
    parts = loss(lenet(X, params), y).split(-(-len(X) // k))
    return torch.autograd.grad(sum(part.mean() for part in parts) / k, params)


def _judge_train(case, got):
    params, k = network(case), case["world_size"]
    for number, (seed, rows) in enumerate(case["batches"]):
        X, y = images(seed, rows)
        losses, grads = loss(lenet(X, params), y), _grads(params, X, y)
        size = -(-rows // k)
        mean_loss, parts = losses.mean(), losses.split(size)

        def replicas(factor, grads=grads, params=params):
            moved = [p - factor * case["lr"] * g for p, g in zip(params, grads)]
            return [entries(moved, case["places"])] * k
        given, step = f"{rows} rows, {so_many(k, 'device')}", got["steps"][number]
        who = f"{given}, lr {case['lr']:.3f}; after step {number + 1}"
        weights = step["weights"]
        yield from _differ_somewhere(who, weights, replicas(1), [
            ("nothing has moved", replicas(0)),
            (f"the step is {rows} times too large: divide the summed gradient by the "
             "rows of the minibatch", replicas(rows)),
            (f"the step is {k} times too large", replicas(k)),
            (f"the step is {k} times too small", replicas(1 / k)),
            (f"the sum was divided by {size * k}, as if all shards were full: divide "
             f"by the {rows} rows of the minibatch", replicas(rows / (size * k))),
            ("gradients were summed over the devices once for each shard: once is "
             "enough", replicas(k ** (k - 1))),
            ("every shard counts alike: a mean of means",
             replicas(1, _grads(params, X, y, k))),
            ("the gradients held numbers before the step, as an interrupted one leaves "
             "them, and these were added: clear them at the start",
             number == 0 and "stale" in case and replicas(
                 1, [g + k * case["stale"] / rows for g in grads])),
            ("replicas differ: each must step with the sum over all", unequal(weights)),
            ("the first step is right, the second is not: gradients are left over",
             number == 1)])
        yield differ(f"{who}; the mean loss of the minibatch", step["loss"],
                     mean_loss, tolerance=1e-6, hints=[
            ("this is the sum; divide by the rows of the minibatch", rows * mean_loss),
            ("this is a mean of the shards' means",
             sum(part.mean() for part in parts) / len(parts)),
            ("this is the loss after the step: take it from the pass that computes the "
             "gradients", loss(lenet(X, [p - case["lr"] * g for p, g in
                                         zip(params, grads)]), y).mean()),
            ("this is one shard's part: add up those of all shards",
             any(close(step["loss"], float(part.sum()) / rows) for part in parts))])
        rows = [sorted(range(rows)[i * size:(i + 1) * size]) for i in range(k)]
        yield differ(f"{given}; rows that went through each replica's weights, and "
                     "through others", step["seen"], [*rows, []], [
            ("other weights than device_params were used", bool(step["seen"][k])),
            ("every replica works on its own shard, and on no other", True)])
        params = [p - case["lr"] * grad for p, grad in zip(params, grads)]
    yield met(got["together"])


def _differ_somewhere(who, got, wanted, hints):
    """Show the first parameter that is wrong, and hint from all."""
    for rank, (replica, truth) in enumerate(zip(got, wanted)):
        for i, (mine, right) in enumerate(zip(replica, truth)):
            yield differ(f"{who}, ten numbers of parameter {i} of replica {rank}",
                         mine, right, hints, whole=got)
    yield differ(f"{who}, every parameter of every replica", got, wanted)


EXERCISES = [
    Exercise("ps1/get_params", 2, _draw_params, _judge_params),
    Exercise("ps1/split_batch", 3, _draw_split, _judge_split),
    Exercise("ps1/allreduce", 3, _draw_allreduce, judge_everywhere),
    Exercise("ps1/sgd", 2, _draw_sgd, _judge_sgd),
    Exercise("ps1/train_batch", 5, _draw_train, _judge_train,
             parts=("split_batch", "allreduce", "sgd"),
             beside=("split_batch", "allreduce", "sgd")),
]
WORDS = {"words": 4}  # points that a person gives, by grade id
