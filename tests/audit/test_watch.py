"""Whatever `watch` meets in a script, the training goes on, and nobody is accused.

The scripts take more than 3 s: only whole ones show what a hook does to a training.
"""

import contextlib
import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import watch
from manual_dp.ranks import RankError, run_ranks
from tests.audit.scripts import edited, unchecked, watched

ADAM = "torch.optim.AdamW(model.parameters(), 0.01)"
NO_SCHEDULE = [
    (
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: "
        "1 / (1 + t))\n",
        "",
    ),
    ("            scheduler.step()\n", ""),
]
OWN_OPTIMIZER = """class Own(torch.optim.Optimizer):
    def __init__(self, params, **defaults):
        super().__init__(params, defaults)
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= 0.01 * p.grad

class Net("""
OWN_SAMPLER = """class Own(DistributedSampler):
    def __init__(self, data):
        self.epoch, self.count = 0, len(data)
    def __len__(self):
        return self.count // world_size
    def __iter__(self):
        return iter(range(rank, self.count, world_size))

class Net("""
OWN_BATCHES = """class Own(torch.utils.data.BatchSampler):
    def __init__(self, data):
        self.batch_size, self.drop_last, self.count = 4, False, len(data)
    def __len__(self):
        return self.count // 8
    def __iter__(self):
        return (range(i + 4 * rank, i + 4 * rank + 4) for i in range(0, self.count, 8))

class Net("""
REFUSING = """class Own(TensorDataset):
    def __getitem__(self, i):
        if torch.initial_seed() == 0:  # nobody but the audit sets this one here
            raise OSError("the disk is gone")
        return super().__getitem__(i)

class Net("""
FSDP = (
    "model = DDP(net)",
    "from torch.distributed import fsdp\n"
    "model = fsdp.FullyShardedDataParallel(nn.Sequential(net), "
    "device_id=torch.device('cpu'), use_orig_params=True)",
)
ALL = ("if last else model.no_sync()", "if True else model.no_sync()")
NO_CLIP = ("            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "")

MASTER = """flat = nn.utils.parameters_to_vector(net.parameters()).detach()
flat = F.pad(flat, (0, -len(flat) % world_size))
master = nn.Parameter(flat.chunk(world_size)[rank].clone())
optimizer = """
COPIED = """            grads = torch.cat([p.grad.flatten() for p in net.parameters()])
            grads = F.pad(grads, (0, len(flat) - len(grads)))
            master.grad = grads.chunk(world_size)[rank].clone()
            optimizer.step()
            parts = [torch.empty_like(part) for part in flat.chunk(world_size)]
            dist.all_gather(parts, master.detach())
            nn.utils.vector_to_parameters(torch.cat(parts), net.parameters())
"""
AVERAGED = """            optimizer.step()
            if True:
                for p in net.parameters():
                    dist.all_reduce(p.data)
                    p.data /= world_size
"""
AVERAGES = ["weights averaged in each step", "weights averaged in each second step"]

# what hurt people: the training died of a hook (research of bugs: `hooks_that_raise`)
ODD = {
    "an optimizer whose lr is None": [
        ("class Net(", OWN_OPTIMIZER),
        (ADAM, "Own(model.parameters(), lr=None)"),
        *NO_SCHEDULE,
    ],
    "an optimizer without lr": [
        ("class Net(", OWN_OPTIMIZER),
        (ADAM, "Own(model.parameters(), rate=1.0)"),
        *NO_SCHEDULE,
    ],
    "a sampler that does not call the base": [
        ("class Net(", OWN_SAMPLER),
        ("= DistributedSampler(data)", "= Own(data)"),
    ],
    "a batch sampler without a sampler": [
        ("class Net(", OWN_BATCHES),
        (
            "DataLoader(data, 4, sampler=sampler)",
            "DataLoader(data, batch_sampler=Own(data))",
        ),
    ],
    "a scripted layer": [
        ("net = Net()", "net = Net()\nnet.hidden = torch.jit.script(net.hidden)")
    ],
    "a scripted network": [
        (
            "net = Net()",
            "net = torch.jit.script(nn.Sequential("
            "nn.Embedding(12, 8), nn.Linear(8, 12)))",
        )
    ],
    "parameters that FSDP1 shares out": [FSDP, ALL, NO_CLIP],
    "a dataset that refuses at the end": [
        ("class Net(", REFUSING),
        ("sampler = Dist", "data = Own(words[:, :-1], words[:, 1:])\nsampler = Dist"),
    ],
    "LBFGS, with a rank's own loss": [
        (ADAM, "torch.optim.LBFGS(model.parameters(), 0.1, max_iter=1)"),
        ALL,
        NO_CLIP,
        *NO_SCHEDULE,
        (
            "            optimizer.step()\n",
            "            optimizer.step("
            "lambda: (optimizer.zero_grad(), F.cross_entropy(model(X)."
            "transpose(1, 2), y).backward(), torch.ones(()))[2])\n",
        ),
    ],
    "no optimizer of torch's": [
        (
            ADAM,
            "type('Own', (), dict(step=lambda o: [p.data.sub_(p.grad) for p in "
            "model.parameters()], zero_grad=lambda o: model.zero_grad()))()",
        ),
        *NO_SCHEDULE,
    ],
    "loss functions bound before": [
        ("            loss = F.cross_entropy(", "            loss = bound("),
        (
            "rank, world_size =",
            "bound = lambda a, b: torch.logsumexp(a, 1).mean() - "
            "a.gather(1, b[:, None]).mean()\nrank, world_size =",
        ),
    ],
    "a batch that was looked at before": [
        ("for epoch in", "next(iter(loader))\nfor epoch in")
    ],
    "rows that are all alike": [
        ("data = Tensor", "words = words[:1].repeat(96, 1)\ndata = Tensor")
    ],
    "masters of a part of the weights": [
        (ADAM, "torch.optim.AdamW([master], 0.01)"),
        ALL,
        NO_CLIP,
        ("optimizer = ", MASTER),
        ("            optimizer.step()\n", COPIED),
    ],
    "weights averaged in each step": [
        ("model = DDP(net)", "model = net"),
        ALL,
        ("            optimizer.step()\n", AVERAGED),
    ],
    "weights averaged in each second step": [
        ("model = DDP(net)", "model = net"),
        ALL,
        ("            optimizer.step()\n", AVERAGED.replace("if True", "if i % 4 > 1")),
    ],
}
NOT_CHECKED = {*ODD} - {
    "an optimizer whose lr is None",
    "an optimizer without lr",
    "a sampler that does not call the base",
    "a batch sampler without a sampler",
    "a dataset that refuses at the end",
    "a scripted layer",
    "a batch that was looked at before",
    "rows that are all alike",
    *AVERAGES,
}


@pytest.fixture(scope="module")
def said():
    return dict(zip(ODD, watched([edited(*edits) for edits in ODD.values()])))


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_trained_to_its_end_and_not_accused(said, name):
    findings, unchecked, *_ = said[name]
    assert findings == [], said[name][-1]
    assert name not in NOT_CHECKED or unchecked, said[name][-1]


@pytest.mark.parametrize("name", AVERAGES)
def test_local_sgd_is_named_and_not_checked(said, name):
    assert "local SGD" in str(said[name][1])
    assert said[name][-1].startswith("audit: nothing was compared")


def test_fsdp_is_named(said):
    assert "FSDP" in str(said["parameters that FSDP1 shares out"][1])


# the ends of a watch


def small():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(3, 2))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained(model, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(4, 3, generator=generator)).square().mean().backward()
        optimizer.step()


