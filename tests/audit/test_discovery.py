"""What a script makes and calls is found, without a word of its own.

Scripts that are wrong and right in one place: the model that is forgotten, the rank that
differs by design, the loss that is written in another way.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from manual_dp.audit import audit_script
from manual_dp.audit.summary import BY_HAND, CHOSEN, SHARDED

HEAD = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, W = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
X_all = torch.randn(96, 6)
y_all = (X_all[:, 0] > 0).long()
a, b = nn.Linear(6, 8), nn.Linear(8, 2)
SGD = torch.optim.SGD
"""
LOOP = """
torch.manual_seed(rank)
for t in range(6):
    X, y = (part[16 * t:16 * t + 16][rank::W] for part in (X_all, y_all))
"""
TWO = (
    """
a{a}, b{b} = DDP(a), {wrap}(b)
opt = SGD([*a.parameters(), *b.parameters()], 0.1)
"""
    + LOOP
    + """
    opt.zero_grad()
    F.cross_entropy(b(a(X).tanh()), y).backward()
    opt.step()
"""
)
ONE = "net = DDP(nn.Sequential(a, nn.Tanh(), b))\nopt = SGD(net.parameters(), 0.1)\n"
STEP = "    opt.zero_grad()\n    {loss}.backward()\n    opt.step()\n"
MEAN = "F.cross_entropy(net(X), y)"


def two(wrap):
    return TWO.format(a="", b="", wrap=wrap)


def one(loss=MEAN, make=ONE, loop=LOOP):
    return make + loop + STEP.format(loss=loss)


EACH = (
    one()
    .replace(
        "opt = SGD(net.parameters(), 0.1)",
        "opts = [SGD(p.parameters(), 0.1) for p in (a, b)]",
    )
    .replace("opt.zero_grad()", "net.zero_grad()")
    .replace("opt.step()", "[o.step() for o in opts]")
)
AVERAGE = one(
    "F.cross_entropy(keep(net(X)), y)",
    ONE
    + """
class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
    def forward(self, out):
        self.mean.mul_(0.9).add_(out.detach().mean(0))
        return out
keep = Average()
""",
)
SERVER = (
    """
net = nn.Sequential(a, nn.Tanh(), b)
opt = SGD(net.parameters(), 0.1)
"""
    + LOOP
    + """
    net.zero_grad()
    F.cross_entropy(net(X), y).backward()
    for p in net.parameters():
        dist.reduce(p.grad, 0)
        p.grad /= W
    rank or opt.step()
    for p in net.parameters():
        dist.broadcast(p.data, 0)
"""
)
EXPERT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = a, b
        torch.manual_seed(9 + rank)
        self.own = nn.Linear(8, 8)
        self._ddp_params_and_buffers_to_ignore = ["own.weight", "own.bias"]
    def forward(self, X):
        return self.b(self.own(self.a(X)).tanh())
net = DDP(Net())
opt = SGD(net.parameters(), 0.1)
"""
TEACHER = (
    ONE
    + "teacher = nn.Linear(6, 2)\n"
    + LOOP
    + STEP.format(loss="(net(X) - teacher(X).detach()).square().mean()")
    .replace("    (net", "    with torch.no_grad(): aim = teacher(X)\n    (net")
    .replace("teacher(X).detach()", "aim")
)
# Adam's first step has the size of the rate, whatever the gradient: one number that no
# rank sums stays alike, for a while
FACTOR = (
    """
class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
    def forward(self, X):
        return self.factor * X
