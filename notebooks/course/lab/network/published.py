"""What others have measured on many GPUs, and what the plan says of the same machines.

    CASES       published figures, each with its source and the hardware it states
    Case        one of them
    predicted   what the plan says in its place
    ratio       of predicted and published
    no_wait     the same ratio, if an all-reduce takes no time
    table       all of them as lines of text

A case's compute time is the one that its source states for one GPU; where it states
none, `compute_from` says whose it is, and the table has a star. Links have their
nominal speed. Inside Horovod's servers the source names no link: PCIe 3 is assumed. For
Li et al. 32 rows are assumed. Everything else is the plan's model; nothing is fitted.

Each figure is a number that its source states in words or in a table; none is read off
a plot, so figures 7 and 8 of Li et al., seconds by bucket size, are not here. Those of
PyTorch and Horovod were read again in their texts (Horovod's 79 % on 128 GPUs in its
early README); the others are quoted as they are widely cited.
"""

from collections import namedtuple

from course.lab.network import plan
from course.lab.network.links import LINKS, Link
from course.lab.network.price import of_way

Case = namedtuple("Case", "source figure network params rows seconds devices kind "
                          "value inside between per_node compute_from reason base",
                  defaults=("", "", 1))

NVLINK1 = Link("nvlink1", 3.4e-6, 4 * 20e9, "NVIDIA P100: 4 links of 20 GB/s each way")
NVLINK2 = Link("nvlink2", 3.4e-6, 6 * 25e9, "NVIDIA V100: 6 links of 25 GB/s each way")
PCIE3 = Link("pcie3", 5.7e-6, 16 * 8e9 * 128 / 130 / 8, "PCI Express 3.0, 16 lanes")
ETH50 = Link("eth50", 14e-6, 50e9 / 8, "Ethernet of 50 Gb/s")
IB4X100 = Link("ib4x100", 14e-6, 4 * 100e9 / 8, "4 InfiniBand cards of 100 Gb/s")

GOYAL = "Goyal et al. 2017"
HOROVOD = "Horovod, benchmarks"
TORCH = "PyTorch, benchmark"
TENSORFLOW = "TensorFlow, benchmark"
LI = "Li et al. 2020"
P100 = "TensorFlow's benchmark, P100, 64 rows"

PARAMS = {"ResNet-50": 25_557_032, "ResNet-101": 44_549_160, "VGG-16": 138_357_544,
          "Inception V3": 27_161_264}
BIG_BASIN = (NVLINK1, ETH50, 8)
DGX = (NVLINK2, IB4X100, 8)
PASCAL = (PCIE3, LINKS["eth25"], 4)
LI_SERVERS = (NVLINK2, LINKS["eth100"], 8)


def _case(source, figure, network, rows, seconds, devices, kind, value, machine,
          **more):
    return Case(source, figure, network, PARAMS[network], rows, seconds, devices, kind,
                value, *machine, **more)


CASES = [
    # 120 ms of backward on a P100 (section 4), and half of it for forward
    _case(GOYAL, "abstract: 90 %", "ResNet-50", 32, 0.180, 256, "efficiency", 0.90,
          BIG_BASIN, base=8),
    # 90 epochs of 1.28 million images, 8,192 at a time: 14,080 steps
    _case(GOYAL, "abstract: in one hour", "ResNet-50", 32, 0.180, 256, "seconds",
          3600 / 14_080, BIG_BASIN),
    _case(GOYAL, "run time: 12 % longer", "ResNet-50", 32, 0.180, 352,
          "efficiency", 1 / 1.12, BIG_BASIN, base=8),
    *(_case(TORCH, "README, 32 rows", network, 32, alone, devices, "seconds", found,
            DGX)
      for network, alone, seconds in (
          ("ResNet-50", 0.097, {2: 0.103, 8: 0.104, 16: 0.104}),
          ("ResNet-101", 0.162, {2: 0.176, 8: 0.179, 16: 0.179}))
      for devices, found in seconds.items()),
    _case(TENSORFLOW, "P100, 64 rows", "VGG-16", 64, 64 / 154, 8,
          "efficiency", 1081 / (8 * 154), (NVLINK1, None, None)),
    _case(HOROVOD, "512 GPUs: 90 %", "Inception V3", 64, 64 / 142, 512, "efficiency",
          0.90, PASCAL, compute_from=P100),
    *(_case(HOROVOD, f"{devices} GPUs: {found:.0%}", "VGG-16", 64, 64 / 154, devices,
            "efficiency", found, PASCAL, compute_from=P100)
      for devices, found in ((128, 0.79), (512, 0.68))),
    _case(LI, "fig. 6: overlap 38 %", "ResNet-50", 32, 0.097, 32, "overlap",
          1.38, LI_SERVERS, compute_from=TORCH),
    _case(LI, "fig. 9: twice the time", "ResNet-50", 32, 0.097, 256, "efficiency", 0.5,
          LI_SERVERS, compute_from=TORCH,
          reason="beyond 32 GPUs the paper's machines were shared with other jobs"),
]


def predicted(case):
    """Return the plan's value: of efficiency, of seconds, or the gain of overlap."""
    row = _row(case, case.devices)
    if case.kind == "seconds":
        return row.step
    if case.kind == "overlap":
        after = row.compute + of_way(
            row.way, case.devices, 4 * case.params, case.inside, case.between,
            case.per_node)
        return after / row.step
    base = 1.0 if case.base == 1 else _row(case, case.base).efficiency
    return row.efficiency / base


def ratio(case):
    """Return predicted over published."""
    return predicted(case) / case.value


def no_wait(case):
    """Return what follows from one GPU's time alone, over published."""
    return (case.seconds if case.kind == "seconds" else 1.0) / case.value


def table(cases=None):
    """Return the cases as the lines of a table."""
    lines = [f"{'source':21}  {'figure':24} {'network':12} {'GPUs':>4} {'what':10} "
             f"{'published':>9} {'predicted':>9} {'ratio':>5}"]
    for case in cases or CASES:
        star = "*" if case.compute_from else " "
        lines.append(f"{case.source:21}{star} {case.figure:24} {case.network:12} "
                     f"{case.devices:4} {case.kind:10} {case.value:9.3f} "
                     f"{predicted(case):9.3f} {ratio(case):5.2f}")
    return "\n".join(lines)


def _row(case, devices):
    job = plan.Job(case.params, case.seconds / (3 * case.rows), case.rows, states=1)
    machine = plan.Machine(1.0, case.inside, case.between, case.per_node)
    return plan.row(job, machine, devices)