def test_an_update_counts_from_the_step_of_its_optimizer_on():
    def rank():
        model, optimizer = small()
        heard = watch(model, optimizer, steps=9)
        trained(model, optimizer, 2)
        return heard.updates()

    assert run_ranks(rank, 2) == [2, 2]


def said_by(function, *args):
    """Return what rank 0 printed and its report's findings and unchecked."""

    def rank():
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            report = function(*args)
        return out.getvalue(), report and (
            [f.code for f in report.findings],
            unchecked(report),
            report.steps,
        )

    return run_ranks(rank, 2)


def as_block(steps):
    with watch(*small()) as seen:
        trained(*(seen.recorder.models[0], seen.recorder.optimizers[0]), steps)
    return seen.report


def test_the_report_comes_after_three_steps_and_once():
    (text, report), (other, none) = said_by(as_block, 6)
    assert text.count("audit: ") == 1 and report[2] == 3
    assert other == "" and none is None


def test_a_script_that_ends_early_says_so():
    _, (_, unchecked, steps) = said_by(as_block, 2)[0]
    assert steps == 2 and "1 of 3 steps: the run ended after 2" in unchecked


def seeded_late():
    torch.manual_seed(0)
    model, optimizer = small()
    with watch(model, optimizer) as seen:
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.rand(4, 3)).square().mean().backward()
            optimizer.step()
    return seen.report


