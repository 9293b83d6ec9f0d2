"""Right programs have no finding; each broken one, an edit of them, has its own.

The groups of ranks take more than 3 s: only here do whole programs meet all rules.
"""

import pytest

from tests.audit.programs import HAND, ON_DDP, WORDS, audited, edited

GRADS = "        p.grad /= len(X)\n"
SUM = "        dist.all_reduce(p.grad)\n"
CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"
LOOP = f"    for p in model.parameters():\n{SUM}{GRADS}"
STEP = "    optimizer.step()\n"
SHARD = "X[rank::world_size], y[rank::world_size]"
CHUNKS = "X.chunk(world_size)[rank], y.chunk(world_size)[rank]"
LOSS = "loss = F.cross_entropy(model(part), targets.chunk(2)[m]) / 2"
CLEAR = "    optimizer.zero_grad()\n"


def around(line, before="", after=""):
    """Return the edit that puts text before and after a line."""
    return line, before + line + after


# name: (base, edits, the one finding's code, words in it)
BROKEN = {
    # set-up and weights before
    "weights drawn by rank": (
        HAND,
        [("manual_seed(0)", "manual_seed(rank)")],
        "start-differs",
        "is ",
    ),
    "a buffer drawn by rank": (
        HAND,
        [
            around(
                "    model = net()\n",
                after="    model.register_buffer('scale', torch.rand(3) + rank)\n",
            )
        ],
        "start-differs",
        "the buffer scale",
    ),
    "other weights on rank 1 later": (
        HAND,
        [around(STEP, after="    if rank == 1:\n        model[0].bias.data += 1e-9\n")],
        "replicas-differ",
        "0.bias",
    ),
    "lr times the world size": (
        ON_DDP,
        [("0.01)", "0.01 * world_size)")],
        "settings",
        "the rows are the same",
    ),
    "momentum for the world size": (
        HAND,
        [("=0.9", "=1 - 0.1 / world_size")],
        "settings",
        "momentum of group 0",
    ),
    "NaN": (
        HAND,
        [around(STEP, after="    model[0].bias.data[0] = float('nan')\n")],
        "not-finite",
        "0.bias",
    ),
    # rows
    "all rows on all ranks": (ON_DDP, [(CHUNKS, "X, y")], "rows-same", "same 12 rows"),
    "an edge too far": (
        HAND,
        [(SHARD, "X[6 * rank:6 * rank + 7], y[6 * rank:6 * rank + 7]")],
        "rows-overlap",
        "1 row on several ranks",
    ),
    "minibatches drawn by rank": (
        HAND,
        [("manual_seed(t)", "manual_seed(t + 9 * rank)")],
        "sampler-differs",
        "make_batch",
    ),
    # gradients
    "no sum": (HAND, [(LOOP, "")], "not-synchronised", "ranks 0 and 1"),
    "a layer left out of the sum": (
        HAND,
        [
            (
                "in model.parameters():\n        dist",
                "in model[2:].parameters():\n        dist",
            )
        ],
        "not-synchronised",
        "0.weight",
    ),
    "the sum stays on rank 0": (
        HAND,
        [
            around(
                SUM,
                "        own = p.grad.clone()\n",
                "        p.grad = own if rank else p.grad\n",
            ),
            (CLIP, ""),
        ],
        "not-synchronised",
        "rank 1 applied the gradient of its own rows",
    ),
    "rank 0's gradient for all": (
        HAND,
        [(SUM, "        dist.broadcast(p.grad, 0)\n")],
        "not-synchronised",
        "no rank applies",
    ),
    "module called": (
        ON_DDP,
        [("model(part)", "model.module(part)")],
        "not-synchronised",
        "rows alone",
    ),
    "first micro-batch summed": (
        ON_DDP,
        [("m == 1", "m == 0")],
        "not-synchronised",
        "micro-batch 2 of 2",
    ),
    "not divided": (
        HAND,
        [(GRADS, "        p.grad /= len(X_mine)\n"), (CLIP, "")],
        "sum",
        "the world size",
    ),
    "divided twice": (
        HAND,
        [(GRADS, "        p.grad /= len(X) * world_size\n"), (CLIP, "")],
        "averaged-twice",
        "inverted",
    ),
    "sum under DDP": (
        ON_DDP,
        [
            around(
                STEP, "    for p in model.parameters():\n        p.grad *= world_size\n"
            )
        ],
        "sum",
        "2 times",
    ),
    "a constant": (
        HAND,
        [(GRADS, "        p.grad /= 9 * world_size ** 2\n"), (CLIP, "")],
        "gradient",
        "0.25 times a single device's",
    ),
    "mean of words": (
        WORDS,
        [("(loss * world_size / count)", "(loss / (aims != -100).sum())")],
        "uneven-shards",
        "count alike",
    ),
    "the first micro-batch counts more": (
        ON_DDP,
        [(LOSS, LOSS.replace("/ 2", "/ (m + 2)"))],
        "gradient",
        "the same mixture",
    ),
    "a normaliser of own rows": (
        HAND,
        [("model(X_mine)", "model(X_mine - X_mine.mean(0))")],
        "gradient",
        "one device's gradient is no mixture",
    ),
    "labels of other rows": (
        HAND,
        [(", y[rank::", ", y[(rank + 1) % world_size::")],
        "gradient",
        "one device's gradient is no mixture",
    ),
    "not cleared": (HAND, [(CLEAR, ""), (CLIP, "")], "stale", "the step before"),
    "clipped before the sum": (
        HAND,
        [(CLIP, ""), (LOOP, CLIP + LOOP)],
        "clip",
        "ranks 0 and 1 clipped their own gradients",
    ),
    "clipped on rank 0": (
        HAND,
        [(CLIP, CLIP.replace("    nn", "    rank or nn"))],
        "clip",
        "nothing",
    ),
    "clipped to another norm": (
        HAND,
        [("0.5)", "0.5 / world_size)")],
        "gradient",
        "but takes another step",
    ),
    "gradient of 0": (
        HAND,
        [("loss.backward()", "(0 * loss).backward()")],
        "not-trained",
        "every gradient is 0",
    ),
    "noise of its own in each gradient": (
        HAND,
        [
            around(GRADS, after="        p.grad += 0.01 * rank * p.grad.sin()\n"),
            (CLIP, ""),
        ],
        "not-synchronised",
        "different gradients of 0.weight",
    ),
    "a gradient of another kind": (
        HAND,
        [
            around(
                GRADS,
                after="        p.grad += 0.01 * p.grad.sin() * (world_size - 1)\n",
            ),
            (CLIP, ""),
        ],
        "gradient",
        "no mixture of theirs",
    ),
    # what is trained
    "no step": (HAND, [(STEP, "")], "not-trained", "no update"),
    "a step on rank 0 alone": (
        HAND,
        [(STEP, "    rank or optimizer.step()\n")],
        "mismatch",
        "rank 1 takes 0 updates",
    ),
    "two steps on rank 0": (
        HAND,
        [(STEP, STEP + "    rank or optimizer.step()\n")],
        "mismatch",
        "rank 1 takes 1 update",
    ),
    "a layer in no optimizer": (
        HAND,
        [("SGD(model.p", "SGD(model[:4].p")],
        "not-trained",
        "no optimizer holds 4.weight",
    ),
}
MADE = "return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)"
MIDDLE, NEXT = "nn.Linear(8, 8), nn.Tanh()", "optimizer, X, y"
BACKWARD = (
    CLEAR
    + """    loss = F.cross_entropy(model(X_mine), y_mine, reduction="sum")
    loss.backward()
"""
    + LOOP
)
CLOSURE = "    def closure():\n" + "".join(
    f"    {line}\n"
    for line in [
        *BACKWARD.splitlines(),
        "    dist.all_reduce(loss.data)",
        "    return loss / len(X)",
    ]
)
# name: (base, edits), and the rows of a minibatch where these are not 12
RIGHT = {
    "by hand": (HAND, []),
    "on DDP": (ON_DDP, []),
    "words": (WORDS, []),
    "by hand, uneven": (HAND, [], 13),
    "words, uneven": (WORDS, [], 7),
    "fewer rows than ranks": (HAND, [], 1),
    "mean of gradients": (
        HAND,
        [
            ('reduction="sum")', 'reduction="sum") * world_size / len(X)'),
            (GRADS, "        p.grad /= world_size\n"),
        ],
    ),
    "float32 inside": (HAND, [("model(X_mine)", "model(X_mine.float())")]),
    "no optimizer": (
        HAND,
        [
            (MADE, "return model"),
            ("model, optimizer, X", "model, X"),
            (CLIP, ""),
            (CLEAR, "    model.zero_grad()\n"),
            (
                STEP,
                "    for p in model.parameters():\n        p.data -= 0.1 * p.grad\n",
            ),
        ],
    ),
    "closure": (
        HAND,
        [(BACKWARD, CLOSURE), (CLIP, ""), (STEP, "    optimizer.step(closure)\n")],
    ),
    "lbfgs": (
        HAND,
        [
            (BACKWARD, CLOSURE),
            (CLIP, ""),
            (STEP, "    optimizer.step(closure)\n"),
            (
                MADE,
                "return model, torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1)",
            ),
        ],
    ),
    "two optimizers": (
        HAND,
        [
            (
                MADE,
                "return (model, torch.optim.SGD(model[0].parameters(), 0.1),"
                " torch.optim.Adam(model[2:].parameters(), 0.1))",
            ),
            (NEXT, "optimizer, other, X, y"),
            (CLIP, ""),
            (CLEAR, CLEAR + "    other.zero_grad()\n"),
            (STEP, STEP + "    other.step()\n"),
        ],
    ),
    "batch norm": (ON_DDP, [(MIDDLE, "nn.BatchNorm1d(8), nn.Tanh()")]),
    "dropout of own masks": (
        HAND,
        [
            (MIDDLE, "nn.Dropout(0.5), nn.Tanh()"),
            ("    X_mine,", "    torch.manual_seed(7 + rank)\n    X_mine,"),
        ],
    ),
    "noise of own rows": (
        HAND,
        [
            (
                "model(X_mine)",
                "model(X_mine + torch.rand(len(X_mine), 5, "
                "generator=torch.Generator().manual_seed(rank)))",
            )
        ],
    ),
    "clipped by value": (
        HAND,
        [("clip_grad_norm_", "clip_grad_value_"), ("0.5)", "0.001)")],
    ),
    "scaled loss": (
        ON_DDP,
        [
            ("loss.backward()", "(1024 * loss).backward()"),
            around(STEP, "    [p.grad.div_(1024) for p in model.parameters()]\n"),
        ],
    ),
    "a number over all rows": (HAND, [("model(X_mine)", "model(X_mine - X.mean(0))")]),
    "frozen layer": (
        HAND,
        [
            ("model = net()", "model = net()\n    model[0].requires_grad_(False)"),
            ("for p in model.parameters()", "for p in model[2:].parameters()"),
        ],
    ),
    "a gradient of 0, as on one device": (
        HAND,
        [  # the last bias cancels
            (
                'F.cross_entropy(model(X_mine), y_mine, reduction="sum")',
                "F.softplus(model(X_mine) - model(X_mine.flip(1))).sum()",
            )
        ],
    ),
    "dicts": (
        HAND,
        [
            (
                "return X, torch.randint(3, (ROWS,), generator=g)",
                "return {'x': X, 'y': torch.randint(3, (ROWS,), generator=g)}",
            ),
            (NEXT + "):", "optimizer, batch):\n    X, y = batch['x'], batch['y']"),
        ],
    ),
}
# one device makes these mistakes, too: only a reference shows them
BOTH = {
    "labels moved by one": (HAND, [("y[rank::", "y.roll(1)[rank::")], "gradient"),
    "micro-batches not divided": (
        ON_DDP,
        [(LOSS, LOSS.removesuffix(" / 2")), ("Adam(", "SGD(")],
        "sum",
    ),
}


@pytest.fixture(scope="module")
def broken():
    return dict(
        zip(
            BROKEN,
            audited([edited(base, *edits) for base, edits, *_ in BROKEN.values()]),
        )
    )


@pytest.fixture(scope="module", params=[2, 3])
def right(request):
    sources = [
        edited(base, *edits, rows=(*rows, 12)[0])
        for base, edits, *rows in RIGHT.values()
    ]
    return dict(zip(RIGHT, audited(sources, request.param)))


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_program_has_one_finding(broken, name):
    _, _, code, words = BROKEN[name]
    findings, *_ = broken[name]
    assert [f.code for f in findings] == [code], findings
    assert words in findings[0].says


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_has_none(right, name):
    findings, *_ = right[name]
    assert findings == []


def test_what_one_device_does_wrong_too_is_seen_beside_a_reference():
    sources = [edited(base, *edits) for base, edits, _ in BOTH.values()]
    references = [edited(base, *edits[1:]) for base, edits, _ in BOTH.values()]
    assert all(found == [] for found, *_ in audited(sources))
    beside = audited(sources, reference=references)
    codes = [code for *_, code in BOTH.values()]
    assert [found[0].code for found, *_ in beside] == codes