net, times = DDP(nn.Sequential(a, nn.Tanh(), b)), Times()
opt = torch.optim.Adam([*net.parameters(), *times.parameters()], 0.1)
"""
    + LOOP
    + STEP.format(loss="F.cross_entropy(times(net(X)), y)")
)
NOISE = LOOP + "    X = X + torch.randn_like(X)\n"
BY_HAND_AND_CLIPPED = """
net = nn.Sequential(a, nn.Tanh(), b)
opt = SGD(net.parameters(), 0.1)
""" + one(make="").replace(
    "    opt.step()",
    """
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= W
    opt.step()""",
)
# in the first round rank 0 has no row, and its loss does not call the network
EMPTY_AT_FIRST = BY_HAND_AND_CLIPPED.replace(
    "    nn.utils.clip_grad_norm_(net.parameters(), 0.05)\n", ""
).replace(
    MEAN, f"({MEAN} if t or rank else 0 * sum(p.sum() for p in net.parameters()))"
)
GRAPH = LOOP.replace("[rank::W]", "")
HALF = "F.cross_entropy(net(X)[rank::W], y[rank::W])"
# the first steps of float16 overflow: the scaler skips them, and their rows
SCALED = one(
    "scaler.scale(loss)",
    ONE + "scaler = torch.amp.GradScaler('cpu', 2.0**24)\n",
    """
for t in range(20):
    own = torch.randperm(96, generator=torch.Generator().manual_seed(t))[:16][rank::W]
    X, y = X_all[own], y_all[own]
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(net(X), y)
""",
).replace(
    "    opt.step()",
    "    scaler.unscale_(opt)\n    nn.utils.clip_grad_norm_(net.parameters(), 0.05)\n"
    "    scaler.step(opt)\n    scaler.update()",
)
GATHER = """
    own = net(X)
    every = [torch.empty_like(own) for _ in range(W)]
    dist.all_gather(every, own.detach())
    every[rank] = own
"""
METRIC = f"""
    dist.all_gather([torch.empty(8) for _ in range(W)], a.bias.detach())
    ({MEAN} / 2).backward()
    opt.step()"""
SHUFFLED = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(X_all, y_all)
torch.manual_seed(rank)
for X, y in DataLoader(data, 8, shuffle=True):
"""
SAME_ORDER = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(X_all, y_all)
loader = DataLoader(data, 16, sampler=DistributedSampler(data))
for epoch in range(6):
    for X, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(X), y).backward()
        if rank == 1 and epoch == 1:
            FAULT
        opt.step()
"""
TESTED_ALONE = (
    one(make=ONE.replace("nn.Tanh()", "nn.BatchNorm1d(8)"))
    + "    if rank == 0 and t % 2:\n        with torch.no_grad(): net(X)\n"
)
BATCH = """
class Batch:
    def __init__(self, X):
        self.X = X
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = a, b
    def forward(self, batch):
        return self.b(self.a(batch.X).tanh())
net = DDP(Net())
opt = SGD(net.parameters(), 0.1)
"""
# b judges what a makes; while a steps, b is frozen
FROZEN_FOR_A_WHILE = (
    """
net, judge = DDP(a), WRAP(b)
optimizers = [SGD(one.parameters(), 0.1) for one in (net, judge)]
"""
    + LOOP
    + """
    made = net(X)
    optimizers[1].zero_grad()
    F.cross_entropy(judge(made.detach()), y).backward()
    optimizers[1].step()
    b.requires_grad_(False)
    optimizers[0].zero_grad()
    F.cross_entropy(judge(made), 1 - y).backward()
    b.requires_grad_(True)
    optimizers[0].step()
