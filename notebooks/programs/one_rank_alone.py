"""What lesson 12 shows beside its programs: how a run ended, who met whom, who hung.

told        call a program on ranks; print what it returns, or how it ended
TwoLayers   a network that may leave out its second layer
places      where each rank is when the time is up, as py-spy would say
calls       what torch's flight recorder has noted on this rank
compare     what it has noted on two ranks, side by side
draw        a picture: the messages of two ranks, matched by their order
mistakes    calls that do not fit together, with and without DETAIL
mended      the lesson's `alone`, with a cure for each mistake

python programs/one_rank_alone.py     what a rank does alone, with its cures
"""

import io
import pickle
import re
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from itertools import zip_longest
from textwrap import wrap

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from course.lab.figures import plot
from manual_dp.ranks import RankError, run_ranks


def run(program, n, *args, timeout=60):
    """Call program(*args) on n ranks; return what they said, their results, the error.

    Of lines such as "step 3", the last one of each rank is kept.
    """
    results, error, printed = None, None, io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        try:
            results = run_ranks(program, n, *args, timeout=timeout)
        except RankError as raised:
            error = raised
    lines = printed.getvalue().splitlines()
    steps = dict(
        re.findall(r"(rank \d+): (step \d+)$", "\n".join(lines), re.M)
    )
    said = [line for line in lines if not re.search(r": step \d+$", line)]
    if steps:
        begun = (f"{rank} began {step}" for rank, step in steps.items())
        said.append(", ".join(begun))
    return said, results, error


def how(error):
    """Say how the ranks ended, in a sentence or two, without the advice that follows."""
    text = " ".join(str(error).split())
    if error.kind == "killed":  # which rank it is, is chance
        why = re.search(r"Received data size .*?code\?", error.details)
        return "gloo ended a rank" + (f": {why[0]}" if why else "")
    if "was waiting: " in text:
        return "all wait: " + text.partition("was waiting: ")[2]
    return text.partition(". ")[0]


def told(label, program, *args, n=2, timeout=60):
    """Call program(*args) on n ranks; print what they said, returned or raised."""
    said, results, error = run(program, n, *args, timeout=timeout)
    print(label)
    end = how(error) if error else ", ".join(map(str, results))
    for line in [*said, end]:
        print(*(f"    {part}" for part in wrap(line, 74)), sep="\n")


