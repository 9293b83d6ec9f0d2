"""Problem set 1, by hand: replicas, shards, all-reduce, a step.

The truth of the last, a step of LeNet, is autograd on the unsplit minibatch.
"""

import torch

import manual_dp
from course.school.checks import exercise
from course.school.compare import (
    about,
    close,
    flat,
    numbers,
    shorten,
    so_many,
    unequal,
)
from course.school.draws import (
    CPU,
    META,
    forms,
    generator,
    images,
    memory,
    moved,
    rand,
    rows_seen,
    summed,
    tensors,
    together,
    watched,
)
from manual_dp import init_params, lenet, loss, try_devices

WORDS = {"words": 4}  # points that a person gives, by grade id
SHAPES = [(), (1,), (5,), (3, 4)]


@exercise("ps1/get_params", "replicas/get_params", points=2)
def get_params(random, get_params):
    """Make replicas, then write into each: who shares memory with whom shows."""
    for k in 3, 2, 4, 1:
        trained = k % 2 == 0  # in the middle of training, or not
        source = [rand(random, *shape).requires_grad_(trained) for shape in SHAPES]
        for p in source:
            p.grad = torch.ones_like(p) if trained else None
        before = [p.detach().clone() for p in source]
        places = [p.data_ptr() for p in source]
        replicas = [tensors(get_params(source, device), len(source), "get_params")
                    for device in try_devices(k)]
        say = about(f"parameters of shapes {SHAPES} and {so_many(k, 'device')}")
        yield say("the replicas", replicas, [before] * k, {
            "rounded to float32: keep the dtype":
                close(numbers(replicas[0][2]), numbers(before[2].float()), 0),
            "the numbers are right, their shapes are not: a copy has its tensor's "
            "shape":
                close(flat(numbers(replicas)), flat(numbers([before] * k))),
            "a replica starts from the parameters' own numbers": True})
        ready = {_ready(p) for replica in replicas for p in replica}
        for rank, replica in enumerate(replicas):
            for p in replica:
                p.detach().add_(10 ** (rank + 1))
        yield say("each replica was written into; the parameters", source, before, {
            "a replica is the parameter itself: .to(device) copies nothing on the same "
            "device": True})
        yield say("then 10 was added to replica 0, 100 to replica 1, ...", replicas, [
            [p + 10 ** (rank + 1) for p in before] for rank in range(k)], {
            "replicas share memory": True})
        yield say("is every tensor of a replica a leaf that wants a gradient and has "
                  "none yet?", sorted(ready), ["yes"], {
            "a copy hangs on the graph of what it was copied from: detach first":
                "no leaf" in ready,
            "requires_grad_() is missing: backward would leave no gradient here":
                "wants no gradient" in ready,
            "a replica begins without a gradient: leave p.grad behind": True})
        yield say("do yours want gradients now?", [p.requires_grad for p in source],
                  [trained] * len(source), {
            "requires_grad_() was called on the parameters: call it on their copies":
                True})
        yield say("the parameters' own gradients", [p.grad for p in source], [
            torch.ones(shape) if trained else None for shape in SHAPES], {
            "leave the parameters' own gradients alone: they are in the middle of "
            "training": True})
        yield say("are these where they were in memory?",
                  [p.data_ptr() for p in source] == places, True, {
            "the parameters were given other memory: p.data = ... moves them": True})
        yield moved(get_params, (source, META), ["meta"] * len(source),
                    "detach().to(device, copy=True)")


def _ready(p):
    if not p.is_leaf:
        return "no leaf"
    if not p.requires_grad:
        return "wants no gradient"
    return "yes" if p.grad is None else "has a gradient already"


