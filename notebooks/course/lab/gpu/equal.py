"""Does a device take the steps that the CPU takes?

    step     `train_batch` on the device beside `train_batch` on the CPU
    ledger   every method of the ledger, with ranks that share the device
"""

import torch

from course.lab.ledger.compare import compare
from course.lab.same import apart, most
from manual_dp.lenet import init_params
from manual_dp.params import get_params
from manual_dp.train import train_batch

CPU = torch.device("cpu")
STEPWISE = 1e-10  # float64: two devices add in their own orders


def step(device, world_size=2, rows=9, steps=3, lr=0.1):
    """Return how far a step ever took a replica on the device from one on the CPU.

    Each step starts from equal weights, in float64: replicas on the device begin with
    those that the CPU's step has left. Distances are those of `apart`.
    """
    generator = torch.Generator().manual_seed(0)
    here = get_params(init_params("he", generator, torch.float64), CPU)
    devices, far = [device] * world_size, []
    for _ in range(steps):
        X = torch.rand(rows, 1, 28, 28, generator=generator, dtype=torch.float64)
        y = torch.randint(10, (rows,), generator=generator)
        there = [get_params(here, device) for device in devices]
        train_batch(X, y, there, devices, lr)
        train_batch(X, y, [here], [CPU], lr)
        far += [apart(replica, here) for replica in there]
    return most(far)


def ledger(device, world_size=2, steps=10, batch_size=12):
    """Compare every method that trains in step with one device, all on `device`.

    Ranks that are processes share the device, through gloo. Returns a dict: "methods",
    how many there were; "stepwise", how far any of them took a step from one device's;
    "equal", whether all replicas ended with the same bits; "notes", by method, why
    there was nothing to compare.
    """
    rows = compare(world_size, steps, batch_size, device=device)["rows"]
    run = [row for row in rows if "note" not in row]
    return {"methods": len(run), "stepwise": most([row["stepwise"] for row in run]),
            "equal": all(row["equal"] for row in run),
            "notes": {row["method"]: row["note"] for row in rows if "note" in row}}
