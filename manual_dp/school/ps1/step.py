"""Problem set 1, the last exercise: a step of LeNet on all replicas.

    draw_train    what is drawn
    judge_train   what would be right: autograd on the unsplit minibatch
"""

import torch

from manual_dp.lenet import lenet, loss
from manual_dp.school.exercise import close, differ
from manual_dp.school.ps1 import run as given


def draw_train(random):
    """Draw two minibatches, and the places at which to look at the weights."""
    for world_size, sizes in [(3, (7, 4)), (2, (5, 4)), (4, (3, 6)), (1, (4, 4))]:
        case = {"seed": random.getrandbits(32), "lr": random.uniform(0.05, 0.2),
                "world_size": world_size,
                "batches": [(random.getrandbits(32), rows) for rows in sizes]}
        grads = _grads(given.network(case), *given.batch(*case["batches"][0]))
        # where the first step moves the weights most, and anywhere
        case["places"] = [[*grad.flatten().abs().topk(min(5, grad.numel())).indices
                           .tolist(), *random.choices(range(grad.numel()), k=5)]
                          for grad in grads]
        yield case


def _grads(params, X, y):
    params = [p.clone().requires_grad_() for p in params]
    return torch.autograd.grad(loss(lenet(X, params), y).mean(), params)


def _mean_of_means(params, X, y, k):
    size = -(-len(X) // k)
    shards = [_grads(params, X_shard, y_shard)
              for X_shard, y_shard in zip(X.split(size), y.split(size))]
    return [sum(grads) / k for grads in zip(*shards)]


def judge_train(case, got):
    """Compare every replica with a single device after each of two steps."""
    params, k = given.network(case), case["world_size"]
    for number, (seed, rows) in enumerate(case["batches"]):
        X, y = given.batch(seed, rows)
        step, before = got["steps"][number], params
        size, losses = -(-rows // k), loss(lenet(X, params), y)
        mean_loss, means = float(losses.mean()), [part.mean() for part in
                                                  losses.split(size)]
        grads = _grads(params, X, y)

        def replicas(factor, grads=grads, before=before):
            moved = [p - factor * case["lr"] * g for p, g in zip(before, grads)]
            return [given.entries(moved, case["places"])] * k
        params = [p - case["lr"] * grad for p, grad in zip(params, grads)]
        who = (f"{rows} rows, {k} devices, lr {case['lr']:.3f}; "
               f"after step {number + 1}")
        weights = step["weights"]
        problem = _differ_somewhere(who, weights, replicas(1), [
            ("nothing has moved", close(weights, replicas(0))),
            (f"the step is {rows} times too large: divide the summed gradient by the "
             "rows of the minibatch", close(weights, replicas(rows))),
            (f"the step is {k} times too large", close(weights, replicas(k))),
            (f"the step is {k} times too small", close(weights, replicas(1 / k))),
            ("every shard counts alike: a mean of means", close(weights, replicas(
                1, _mean_of_means(before, X, y, k)))),
            ("replicas differ: each must step with the sum over all",
             any(not close(other, weights[0]) for other in weights)),
            ("the first step is right, the second is not: gradients are left over",
             number == 1)])
        problem = problem or differ(f"{who}; the mean loss of the minibatch",
                                    step["loss"], mean_loss, [
            ("this is the sum; divide by the rows of the minibatch", rows * mean_loss),
            ("this is a mean of the shards' means", float(sum(means) / len(means)))])
        problem = problem or differ(
            f"{rows} rows, {k} devices; rows in each call of lenet, largest first",
            sorted(step["shards"], reverse=True),
            [min(size, rows - cut) for cut in range(0, rows, size)])
        if problem:
            return problem
    return None


def _differ_somewhere(who, got, wanted, hints):
    """Show the first parameter that is wrong, not all."""
    for rank, (replica, truth) in enumerate(zip(got, wanted)):
        for i, (entries, right) in enumerate(zip(replica, truth)):
            if not close(entries, right):
                return differ(f"{who}, ten numbers of parameter {i} of replica {rank}",
                              entries, right, hints)
    return differ(f"{who}, every parameter of every replica", got, wanted)
