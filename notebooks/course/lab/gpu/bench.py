"""Run all that a machine's GPUs can show: `python -m course bench --gpu`.

    run     run the rows; return a report, a dict that JSON can hold
    table   the report as text
    ROWS    the rows: how many GPUs each needs, and what it calls

A row's function takes a device and returns figures: (name, figure, unit, condition). A
row that the machine cannot run is left out, with the reason; one that raises is kept
with its error, and the others go on.
"""

import os
import platform
import shutil
import subprocess

import torch

from course.lab.gpu import equal, mixed, pair, sharing, speed, timeline
from course.lab.progress import bar

NO_GPU = ("bench --gpu needs a GPU, and torch {} sees none: run it on a machine with "
          "one (nvidia-smi lists them), with a torch for CUDA (README: GPUs, clouds)")
CPU = torch.device("cpu")


def run(only=None, rows=None):
    """Run the rows on GPU 0, or on the first two; return the report.

    only: names of rows, by default all. rows: others than ROWS.
    Raises ValueError for an unknown name, RuntimeError without a GPU.
    """
    rows = rows or ROWS
    for name in only or ():
        if name not in rows:
            raise ValueError(f"no row is called {name!r}; rows of --gpu: "
                             f"{', '.join(rows)}")
    count = torch.cuda.device_count()
    if not count:
        raise RuntimeError(NO_GPU.format(torch.__version__))
    report = {**machine(), "rows": {}}
    for name in bar(list(only or rows), "GPU"):
        needs, function = rows[name]
        if count < needs:
            report["rows"][name] = {"left out": f"needs {needs} GPUs, here is {count}"}
        else:
            report["rows"][name] = attempt(function, torch.device("cuda", 0))
    return report


def attempt(function, device):
    """Return a row: its figures, or the error that it raised."""
    try:
        keys = ("name", "figure", "unit", "condition")
        return {"figures": [dict(zip(keys, figure)) for figure in function(device)]}
    except Exception as error:  # the others have their figures
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}


def machine():
    """Return what the figures depend on: the GPUs, torch, CUDA, the driver."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"gpus": names, "torch": torch.__version__, "cuda": torch.version.cuda,
            "driver": _driver(), "cudnn": torch.backends.cudnn.version(),
            "python": platform.python_version(), "cores": os.cpu_count(),
            "threads": torch.get_num_threads()}


def _driver():
    """Return the driver's version, None where nvidia-smi does not say."""
    if not shutil.which("nvidia-smi"):
        return None
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=60)
    return said.stdout.partition("\n")[0].strip() or None


def table(report):
    """Return the report as text: a line for each figure, then what was left out."""
    lines = [f"{', '.join(report['gpus'])}; torch {report['torch']}, CUDA "
             f"{report['cuda']}, driver {report['driver']}",
             f"{'what':34}{'figure':>12} {'unit':9} condition"]
    for row in report["rows"].values():
        lines += [f"{each['name']:34}{_text(each['figure']):>12} {each['unit']:9} "
                  f"{each['condition']}" for each in row.get("figures", ())]
    for reason in ("left out", "failed"):
        lines += [f"{reason}: {name}: {row[reason]}"
                  for name, row in report["rows"].items() if reason in row]
    return "\n".join(lines)


def _text(figure):
    if isinstance(figure, bool):
        return "yes" if figure else "NO"
    return figure if isinstance(figure, str) else f"{figure:.4g}"


def _step(device):
    return [(f"train_batch against the CPU, k = {k}", equal.step(device, k), "weight",
             f"largest difference of a step, float64; promised <= {equal.STEPWISE:g}")
            for k in (1, 2, 4)]


def _ledger(device):
    found = equal.ledger(device)
    where = "world size 2 on one device, float64, 10 steps"
    return [("ledger: methods", found["methods"], "", where),
            ("ledger: largest difference", found["stepwise"], "weight", where),
            ("ledger: all replicas equal", found["equal"], "", where)]