class TwoLayers(nn.Module):
    """Add up two layers of one weight; leave out b if `use_b` is False."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 1, bias=False)
        self.b = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.a.weight)
        nn.init.zeros_(self.b.weight)

    def forward(self, X, use_b=True):
        """Return the answer; without b, its weight gets no gradient."""
        return self.a(X) + self.b(X) if use_b else self.a(X)


def places(program, n, *args, timeout):
    """Print where each rank is when the time is up: the call, and the line of program."""
    error = run(program, n, *args, timeout=timeout)[2]
    for stack in re.split(r"^(?=rank \d)", error.details, flags=re.M)[1:]:
        # the innermost function comes first
        frames = re.findall(r'File ".*?", line (\d+) in (\S+)', stack)
        name = program.__name__
        line = next(
            (line for line, function in frames if function == name), "?"
        )
        where = f"{name}, line {line}"
        if frames[0][1] != name:
            where = f"{frames[0][1]}, called in {where}"
        print(f"{stack[:6]}: {where}")


def calls(program):
    """Return what the flight recorder has noted: one line a call, in order.

    Of each call: its kind, how many numbers, and whether backward made it, or in which
    line of `program` it was made. In torch 2.13 the recorder runs by itself, with gloo
    too; the function that reads it has no public name yet.
    """
    written = torch._C._distributed_c10d._dump_fr_trace()  # by this process
    log = pickle.loads(written)  # noqa: S301
    found = []
    for entry in log["entries"]:
        names = [frame["name"] for frame in entry["frames"]]
        kind = entry["profiling_name"].partition(":")[2]
        numbers = torch.Size(entry["input_sizes"][0]).numel()
        place = "backward"
        if place not in names:
            lines = [
                f["line"] for f in entry["frames"] if f["name"] == program
            ]
            place = f"line {lines[0]}"
        found.append(f"{kind} of {numbers}, {place}")
    return found


def compare(program, start):
    """Print side by side the calls that two ranks return, from number `start` on."""
    both = run(program, 2)[1]
    print("call  rank 0                      rank 1")
    for i, (zero, one) in enumerate(zip_longest(*both, fillvalue="-")):
        if i >= start:
            print(f"{i:4}  {zero:26}  {one}")


def draw(steps):
    """Draw two ranks' messages in order, where rank 0 tests alone in step 4.

    In red are those that do not belong together.
    """
    import matplotlib.pyplot as plt

    # rank 0's message, rank 1's, what comes out; None where there is none
    last = f"step {steps - 1}"
    columns = [
        ("step 3", "step 3", "mean"),
        ("test", "step 4", "89.44"),
        ("step 4", "step 5", "mixed"),
        (None, None, "..."),
        (f"step {steps - 2}", last, "mixed"),
        (last, None, "waits"),
    ]
    ax = plot.axes(height=2.5)
    for x, (*labels, result) in enumerate(columns):
        fits = labels[0] == labels[1]
        colour = plot.INK if fits else "#c0392b"
        for rank, label in enumerate(labels):
            box = {
                "boxstyle": "round,pad=0.4",
                "facecolor": plot.COLOURS[rank],
            }
            if label:
                style = {"ha": "center", "va": "center", "color": "white"}
                ax.text(
                    x,
                    1 - rank,
                    label,
                    fontsize=13,
                    bbox=box | {"lw": 0},
                    **style,
                )
        if labels[0]:
            line = ("-" if labels[1] else ":", 1.5 if fits else 3.5)
            ax.plot([x, x], [0.2, 0.8], line[0], color=colour, lw=line[1])
        place = {"x": x, "y": -0.5, "ha": "center", "va": "center"}
        ax.text(s=result, fontsize=13, color=colour, **place)
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.75, 1.35), xticks=[])
    ax.set_yticks((0, 1), ("rank 1", "rank 0"), fontsize=13)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    plt.show()


def layer(detail):
    """Use layer b on rank 0 alone, for two steps; rank 1 raises an error."""
    if detail:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    model = DDP(TwoLayers())
    for _ in range(2):
        model(torch.ones(1, 1), use_b=dist.get_rank() == 0).sum().backward()


# what rank 0 and rank 1 do in one moment: a call, a tensor, and a root or an operation
MISTAKES = {
    "2 numbers, 3 numbers": (
        (dist.all_reduce, torch.ones(2)),
        (dist.all_reduce, torch.ones(3)),
    ),
    "float32, int64": (
        (dist.all_reduce, torch.ones(2)),
        (dist.all_reduce, torch.ones(2).long()),
    ),
    "broadcast, all-reduce": (
        (dist.broadcast, torch.ones(2), 0),
        (dist.all_reduce, torch.ones(2)),
    ),
    "broadcast from 0, from 1": (
        (dist.broadcast, torch.ones(2), 0),
        (dist.broadcast, torch.ones(2), 1),
    ),
    "sum of 1, maximum of 50": (
        (dist.all_reduce, torch.tensor(1.0), dist.ReduceOp.SUM),
        (dist.all_reduce, torch.tensor(50.0), dist.ReduceOp.MAX),
    ),
    "1 of step 1, 50 of step 2": (
        (dist.all_reduce, torch.tensor(1.0)),
        (dist.all_reduce, torch.tensor(50.0)),
    ),
}


def make(names, detail):
    """Make mistakes, each in a group that gives up after a second; return their ends."""
    if detail:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    ends = []
    for name in names:
        dist.barrier()  # one rank may come out of the last mistake a second later
        group = dist.new_group(timeout=timedelta(seconds=1))
        call, tensor, *more = MISTAKES[name][dist.get_rank()]
        result = tensor.clone()
        try:
            call(result, *more, group=group)
        except RuntimeError as error:
            ends.append(ended(str(error)))
        else:
            ends.append(
                "no error" + (f": {result:g}" if result.ndim == 0 else "")
            )
    return ends


def ended(text):
    """Say in a few words what an error's text says."""
    if found := re.search(r"differ in the following aspects: *(.*)", text):
        differ = found[1].strip()
        return re.sub(
            r".*: (\w+)vs (\w+)", r"error: \1 vs \2", differ
        ).lower()
    # if a rank has given up, the one that still waits for it is told so
    waits = "imed out" in text or "Connection closed by peer" in text
    return "waits" if waits else text


