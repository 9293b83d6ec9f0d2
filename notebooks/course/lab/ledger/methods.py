"""Every way of training in step that the course has, on the same minibatches.

    single              one device, nothing split: what the others are compared with
    nudged              the same, one weight moved by its last place: the control
    by_hand             `train_batch`, with any all-reduce over a list of tensors
    data_parallel       `DataParallel` by hand
    over_processes      a process for each rank: the ring or a DDP by hand, torch's DDP

METHODS has a label for each. A method takes a `Plan` and trains as it says; all but
the first two split every minibatch. In one process `split_batch` sizes the shards, over
processes `plan.shares` does. Each rank divides its sum by the rows of the minibatch;
where DDP takes the mean over ranks, the loss is world_size times that.

A method returns a dict: "weights" and "seconds" as `follow` does, "sent", the bytes
that the busiest rank sends in a step, and "counted": were these counted? If not, they
are computed: for DataParallel from the sizes of weights, rows and scores; for DDP they
are 2 * (N - 1) / N of the bytes that all_reduce was given, which are counted.
Or a method returns only a "note", which says why there is no comparison.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course.lab.ledger.plan import follow, places, sgd_step, start
from course.lab.same import most, nudge
from course.lab.sends import busiest, traffic
from course.lab.trace import all_reduces
from manual_dp.allreduce import WAYS
from manual_dp.models.lenet import LeNet
from manual_dp.parallel import DataParallel
from manual_dp.params import get_params, pack_grads
from manual_dp.ranks import DDP, BucketDDP, NaiveDDP, collectives, run_ranks
from manual_dp.split import scatter
from manual_dp.train import train_batch

BUCKET_MB = 0.5  # two buckets: linear layers, convolutions


def single(plan):
    """Train on one device: nothing is split, nothing summed over ranks."""
    [device] = places(plan, 1)
    run = _follow(plan, LeNet(start(plan)).to(device), device)
    return {**run, "sent": 0, "counted": True}


def nudged(plan):
    """Train one device from a start that differs in the last place of one weight."""
    [device] = places(plan, 1)
    run = _follow(plan, LeNet(nudge(start(plan))).to(device), device)
    return {**run, "sent": 0, "counted": True}


def _follow(plan, net, device):
    return follow(plan, sgd_step(net, plan), [list(net.parameters())], device)


def by_hand(allreduce, plan):
    """Train replicas in this process: `train_batch` with an all-reduce of a list."""
    devices = places(plan, plan.world_size)
    device_params = [get_params(start(plan), device) for device in devices]

    def step(X, y):
        train_batch(X, y, device_params, devices, plan.lr, allreduce)
    run = follow(plan, step, device_params, devices[0])
    grads = [pack_grads(params) for params in device_params]
    return {**run, "sent": busiest(traffic(allreduce, grads)), "counted": True}


def data_parallel(plan):
    """Train one module through `DataParallel` by hand."""
    devices = places(plan, plan.world_size)
    return _through(DataParallel(LeNet(start(plan)), devices), devices, plan)


def torch_data_parallel(plan):
    """Train through `nn.DataParallel` on at most world_size GPUs; a note without."""
    gpus = min(torch.cuda.device_count(), plan.world_size)
    if not gpus:
        return {"note": "pass-through: not a comparison"}
    devices = [torch.device("cuda", i) for i in range(gpus)]
    net = nn.DataParallel(LeNet(start(plan)).to(devices[0]), devices)
    return {**_through(net, devices, plan), "gpus": gpus}


def _through(net, devices, plan):
    # Device 0 sends each other one all weights, its rows, its scores' gradient.
    shards = scatter(torch.empty(plan.rows, 28 * 28 + 10, dtype=torch.float64), devices)
    sent = sum(_bytes([shard, *net.parameters()]) for shard in shards[1:] if len(shard))
    return {**_follow(plan, net, devices[0]), "sent": sent, "counted": False}


def over_processes(wrap, plan):
    """Train with a process for each rank: on a GPU each if there are so many.

    Where the plan has a device, all ranks share that one. wrap: called in each rank
    with the module; returns what to call for the scores, what to call after backward,
    and the factor for the loss. The ring on isend and irecv stays on the CPU: gloo
    sends no GPU's tensor from one rank to another.
    """
    shared = torch.device("cpu") if wrap is ring else plan.device
    if shared is None and torch.cuda.device_count() < plan.world_size:
        shared = torch.device("cpu")
    runs = run_ranks(_rank, plan.world_size, wrap, plan, shared,
                     timeout=60 + 2 * plan.steps, backend="gloo" if shared else "nccl")
    weights = {mark: [run["weights"][mark][0] for run in runs]
               for mark in runs[0]["weights"]}
    return {"weights": weights, "seconds": max(run["seconds"] for run in runs),
            "stepwise": most([run["stepwise"] for run in runs]),
            "sent": max(run["sent"] for run in runs), "counted": runs[0]["counted"]}


def ring(module):
    """Leave the module as it is; sum its gradients by the ring on isend and irecv."""
    def after_backward():
        grads = [p.grad for p in module.parameters()]
        flat = parameters_to_vector(grads)
        collectives.ring_allreduce(flat)
        vector_to_parameters(flat, grads)
    return module, after_backward, 1


def ddp(kind, module, **options):
    """Wrap the module in a DDP, which takes the mean over ranks during backward."""
    net = kind(module, **options)
    if kind is DistributedDataParallel:  # else it calls no Python, and nothing is seen
        net.register_comm_hook(None, allreduce_hook)
    return net, None, dist.get_world_size()


def _rank(wrap, plan, shared):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = shared or torch.device("cuda", rank)
    module = LeNet(start(plan)).to(device)
    net, after_backward, factor = wrap(module)
    step = sgd_step(net, plan, after_backward, factor)
    first = sum(plan.shares[:rank])
    mine = slice(first, first + plan.shares[rank])
    with all_reduces("isend") as sent, all_reduces() as summed:
        run = follow(plan, lambda X, y: step(X[mine], y[mine]),
                     [list(module.parameters())], device)
    if sent:
        return {**run, "sent": 8 * sum(sent) // plan.steps, "counted": True}
    sent = 2 * (world_size - 1) * 8 * sum(summed) // plan.steps // world_size
    return {**run, "sent": sent, "counted": False}


def _bytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def _ddp(kind, **options):
    return partial(over_processes, partial(ddp, kind, **options))


METHODS = {
    "single device": single,
    "single, 1 ulp off": nudged,
    **{name: partial(by_hand, way) for name, way in WAYS.items()},
    "nn.DataParallel": torch_data_parallel,
    "DataParallel by hand": data_parallel,
    "ring over processes": partial(over_processes, ring),
    "DDP, each gradient": _ddp(NaiveDDP),
    "DDP, buckets": _ddp(BucketDDP, bucket_cap_mb=BUCKET_MB),
    "DDP, overlapped": _ddp(DDP, bucket_cap_mb=BUCKET_MB),
    "torch DDP": _ddp(DistributedDataParallel, bucket_cap_mb=BUCKET_MB),
}
