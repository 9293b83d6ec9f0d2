"""What runs say about each other: seconds as ratios, speed-up, accuracy.

    summary   a row for each network, method and number of ranks, over all seeds
    table     these rows as lines of text
    report    rows and runs as a file keeps them
"""

import os
import statistics

import torch

SAME = ("model", "stem", "data", "form", "rows", "method", "lr", "accumulate", "amp",
        "clip", "epochs")
MEASURED = ("loss", "test_acc", "seconds_a_step", "seconds")
WHAT = {"batches": "CIFAR-10's official files", "images": "CIFAR-10 as image files: "
        "JPEG changes pixels a little, PNG does not", None: "not CIFAR-10"}
RATIOS = ("seconds_a_step", "speed_up", "efficiency")


def summary(runs):
    """Return a dict for each network, method and number of ranks.

    seconds_a_step: the median over the seeds. speed_up: rows a second against those of
    the same method on one rank, None if that was not run; efficiency: speed_up a rank.
    right: rows of the test set classified right after the last epoch, a seed each.
    """
    groups = {}
    for run in runs:
        key = tuple(run[name] for name in SAME)
        groups.setdefault((key, run["world_size"]), []).append(run)
    rows = []
    for (key, world_size), group in groups.items():
        pace, base = _pace(group), groups.get((key, 1))
        speed_up = pace / _pace(base) if base else None
        rows.append({
            **dict(zip(SAME, key)), "world_size": world_size,
            "batch_size": group[0]["batch_size"],
            "seeds": [run["seed"] for run in group],
            "seconds_a_step": _median(group), "speed_up": speed_up,
            "efficiency": speed_up and speed_up / world_size,
            "right": [run["right"][-1] for run in group], "of": group[0]["of"]})
    return rows


def table(rows):
    """Return the rows of `summary` as lines of text."""
    lines = [f"{'network':24}  {'method':12}  ranks  batch  sec/step  speed-up  "
             "efficiency  test acc"]
    for row in rows:
        name = " ".join(filter(None, (row["model"], row["stem"])))
        best = " ".join(f"{right / row['of']:.3f}" for right in row["right"])
        lines.append(f"{name:24}  {row['method']:12}  {row['world_size']:5d}  "
                     f"{row['batch_size']:5d}  {row['seconds_a_step']:8.3f}  "
                     f"{_ratio(row['speed_up']):>8}  {_ratio(row['efficiency']):>10}  "
                     f"{best}")
    return "\n".join(lines)


def report(runs):
    """Return what a file keeps of runs: what, where, their summary, all of them.

    Measured numbers keep four digits, and the summary is made of these: a file that is
    gone on with stays as it is. load: how many processes wanted a core in the last
    minute; where these are more than the ranks, the seconds are not the method's.
    """
    where = {"torch": torch.__version__, "cores": os.cpu_count(),
             "gpus": torch.cuda.device_count(), "load": round(os.getloadavg()[0], 1)}
    runs = [run | {name: _rounded(run[name]) for name in MEASURED} for run in runs]
    rows = [row | {name: _rounded(row[name]) for name in RATIOS}
            for row in summary(runs)]
    what = sorted({WHAT[run["form"]] for run in runs})
    return {"what": what, "where": where, "summary": rows, "runs": runs}


def _rounded(value):
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _median(group):
    return statistics.median(run["seconds_a_step"] for run in group)


def _pace(group):
    """Return rows a second."""
    return group[0]["batch_size"] / _median(group)


def _ratio(value):
    return "-" if value is None else f"{value:.2f}"