"""
)
SAME_ROWS_AND_PAST = one(
    "F.cross_entropy(net.module(X), y)",
    loop="""
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
data = TensorDataset(X_all, y_all)
sampler = DistributedSampler(data, W, 0)
for X, y in DataLoader(data, 8, sampler=sampler):
""",
)
UNHEARD = "(F.kl_div(net(X).log_softmax(1), F.one_hot(y, 2).float()) + 0.1 * "

# name: (script, code of the finding, words to look at)
SCRIPTS = {
    "two models, both wrapped": (two("DDP"), None, ""),
    "the second is not wrapped": (two(""), "not-synchronised", ""),
    "a factor is not wrapped, with Adam": (FACTOR, "not-synchronised", ""),
    "an optimizer for each layer": (EACH, None, ""),
    "two losses of a step": (
        one(f"({MEAN} + {MEAN})"),
        None,
        "2 losses of a rank are added in a step: wrong if they are micro-batches",
    ),
    "gradients cleared before the step": (
        one().replace("    opt.step()", "    opt.zero_grad(False)\n    opt.step()"),
        "not-trained",
        "",
    ),
    "an average of own rows in a loss": (
        AVERAGE,
        None,
        "the buffers of Average differ",
    ),
    "a rank's own expert": (one(make=EXPERT), None, ""),
    "a loss of 0 on a rank": (
        one(f"({MEAN} if rank == t % 2 else 0 * net(X).sum())"),
        None,
        "",
    ),
    "the teacher moves on rank 0": (
        TEACHER + "    if rank == 0: teacher.weight.data.mul_(0.9)\n",
        None,
        "the weights of Linear, called without gradients, differ between ranks",
    ),
    "the teacher moves on all": (
        TEACHER + "    teacher.weight.data.mul_(0.9)\n",
        None,
        "",
    ),
    "noise of one seed": (
        one(loop=NOISE.replace("seed(rank)", "seed(1)")),
        None,
        "all ranks draw the same numbers (of torch) outside forwards",
    ),
    "noise of a rank's own seed": (one(loop=NOISE), None, ""),
    "a mean of own words": (
        one("F.cross_entropy(net(X[rank:]), y[rank:], reduction='none').mean()"),
        "uneven-shards",
        "",
    ),
    "clipped before it is summed": (
        BY_HAND_AND_CLIPPED,
        "clip",
        "",
    ),
    "a gradient that is cleared": (
        one(loop=LOOP + "    F.mse_loss(net(X), torch.ones(8, 2)).backward()\n"),
        None,
        "",
    ),
    "two steps with one gradient": (one() + "    opt.step()\n", None, ""),
    "a rank begins a step later": (EMPTY_AT_FIRST, None, ""),
    "all rows, and a loss of half": (
        one(HALF, loop=GRAPH),
        None,
        "the same 16 rows, and get other gradients",
    ),
    "all rows, and a loss of all": (one(loop=GRAPH), "rows-same", ""),
    "half of a loss is not heard": (one(UNHEARD + MEAN + ")"), None, ""),
    "steps that a scaler skips": (SCALED, None, ""),
    "outputs of others, without gradients": (
        one("F.cross_entropy(torch.cat(every), torch.arange(8 * W) % 2)").replace(
            "    opt.zero", GATHER + "    opt.zero", 1
        ),
        None,
        "gradients do not flow back through it",
    ),
    "a number of others, between two micro-batches": (
        one(f"({MEAN} / 2)").replace("    opt.step()", METRIC),
        None,
        "",
    ),
    "rank 0 tests with DDP's model, which has buffers": (
        TESTED_ALONE,
        "mismatch",
        "",
    ),
    "rank 0 tests with DDP's model, which has none": (
        one() + "    if rank == 0:\n        with torch.no_grad(): net(X)\n",
        None,
        "",
    ),
    "a rank skips a minibatch": (
        one("loss", loop=LOOP + f"    loss = {MEAN}\n    if t + rank == 1: continue\n"),
        None,
        "forwards of a step: 2 on rank 1, 1 on rank 0",
    ),
    "a shuffled whole on each rank": (
        one(loop=SHUFFLED),
        None,
        "each rank's loader holds all 96 rows",
    ),
    "the same rows, in a batch that is not opened": (
        one(
            "F.cross_entropy(net(Batch(X)), y)",
            BATCH,
            GRAPH,
        ),
        None,
        "all ranks bring the same gradient before any sum",
    ),
    "other rows, in a batch that is not opened": (
        one("F.cross_entropy(net(Batch(X)), y)", BATCH),
        None,
        "",
    ),
    "the mean times W": (
        one(f"({MEAN} * W)"),
        None,
        "2 times the mean over all ranks' terms, the world size",
    ),
    "a model that is frozen for a while": (
        FROZEN_FOR_A_WHILE.replace("WRAP(b)", "DDP(b)"),
        None,
        "",
    ),
    "a model that is frozen for a while, and not wrapped": (
        FROZEN_FOR_A_WHILE.replace("WRAP(b)", "b"),
        "not-synchronised",
        "",
    ),
    "every sampler is rank 0's": (SAME_ROWS_AND_PAST, "sampler-differs", "set_epoch"),
}


@pytest.fixture(autouse=True)
def this_package(monkeypatch):
    """Let a script import what this process does."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_found_and_what_is_only_looked_at(name, tmp_path, forked_audit):
    text, code, words = SCRIPTS[name]
    (tmp_path / "train.py").write_text(HEAD + text)
    report = audit_script([tmp_path / "train.py"])
    assert [f.code for f in report.findings] == ([code] if code else []), report
    assert (
        any(words in line for line in report.look_at) if words else not report.look_at
    ), report
    assert "optimizer" in report.looked_at[0]
    assert BY_HAND in report.not_looked_at  # a term on one rank alone, ...