def _gloo(device):
    two, where = [device] * 2, "2 ranks share the device, gloo"
    found = sharing.sums(two, "gloo")
    lines = [("gloo: the sum is right", found["sum"], "", where),
             ("gloo: it stays on the device", found["stays"], "", where)]
    for wrap in sharing.WRAPS:
        ddp = sharing.ddp(two, "gloo", wrap)
        lines += [(f"DDP {wrap}, step", ddp["stepwise"], "weight", where + ", float64"),
                  (f"DDP {wrap}, ranks equal", ddp["equal"], "", where)]
    seconds = sharing.seconds(two)
    return lines + [(f"gloo all-reduce, {place}", 1000 * seconds[place], "ms",
                     f"16 MiB, 2 ranks, tensors on the {place}") for place in seconds]


def _alone(device):
    through = sharing.backend(device, 1)
    where = f"1 rank, {through}"
    ddp = sharing.ddp([device], through, "torch's")
    return [(f"{through}: all-reduce is the identity",
             sharing.sums([device], through)["sum"], "", where),
            ("DDP of torch, step", ddp["stepwise"], "weight",
             where + ", float64, against the CPU")]


def _mixed(device):
    found, clip = mixed.losses(device), mixed.clip(device)
    skip, where = mixed.skip(device), f"products in {found['products']}, LeNet, 64 rows"
    return [("mixed: first loss", found["losses"][0], "", where),
            ("mixed: last loss", found["losses"][-1], "", f"after 20 steps, {where}"),
            ("mixed: steps left out", found["skipped"], "steps", where),
            ("scaler: an inf moves the weight", skip["moved"], "", "must be NO"),
            ("scaler: scale after an inf", skip["scale"], "times", "promised 0.5"),
            *((f"clip: {order}", length, "length", "to 1, scale 1024")
              for order, length in clip.items())]


def _timeline(device):
    where = "LeNet, 256 rows, 2 replicas on the device, float32, the device's clock"
    return [(f"step: {part}", 1000 * seconds, "ms", where)
            for part, seconds in timeline.parts(device).items()]


def _clocks(device):
    found, what = timeline.clocks(device), "20 products of 2048 x 2048, float32"
    return [("clock that does not wait", 1000 * found["asked"], "ms",
             f"{what}: until the calls return"),
            ("clock that waits", 1000 * found["done"], "ms", f"{what}: until done")]


def _speed(device):
    lines = []
    for name, rows in (("LeNet", 8), ("LeNet", 256), ("ResNet-18", 64)):
        for place in (CPU, device):
            steps = 3 if name == "ResNet-18" and place == CPU else 10
            lines.append((f"{name}, on {place.type}",
                          speed.images(place, name, rows, steps), "images/s",
                          f"training, {rows} rows, float32, torch's defaults"))
    short = str(mixed.short_type(device)).removeprefix("torch.")
    return lines + [(f"ResNet-18, on {device.type}, mixed",
                     speed.images(device, "ResNet-18", 64, mixed=True), "images/s",
                     f"training, 64 rows, {short}")]


def _pair(device):
    found = pair.nccl()
    return [("nccl: the sum is right", found["sum"], "", "2 ranks, a GPU each"),
            ("nccl: DDP of torch, step", found["stepwise"], "weight", "float64"),
            ("nccl: ranks equal", found["equal"], "", "after 3 steps"),
            ("nccl: all-reduce", found["bytes"] / 1e9, "GB/s", "64 MiB, out of a rank")]


def _peer(device):
    found = pair.peer()
    return [("peer: all numbers arrive", found["right"], "", "256 MiB, GPU 0 to GPU 1"),
            ("peer: direct access", found["direct"], "", "else through the CPU"),
            ("peer: copy", found["bytes"] / 1e9, "GB/s", "256 MiB, GPU 0 to GPU 1")]


def _wrappers(device):
    where = "256 rows in all, float32"
    return [(f"ResNet-18 step, {label}", 1000 * seconds, "ms", where)
            for label, seconds in pair.wrappers().items()]


ROWS = {  # GPUs that it needs, what it calls
    "step": (1, _step), "ledger": (1, _ledger), "gloo": (1, _gloo),
    "alone": (1, _alone), "mixed": (1, _mixed), "timeline": (1, _timeline),
    "clocks": (1, _clocks), "speed": (1, _speed),
    "nccl": (2, _pair), "peer": (2, _peer), "wrappers": (2, _wrappers),
}
