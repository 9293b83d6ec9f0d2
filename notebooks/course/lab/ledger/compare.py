"""The ledger: every method of training in step against a single device, twice over.

Stepwise: in each step one device starts from the method's weights, and the two ends are
compared. What is left is rounding, at any rate. Run against run: both train on from
their own weights, and whatever the training does to a difference, it does to rounding.
The control says what that is: one device whose start differs in the last place of one
weight. A method that parts no faster than the control is right.

    compare   run every method; return a report
    table     the report as text
    plot      the report as a figure
"""

import torch

from course.lab.figures.plot import COLOURS, INK, axes
from course.lab.ledger import methods
from course.lab.ledger.plan import Plan, start
from course.lab.progress import bar
from course.lab.same import most
from manual_dp.params import largest_difference
from manual_dp.split import scatter

LR = 0.05
BOUND = 1e-12
ZERO = 1e-18  # where the figure has its 0


def compare(world_size=2, steps=100, batch_size=24, seed=0, lr=LR, device=None):
    """Train by every method from the same weights on the same minibatches.

    Twice: on minibatches whose shards are equal, batch_size rows or a little less, and
    on some that are world_size - 1 rows smaller, which no split makes equal. In one
    process the last shard is then the small one; over processes rank 0 gets three
    times as many rows as the others. seed: draws weights and minibatches. device: the
    one that all ranks share; without it GPUs are dealt out, or all are on the CPU.
    Returns a dict that JSON can hold. Seconds are of the even minibatches, with one
    thread a process; methods run one after another, so on a busy machine they mislead.
    """
    _check(world_size, steps, batch_size)
    plans = _plans(world_size, steps, batch_size, seed, lr, device)
    runs, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)  # as every rank does
    try:
        for name, method in bar(methods.METHODS.items(), f"{world_size} ranks"):
            runs[name] = {kind: method(plan) for kind, plan in plans.items()}
    finally:
        torch.set_num_threads(threads)
    single, last = runs["single device"], runs["torch DDP"]["even"]["seconds"]
    after = list(single["even"]["weights"])
    begin, end = start(plans["even"]), single["even"]["weights"][after[-1]][0]
    return {
        "world_size": world_size, "steps": steps, "seed": seed, "lr": lr,
        "torch": torch.__version__, "gpus": torch.cuda.device_count(), "after": after,
        "moved": largest_difference(begin, end),
        "shards": {kind: _shards(plan) for kind, plan in plans.items()},
        "rows": [{"method": name, **_row(run, single, last)}
                 for name, run in runs.items()]}


