"""Right answers to problem set 5: {exercise: {style: cell}}."""

from tests.course.school.right import changed


def with_numpy(name, *pairs, **changes):
    """Return a cell that may use numpy's numbers."""
    return "import numpy as np" + changed(name, *pairs, **changes)


RIGHT = {
    "ps5/rebinding": {
        "stacked, through .data": with_numpy(
            "ps5/rebinding",
            CLUE='["replicas", np.int64(k)]',
            SUM="torch.stack(data).sum(0)",
            WRITE="t.data.copy_(total.to(t.device))",
        ),
        "tried in its cell": changed(
            "ps5/rebinding", CLUE='"replicas", float(k)', WRITE="t[...] = total"
        )
        + """
assert measure(1, repaired_1, 2)["replicas"] == 1
display(clue_1(2))
clue_1?
check("ps5/rebinding", clue_1, repaired_1)
""",
    },
    "ps5/aliasing": {
        "nn.Parameter": changed(
            "ps5/aliasing",
            CLUE='"step", 2.0 ** (k - 1)',
            COPY="torch.nn.Parameter(p.detach().to(device, copy=True))",
        ),
        "cloned, moved, detached": with_numpy(
            "ps5/aliasing",
            ("return copies", "return tuple(copies)"),
            CLUE='"step", np.exp2(k - 1)',
            COPY="p.clone().to(device).detach()",
        ),
    },
    "ps5/hook": {
        "a hook that returns": """
def clue_3(k):
    return "weight", 1 if k == 1 else 0

def repaired_3(model):
    def average(grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad / dist.get_world_size()
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(average)
""",
        "divided on the way": with_numpy(
            "ps5/hook",
            CLUE='("replicas", np.float32(k))',
            DIVIDE="p.grad.div_(dist.get_world_size())",
        ),
    },
    "ps5/set_epoch": {
        "a sampler each epoch": changed(
            "ps5/set_epoch",
            CLUE='"orders", 1.0',
            BEFORE="sampler = DistributedSampler("
            "dataset, world_size, rank, seed=epoch)",
        ),
        "dealt by hand": changed(
            "ps5/set_epoch",
            ("batch_size=4", "batch_size=48 // world_size"),
            BEFORE="generator = torch.Generator().manual_seed(epoch)\n"
            "        order = torch.randperm(len(dataset), generator=generator).tolist()\n"
            "        order += order[:-len(order) % world_size]",
            ORDER="order[rank::world_size]",
        ),
    },
    "ps5/mean_of_means": {
        "against autograd on all rows": """
def clue_5(program):
    torch.manual_seed(1)
    X, y = torch.rand(10, 4).double(), torch.randint(3, (10,))
    W = torch.rand(4, 3).double().requires_grad_()
    shards = program(X.tensor_split([3, 6, 9]), y.tensor_split([3, 6, 9]), W)
    alone, = torch.autograd.grad(F.cross_entropy(X @ W, y), W)
    return (shards - alone).norm()

def repaired_5(X_shards, y_shards, W):
    X, y = torch.cat(list(X_shards)), torch.cat(list(y_shards))
    return torch.autograd.grad(F.cross_entropy(X @ W, y), [W])[0]
""",
        "the same rows, cut in two ways; means, weighed": changed(
            "ps5/mean_of_means",
            CUT="3",
            ALONE="program(X.split([1, 4]), y.split([1, 4]), W)",
            SHARE="* (len(y) / rows / max(1, len(y)))",
            RESULT="sum(grads).detach()",
        ),
    },
    "ps5/stale_gradients": {
        "a tensor, gradients set to None": changed(
            "ps5/stale_gradients",
            CLUE='"step", torch.tensor((k + 1) / 2)',
            BEFORE="optimizer.zero_grad()",
            TEST="i % accumulate == accumulate - 1",
            CLEAR="optimizer.zero_grad(set_to_none=True)",
        ),
        "prints the loss once more": changed(
            "ps5/stale_gradients",
            CLUE='"weight", 1 / k',
            BEFORE="optimizer.zero_grad()",
            TEST="print(F.cross_entropy(model(X), y).item()) or not (i + 1) % accumulate",
        ),
    },
    "ps5/double_averaging": {
        "without DDP": changed(
            "ps5/double_averaging",
            CLUE='["messages", 2.0]',
            MODEL="model; [dist.broadcast(p.data, 0) for p in model.parameters()]",
            AFTER="dist.all_reduce(p.grad); p.grad /= dist.get_world_size()",
        ),
        "a step by hand": changed(
            "ps5/double_averaging",
            ("        optimizer.step()\n", ""),
            AFTER="p.data -= lr * p.grad",
        ),
    },
    "ps5/no_sync": {
        "the flag by hand": changed(
            "ps5/no_sync",
            (
                "        with",
                "        model.require_backward_grad_sync = i == n - 1\n        with",
            ),
            CLUE='("messages", 1.0 * k)',
            QUIET="nullcontext()",
        ),
        "backward inside, and the losses": changed(
            "ps5/no_sync",
            (
                "        loss.backward()",
                """\
            loss.backward()
            print(loss.item() * n)""",
            ),
            CLUE='"messages", len(range(k))',
        ),
    },
    "ps5/rank_zero_only": {
        "reduced to rank 0": changed(
            "ps5/rank_zero_only",
            CLUE='"absent", max(0, k - 1)',
            SEND="dist.reduce(counts, 0)",
            RESULT="(counts[0] / counts[1]).item() if dist.get_rank() == 0 else None",
        ),
        "two sums, and numpy's float32": with_numpy(
            "ps5/rank_zero_only",
            CLUE='"absent", len(range(1, k))',
            SEND="dist.all_reduce(counts[:1]); dist.all_reduce(counts[1:])",
            RESULT="np.float32(counts[0] / counts[1])",
        ),
    },
    "ps5/adam_hides": {
        "gradients divided at the end": with_numpy(
            "ps5/adam_hides",
            DIVIDE="1",
            MORE="* np.float64(2)",
            BEFORE="[p.grad.div_(len(X_shards)) for p in model.parameters()]",
        ),
        "two models side by side": changed("ps5/adam_hides")
        + """
import copy
def clue_10(program):
    first = torch.nn.Linear(2, 3).double()
    X, y, models = torch.rand(6, 2).double(), torch.randint(3, (6,)), []
    for parts in 1, 3:
        models.append(copy.deepcopy(first))
        optimizer = torch.optim.SGD(models[-1].parameters(), 0.5)
        program(models[-1], optimizer, list(X.chunk(parts)), list(y.chunk(parts)))
    one, three = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in models)
    return (one - three).norm().item()
""",
    },
}