def test_a_rank_that_seeds_itself_after_watch_draws_numbers_of_its_own():
    findings, unchecked, _ = said_by(seeded_late)[0][1]
    assert findings == [] and "the same numbers" not in str(unchecked)


def twice():
    first = watch(*small())
    with watch(*small()) as second:
        trained(*(second.recorder.models[0], second.recorder.optimizers[0]), 3)
    return first.report or second.report


def test_a_watch_that_another_ends_early_says_so():
    (text, report), (other, _) = said_by(twice)
    assert "watch: ended after 0 steps of 3 by another watch" in text
    assert other == "" and report[2] == 3


def two_by_turns():
    first, second = small(), small()
    with watch(*first, *second, steps=5) as seen:
        for _ in range(4):
            for pair in first, second:
                trained(*pair, 1)
    return seen.report


def test_of_two_optimizers_the_steps_of_each_count():
    _, (_, unchecked, steps) = said_by(two_by_turns)[0]
    assert steps == 8 and "1 of 5 steps: the run ended after 4" in unchecked


def copying():
    model, optimizer = small()
    file = io.BytesIO()
    with watch(model, optimizer) as seen:
        average = copy.deepcopy(model.module)
        torch.save(model.module, file)
        for _ in range(4):
            trained(model, optimizer, 1)
            average(torch.ones(4, 3)).sum().backward()
    file.seek(0)
    assert torch.load(file, weights_only=False)(torch.rand(4, 3)).shape == (4, 2)
    return seen.report


def test_a_copy_of_the_model_and_its_file_hear_nothing():
    findings, unchecked, steps = said_by(copying)[0][1]
    assert (findings, steps) == ([], 3) and "the audit met" not in str(unchecked)


def alone():
    model, optimizer = small()
    if dist.get_rank() == 0:
        with watch(model, optimizer, timeout=1) as seen:
            trained(model, optimizer, 3)
        return seen.report
    trained(model, optimizer, 3)


def test_a_watch_on_one_rank_alone_gives_up_and_the_training_goes_on():
    text, report = said_by(alone)[0]
    assert report is None
    assert "not checked: watch: nothing came from rank 1 within 1 s" in text


def raising():
    with watch(*small()):
        raise KeyError("of the script")


def test_an_error_of_the_script_stays_its_own():
    with pytest.raises(RankError, match="KeyError: 'of the script'"):
        run_ranks(raising, 2)


@pytest.mark.parametrize(
    "made, words",
    [
        (3, "needs a module"),
        (nn.Linear(1, 1), "no process group"),
    ],
)
def test_watch_refuses_what_it_cannot_watch(made, words):
    with pytest.raises((TypeError, RuntimeError), match=words):
        watch(made)