def _plans(world_size, steps, batch_size, seed, lr, device):
    even = batch_size - batch_size % world_size
    odd = even - (world_size - 1)
    one = odd // (world_size + 2)
    shares = {"even": [even // world_size] * world_size,
              "uneven": [odd - one * (world_size - 1)] + [one] * (world_size - 1)}
    return {kind: Plan(world_size, steps, sum(share), share, seed, lr, device)
            for kind, share in shares.items()}


def _shards(plan):
    shards = scatter(torch.empty(plan.rows), ["cpu"] * plan.world_size)
    return {"rows": plan.rows, "in one process": [len(shard) for shard in shards],
            "over processes": plan.shares}


def _row(run, single, last):
    if "note" in run["even"]:
        return run["even"]
    kept = [replicas for part in run.values() for replicas in part["weights"].values()]
    right = {kind: part["weights"] for kind, part in single.items()}
    return {
        "stepwise": most([part["stepwise"] for part in run.values()]),
        "difference": {kind: [largest_difference(sum(replicas, []),
                                                 right[kind][mark][0] * len(replicas))
                              for mark, replicas in part["weights"].items()]
                       for kind, part in run.items()},
        "replicas": len(kept[0]),
        "equal": all(torch.equal(p, q) for replicas in kept for replica in replicas
                     for p, q in zip(replica, replicas[0], strict=True)),
        "sent": {kind: part["sent"] for kind, part in run.items()},
        **{key: value for key, value in run["even"].items()
           if key not in ("weights", "sent", "stepwise")},
        "ratio": run["even"]["seconds"] / last}


def table(report, timing=True):
    """Return the report as text, a line for each method.

    timing: show the differences as they are, and seconds. Without, say whether each
    difference is within 1e-12, and nothing of seconds: the same text on every CPU.
    """
    marks = "".join(f"{mark:6d}" for mark in report["after"])
    wide = max(len(marks), 12)
    lines = [*_head(report, timing), "",
             f"{'':21}{'each':>6}{'run: even':>{wide}}{'run: uneven':>{wide}}  ranks"
             f"{'bytes sent':>11}" + "   time" * timing,
             f"{'difference after step':21}{'one':>6}{marks:>{wide}}{marks:>{wide}}"
             f"  equal{'busiest':>11}" + " /torch" * timing]
    for row in report["rows"]:
        lines.append(f"{_name(row):21}" + (row.get("note") or
                                           _cells(row, wide, timing)))
    return "\n".join(lines)


def _head(report, timing):
    moved = f"{report['moved']:.2g}"
    lines = [f"world size {report['world_size']}, float64, {report['steps']} steps at "
             f"rate {report['lr']:g}; the largest change of a weight is {moved}"]
    for kind, shards in report["shards"].items():
        one, many = (", ".join(map(str, shards[place])) for place in
                     ("in one process", "over processes"))
        lines.append(f"{kind}: {shards['rows']} rows, shards of {one}" +
                     (f"; over processes {many}" if many != one else ""))
    return [*lines,
            f"each one: from the same weights in every step, promised: <= {BOUND}",
            "run: each from its own weights; the control is one device, 1 ulp off",
            "~: computed, for DDP from the bytes that all_reduce was given"
            + "; time: a step's, / torch DDP's" * timing]


def _name(row):
    return row["method"] + (f", {row['gpus']} GPUs" if "gpus" in row else "")


def _cells(row, wide, timing):
    differences = ["".join(f"{_cell(d, timing):>6}" for d in part)
                   for part in row["difference"].values()]
    equal = "-" if row["replicas"] == 1 else "yes" if row["equal"] else "NO"
    sent = ("" if row["counted"] else "~") + f"{row['sent']['even']:,}"
    return (f"{_cell(row['stepwise'], timing):>6}"
            + "".join(f"{part:>{wide}}" for part in differences)
            + f"{equal:>7}{sent:>11}" + f"{row['ratio']:7.2f}" * timing)


def _cell(difference, digits):
    if digits:
        return f"{difference:.0e}" if difference else "0"
    return "yes" if difference <= BOUND else "NO"


def plot(report):
    """Draw the differences, a line for each method; no difference stands at 0.

    Returns the axes: of the even minibatches, and of the uneven ones.
    """
    rows = [row for row in report["rows"][1:] if "difference" in row][::-1]
    top = max(max(d) for row in rows for d in row["difference"].values())
    panels = axes("largest |difference| of a weight", width=8, panels=2,
                  title=f"Run against run: left of the dashed line is within {BOUND}",
                  height=1.3 + 0.24 * len(rows))
    for ax, (kind, shards) in zip(panels, report["shards"].items()):
        for i, mark in enumerate(report["after"]):
            ax.plot([max(row["difference"][kind][i], ZERO) for row in rows],
                    range(len(rows)), "o", color=COLOURS[i], markersize=9 - 2 * i,
                    label=f"step {mark}", clip_on=False)
        ax.axvline(BOUND, color=INK, lw=1, ls="--")
        ax.set_xscale("log")
        ticks = [t for t in (1e-16, 1e-12, 1e-8, 1e-4, 1) if t <= max(BOUND, 1e4 * top)]
        ax.set_xticks([ZERO, *ticks], ["0", *(f"{tick:.0e}" for tick in ticks)])
        ax.set_xlim(ZERO, 10 * max(ticks[-1], top))
        ax.set_yticks(range(len(rows)), [_name(row) for row in rows])
        ax.set_title(f"{kind}: {shards['rows']} rows", fontsize=10, color=INK)
    panels[1].set_yticklabels([])
    panels[1].legend(frameon=False, fontsize=9, bbox_to_anchor=(1, 1))
    return panels


def _check(world_size, steps, batch_size):
    for name, value in (("world_size", world_size), ("steps", steps),
                        ("batch_size", batch_size)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number from 1, got {value!r}")
    if world_size > 64:
        raise ValueError(f"world_size must be at most 64, got {world_size}")
    if batch_size < 3 * world_size:
        raise ValueError(f"batch_size must be at least three rows a rank, got "
                         f"{batch_size} for {world_size} ranks")