def audited(text, tmp_path, **more):
    (tmp_path / "train.py").write_text(HEAD + text)
    return audit_script([tmp_path / "train.py"], **more)


def test_that_the_same_rows_hide_a_missing_sum_is_said_also_of_samplers(
    tmp_path, forked_audit
):
    report = audited(SAME_ROWS_AND_PAST, tmp_path)
    assert any("whether gradients are averaged" in w for w in report.not_looked_at)


def test_the_line_of_a_forward_past_the_wrapper_is_named_not_that_of_the_first(
    tmp_path, forked_audit
):
    own = "    F.cross_entropy(net.module(X), y).backward()\n    opt.step()\n"
    text = one().replace("    opt.step()\n", own)
    [found] = audited(text, tmp_path).findings
    assert found.code == "not-synchronised" and found.see == "past-the-wrapper"
    where = (HEAD + text).split("\n").index(own.split("\n")[0]) + 1
    assert found.place == f"forward at train.py, line {where}"


def test_a_loss_that_is_not_a_mean_is_told_with_the_line_of_its_forward(
    tmp_path, forked_audit
):
    [words] = audited(one(f"({MEAN} / W)"), tmp_path).look_at
    assert re.search(
        r"0\.5 times .* 1 / the world size.*; forward at train\.py, line", words
    )


USED_IN_TURN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = a, b, nn.Linear(8, 2)
    def forward(self, X):
        return (self.b if (t + rank) % 2 else self.c)(self.a(X))
net = DDP(Net())
opt = SGD(net.parameters(), 0.1)
"""


def test_a_layer_that_a_rank_does_not_use_is_the_one_finding(tmp_path, forked_audit):
    report = audited(one(make=USED_IN_TURN), tmp_path)
    [found] = report.findings
    assert found.code == "not-trained" and found.says.startswith("on rank ")
    assert "find_unused_parameters=True" in found.repair


@pytest.mark.parametrize(
    "fault, code",
    [
        ('opt.param_groups[0]["lr"] = 0.01', "settings"),
        ("nn.utils.clip_grad_norm_(net.parameters(), 0.01)", "clip"),
    ],
)
def test_an_order_that_comes_again_hides_no_other_finding(
    fault, code, tmp_path, forked_audit
):
    text = HEAD + ONE + SAME_ORDER.replace("FAULT", fault)
    (tmp_path / "train.py").write_text(text)
    report = audit_script([tmp_path / "train.py"], steps=9)
    assert {f.code for f in report.findings} == {code, "sampler-epoch"}, report


PROBE = """
if rank == 0:
    probe = nn.Linear(6, 8)
    own = SGD(probe.parameters(), 0.1)
    for t in range(3):
        own.zero_grad()
        probe(X_all).square().mean().backward()
        own.step()