@exercise("ps1/split_batch", "split_the_batch/split_batch", points=3)
def split_batch(random, split_batch):
    """Cut rows that divide and rows that do not; then hand over unequal lengths."""
    for k, n in (3, 10), (4, 10), (4, 5), (4, 3), (3, 9), (2, 5), (1, 4):
        X, y = rand(random, n, 2), torch.tensor(random.sample(range(100), n))
        X_shards, y_shards = split_batch(X.clone(), y.clone(), try_devices(k))
        say = about(f"{n} rows, {n} labels, {so_many(k, 'device')}")
        rows = -(-n // k)
        cuts = [slice(rank * rows, (rank + 1) * rows) for rank in range(k)]
        got = [len(shard) for shard in X_shards]
        yield say("rows of each shard", got, [len(X[cut]) for cut in cuts], {
            "torch's chunk returns fewer shards than devices when rows run out: add "
            "empty ones": len(got) < k,
            "shards are of ceil(rows / devices) rows, the last ones shorter":
                sum(got) == n,
            "rows are lost or repeated": True})
        yield say(f"y = {y.tolist()}; y_shards", y_shards, [y[cut] for cut in cuts], {
            "cut y where X is cut, and keep its order": True})
        yield say("X_shards", X_shards, [X[cut] for cut in cuts])
        got, wanted = (forms([*of_X, *of_y]) for of_X, of_y in (
            (X_shards, y_shards), ([part[cut] for cut in cuts] for part in (X, y))))
        yield say("what each shard is, of X and of y", got, wanted, {
            "a shard is a tensor, not a list": "a list" in got,
            "a shard keeps its dtype: labels are whole numbers, int64":
                [form.split()[0] for form in got] != [
                    form.split()[0] for form in wanted],
            "an empty shard keeps the other dimensions: X[:0] does": True})
    X, y = rand(random, 6, 2), torch.tensor([3, 1, 2, 0, 5, 4])
    raised = [_raised(split_batch, X, y[:4]), _raised(split_batch, X[:4], y)]
    yield about("6 rows, 4 labels, then the other way round")(
        "what did it raise?", raised, ["ValueError"] * 2, {
            "an assert raises AssertionError, and python -O leaves it out: write if "
            "...: raise ValueError(...)": "AssertionError" in raised,
            "compare len(X) with len(y) before you cut: either may be the longer one":
                True})
    yield moved(split_batch, (X, y, [META, CPU, META]), [["meta", "cpu", "meta"]] * 2,
                "shard.to(device)")


def _raised(function, X, y):
    try:
        function(X.clone(), y.clone(), try_devices(2))
    except ValueError:
        return "ValueError"
    except Exception as error:
        return type(error).__name__
    return "nothing"


@exercise("ps1/allreduce", points=3)
def allreduce(random, allreduce, scalars=True):
    """Keep hold of the tensors, whose rows do not lie one behind the other."""
    for k in 3, 2, 5, 1:  # with one rank, few mistakes can be told apart
        line = () if k == 2 and scalars else (random.randint(1, 5),)
        for shape in line, (random.randint(2, 4), 3):
            held = [rand(random, *shape) for _ in range(k)]
            kept = [t.t().contiguous().clone().t() for t in held]
            handed, views = list(kept), [t.detach() for t in kept]
            returned = allreduce(handed)
            yield from summed(held, kept, handed, returned, views)


@exercise("allreduce/allreduce")
def without_scalars(random, allreduce_):
    """Ask for the same; the book's own cannot index a tensor without dimensions."""
    return allreduce(random, allreduce_, scalars=False)


@exercise("ps1/sgd", "one_step/sgd", points=2)
def sgd(random, sgd):
    """Take a step on parameters that hold gradients."""
    for number, size in enumerate(random.sample(range(2, 50), 4)):
        # first a rate that // size does not make 0
        lr = random.uniform(0.1, 1) if number else 1.5 * size + 0.25
        old, grads = ([rand(random, *shape) for shape in
                       [(1,), (number + 2,), (2, 3)]] for _ in range(2))
        params = [p.clone().requires_grad_() for p in old]
        for p, grad in zip(params, grads):
            p.grad = grad.clone()
        views = [p.detach() for p in params]
        sgd(params, lr, size)
        left = sum(float(p.grad.abs().sum()) for p in params if p.grad is not None)

        def stepped(rate, form=torch.clone, old=old, grads=grads):
            return [p - rate * form(grad) for p, grad in zip(old, grads)]
        floors = [stepped(lr // size),
                  [p - lr * grad // size for p, grad in zip(old, grads)]]
        given = (f"lr {lr:.3f}, batch_size {size}, parameters {shorten(old, 100)}, "
                 f"gradients {shorten(grads, 100)}")
        say, now = about(given), numbers(params)
        still = [close(p, q) for p, q in zip(now, numbers(old))]
        yield say("the parameters", now, stepped(lr / size), {
            "the gradients were zeroed before the step: zero them after it":
                all(still) and left == 0,
            "// rounds down: one / divides":
                any(close(now, numbers(floor)) for floor in floors),
            "the parameters have not moved: p = p - ... makes a new tensor": old,
            "the gradient is a sum over the batch: divide by batch_size": stepped(lr),
            "divide by batch_size, not by the number of parameters": stepped(lr / 3),
            "this walks uphill": stepped(-lr / size),
            "only the sign of the gradient is left; its size counts, too":
                stepped(lr / size, torch.sign),
            "some parameters have not moved: step with every one": any(still)})
        yield say("sum of |gradient| afterwards", left, 0.0, {
            "gradients must be zeroed, or the next step adds to them": True})
        yield memory(given, views, stepped(lr / size))
        yield say("do the parameters still want gradients?",
                  [p.requires_grad for p in params], [True] * 3, {
            "requires_grad_(False) stays in force: torch.no_grad() ends by itself":
                True})


def parts():
    """Return what `train_batch` is judged with, not the learner's other answers."""
    def allreduce(data):
        manual_dp.allreduce(data)
    return {"split_batch": manual_dp.split_batch, "allreduce": allreduce,
            "sgd": manual_dp.sgd}


@exercise("ps1/train_batch", points=5, parts=parts)
def train_batch(random, train_batch, stale=0):
    """Take two steps; compare some weights of every replica, the loss, who saw what."""
    for k, sizes in (3, (7, 4)), (2, (5, 4)), (4, (3, 6)), (1, (4, 4)):
        devices, lr = try_devices(k), random.uniform(0.05, 0.2)
        params = init_params("he", generator(random), torch.float64)
        replicas = [[p.to(device, copy=True).requires_grad_() for p in params]
                    for device in devices]
        for p in sum(replicas, []) if stale and k > 2 else []:
            p.grad = torch.full_like(p, stale)  # as an interrupted step leaves it
        for number, n in enumerate(sizes, 1):
            X, y = images(random, n)
            with watched() as calls:
                mean_loss = train_batch(X.clone(), y.clone(), replicas, devices, lr)
            # a second look at the loss, without gradients, may be anybody's
            calls = [call for call in calls if call.gradients]
            say = about(f"{n} rows, {so_many(k, 'device')}, lr {lr:.3f}; step {number}")
            grads, size, rows = _grads(params, X, y), -(-n // k), list(range(n))
            left = stale if k > 2 and number == 1 else 0
            yield from _weights(say, replicas, [
                lr, n, k, number, params, grads, _grads(params, X, y, k),
                [g + k * left / n for g in grads] if left else None], random)
            after = [p - lr * g for p, g in zip(params, grads)]
            yield _loss(say, mean_loss, X, y, params, after, size)
            seen = [sorted(set(rows)) for rows in rows_seen(calls, replicas, X)]
            yield say("rows that went through each replica's weights, and through "
                      "others", seen, [rows[i * size:(i + 1) * size]
                                       for i in range(k)] + [[]], {
                "other weights than device_params were used": bool(seen[k]),
                "every replica works on its own shard, and on no other": True})
            params = after
    yield together(lambda *args: train_batch(*args, 0.1), params, random)


def _grads(params, X, y, k=1):
    """Return the gradient of the sum of k shards' mean losses, divided by k."""
    params = [p.detach().clone().requires_grad_() for p in params]
    shards = loss(lenet(X, params), y).split(-(-len(X) // k))
    return torch.autograd.grad(sum(part.mean() for part in shards) / k, params)


def _weights(say, replicas, step, random):
    """Compare ten numbers of each parameter of each replica; hint from all of them."""
    lr, n, k, number, params, grads, of_means, with_old = step
    size = -(-n // k)
    # where this step moves the weights most, and anywhere
    places = [[*g.flatten().abs().topk(min(5, g.numel())).indices.tolist(),
               *random.choices(range(g.numel()), k=5)] for g in grads]

    def some(params):
        return [p.detach().flatten()[at].tolist() for p, at in zip(params, places)]

    def like(factor, grads=grads):
        return [some([p - factor * lr * g for p, g in zip(params, grads)])] * k
    got = [some(replica) for replica in replicas]
    hints = {
        "nothing has moved": like(0),
        f"the step is {n} times too large: divide the summed gradient by the rows of "
        "the minibatch": like(n),
        f"the step is {k} times too large": like(k),
        f"the step is {k} times too small": like(1 / k),
        f"the sum was divided by {size * k}, as if all shards were full: divide by the "
        f"{n} rows of the minibatch": like(n / (size * k)),
        "gradients were summed over the devices once for each shard: once is enough":
            like(k ** (k - 1)),
        "every shard counts alike: a mean of means": like(1, of_means),
        "the gradients held numbers before the step, as an interrupted one leaves "
        "them, and these were added: clear them at the start":
            with_old is not None and like(1, with_old),
        "replicas differ: each must step with the sum over all": unequal(got),
        "the first step is right, the second is not: gradients are left over":
            number == 2}
    for rank, (replica, truth) in enumerate(zip(got, like(1))):
        for i, (mine, right) in enumerate(zip(replica, truth)):
            yield say(f"ten numbers of parameter {i} of replica {rank}", mine, right,
                      hints, whole=got)


def _loss(say, got, X, y, params, after, size):
    """Compare the mean loss of the minibatch."""
    losses = loss(lenet(X, params), y)
    shards, mean = losses.split(size), losses.mean()
    return say("the mean loss of the minibatch", got, mean, {
        "this is the sum; divide by the rows of the minibatch": len(X) * mean,
        "this is a mean of the shards' means":
            sum(part.mean() for part in shards) / len(shards),
        "this is the loss after the step: take it from the pass that computes the "
        "gradients": loss(lenet(X, after), y).mean(),
        "this is one shard's part: add up those of all shards": any(
            close(numbers(got), float(part.sum()) / len(X)) for part in shards)}, 1e-6)


@exercise("one_step/train_batch")
def after_an_interrupted_step(random, train_batch_):
    """Ask for the same; before some first steps, gradients hold old numbers."""
    return train_batch(random, train_batch_, stale=random.uniform(0.5, 1))