def ends_of(names, detail):
    """Return how each of these mistakes ended on the two ranks: {name: ends}."""
    results, error = run(make, 2, names, detail)[1:]
    if error:
        return dict.fromkeys(names, ("a rank is killed",))
    return dict(zip(names, zip(*results)))


def mistakes():
    """Print what each mistake leads to, without DETAIL and with it."""
    print(f"{'rank 0, rank 1':27}{'without DETAIL':20}with DETAIL")
    line = f"{'uses layer b, does not':27}"
    for detail in (False, True):
        text = str(run(layer, 2, detail)[2])
        name = re.search(r"did not receive grad for rank \d: (\S+)", text)[1]
        line += f"{'error: ' + ('b.weight' if name == 'b.weight' else f'parameter {name}'):20}"
    print(line.rstrip())
    kills = "float32, int64"  # without DETAIL, no other mistake can follow it
    others = [name for name in MISTAKES if name != kills]
    found = [
        ends_of(others, False) | ends_of([kills], False),
        ends_of(list(MISTAKES), True),
    ]
    for name in MISTAKES:
        line = f"{name:27}"
        for ends in found:
            # one rank may wait, or be told more than the other
            line += f"{max(ends[name], key=lambda end: (end != 'no error', len(end))):20}"
        print(line.rstrip())


# cures


def mended(cure, steps=10):
    """Take the steps of the lesson's `alone`, with a cure; return the two weights."""
    rank, net = dist.get_rank(), TwoLayers()
    if cure == "load before wrapping" and rank == 1:
        nn.init.ones_(net.a.weight)  # DDP sends the weights of rank 0 to all
    model = DDP(net, find_unused_parameters=cure == "find unused parameters")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    fewer = rank == 1 and cure == "Join"
    with Join([model], enable=cure == "Join"):
        for step in range(steps - fewer):
            mine = rank == 1 and step == 3
            leave_out = mine and cure == "find unused parameters"
            answer = model(torch.ones(1, 1), use_b=not leave_out)
            loss = (answer - rank).square().mean()
            if mine and cure in ("vote", "look at p.grad"):
                loss = loss * float("nan")
            if cure == "vote":
                votes = loss.isnan().float()
                dist.all_reduce(votes, op=dist.ReduceOp.MAX)
                if votes > 0:
                    continue
            optimizer.zero_grad()
            loss.backward()
            if cure == "look at p.grad" and net.a.weight.grad.isnan().any():
                continue
            optimizer.step()
            if cure == "broadcast the rate":
                group = optimizer.param_groups[0]
                rate = torch.tensor(
                    group["lr"] / (2 if step == 3 and not rank else 1)
                )
                dist.broadcast(rate, 0)
                group["lr"] = rate.item()
    return [p.item() for p in net.parameters()]


CURES = (
    "vote",
    "look at p.grad",
    "Join",
    "find unused parameters",
    "load before wrapping",
    "broadcast the rate",
)

if __name__ == "__main__":
    for cure in CURES:
        told(cure, mended, cure)