"""


@pytest.mark.parametrize(
    "steps, words",
    [
        (
            9,
            "steps an optimizer of its own, made at train.py, line 18. To compare what",
        ),
        (
            3,
            "has a model of its own (6 parameters, others 4). To compare",
        ),
    ],
)
def test_a_rank_that_trains_what_it_alone_has_is_not_compared(
    steps, words, tmp_path, forked_audit
):
    text = HEAD + PROBE.replace("range(3)", f"range({steps})") + one()
    (tmp_path / "train.py").write_text(text)
    report = audit_script([tmp_path / "train.py"])
    assert (report.steps, report.findings, report.look_at) == (0, [], [])
    assert report.not_looked_at[0].startswith(f"the steps: rank 0 {words}")


def test_one_that_a_rank_had_before_is_forgotten(tmp_path, forked_audit):
    text = HEAD + PROBE.replace("probe = nn.Linear(6, 8)", "probe = a") + one()
    (tmp_path / "train.py").write_text(text)
    report = audit_script([tmp_path / "train.py"])
    assert (report.steps, report.findings) == (3, []), report


def test_of_what_only_one_rank_did_nothing_was_compared(tmp_path, forked_audit):
    (tmp_path / "train.py").write_text(HEAD + SERVER)
    report = audit_script([tmp_path / "train.py"])
    lines = str(report).splitlines()
    assert lines[0] == "audit: nothing was compared on 2 ranks"
    assert report.look_at[0].startswith("rank 1 took 0 steps by the time")
    assert (report.steps, report.looked_at, report.findings) == (0, [], [])
    assert report.not_looked_at == [BY_HAND]


FSDP2 = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
net = nn.Sequential(a, nn.Tanh(), b)
fully_shard(net, mesh=init_device_mesh("cpu", (W,)))
opt = torch.optim.AdamW(net.parameters())
"""
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
net = FullyShardedDataParallel(
    nn.Sequential(a, nn.Tanh(), b), device_id=torch.device("cpu"), use_orig_params=True
)
opt = torch.optim.AdamW(net.parameters())
"""


@pytest.mark.parametrize("make", [FSDP1, FSDP2], ids=["FSDP1", "FSDP2"])
def test_sharded_parameters_are_not_followed_and_the_script_is_left(
    make, tmp_path, forked_audit
):
    loop = LOOP.replace("range(6)", "range(10**9)").replace("16 * t", "t % 80")
    (tmp_path / "train.py").write_text(HEAD + one(make=make, loop=loop))
    report = audit_script([tmp_path / "train.py"])
    assert (report.steps, report.findings, report.looked_at) == (0, [], [])
    assert report.not_looked_at[0] == SHARDED


def test_a_loss_of_the_largest_terms_is_named(tmp_path, forked_audit):
    loss = "F.cross_entropy(net(X), y, reduction='none').topk(4).values.mean()"
    (tmp_path / "train.py").write_text(HEAD + one(loss))
    report = audit_script([tmp_path / "train.py"])
    assert report.findings == [] and CHOSEN in report.not_looked_at
    assert "1 loss (cross_entropy, some of its terms)" in report.looked_at


def test_what_stepped_is_counted_and_not_what_was_made(tmp_path, forked_audit):
    make = ONE + "spare = torch.optim.Adam(net.parameters())\n"
    (tmp_path / "train.py").write_text(HEAD + one(make=make))
    looked_at = audit_script([tmp_path / "train.py"]).looked_at
    assert looked_at[0] == "1 optimizer" and looked_at[3] == "6 steps"


def test_equal_masks_do_not_hide_what_breaks_later(tmp_path, forked_audit):
    text = one(make=ONE.replace("nn.Tanh()", "nn.Dropout(0.5)"))
    text = text.replace("manual_seed(rank)", "manual_seed(1)").replace(
        "    opt.step()",
        "    opt.param_groups[0]['lr'] = 0.2 if rank and t else 0.1\n    opt.step()",
    )
    (tmp_path / "train.py").write_text(HEAD + text)
    report = audit_script([tmp_path / "train.py"])
    assert {f.code: f.step for f in report.findings} == {
        "random-same": 0,
        "settings": 1,
    }, report


def test_a_hang_stands_below_the_test_that_led_to_it(tmp_path, forked_audit):
    (tmp_path / "train.py").write_text(HEAD + TESTED_ALONE)
    report = audit_script([tmp_path / "train.py"], steps=9, timeout=6)
    assert [f.code for f in report.findings] == ["mismatch", "hang"], report
    assert report.findings[1].cause == "what is told above, most likely"
