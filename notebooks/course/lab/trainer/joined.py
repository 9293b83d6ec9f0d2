"""Train as one of the ranks that torchrun has started, here and on other hosts.

    inside     say whether this process is such a rank
    train      meet the others, run what is asked for; return the runs, on every rank
    job        the name of the job, the same after a restart

Which rank writes what: rank 0 the table, --out and --checkpoint; on each host the rank
with LOCAL_RANK 0 what is downloaded; torchrun's --log-dir a folder for each rank.
"""

import datetime
import os

import torch
import torch.distributed as dist

from course.lab.trainer import methods
from course.lab.trainer.agree import agree, once_a_host
from course.lab.trainer.epochs import train_rank
from course.lab.trainer.meeting import meet
from course.lab.trainer.runs import checkpointed, done, kept, named, plans
from course.lab.trainer.table import report
from manual_dp.files import write_json
from manual_dp.ranks.checkpoint import gather

SET = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
       "MASTER_PORT", "TORCHELASTIC_RUN_ID")
PATIENCE = datetime.timedelta(minutes=30)  # the longest download, the longest epoch


def inside():
    """Say whether torchrun has started this process as one of several ranks."""
    return all(name in os.environ for name in SET)


def job():
    """Return the name of this job, which a restart of it has, too, and no other job.

    It is torchrun's --rdzv-id. Without one it is the process that starts the ranks.
    """
    name = os.environ["TORCHELASTIC_RUN_ID"]
    return f"{name} {_started(os.getppid())}" if name == "none" else name


def train(args):
    """Meet the other ranks, train each run that is asked for; return all runs."""
    _join()
    try:
        _check_hosts()
        asked = once_a_host(lambda: plans(args))
        first = dist.get_rank() == 0
        runs = agree(lambda: kept(args.out) if args.go_on and args.out else [], first)
        box = [runs]
        dist.broadcast_object_list(box)
        old = box[0]
        runs = [run for run in old if not any(done(plan, [run]) for plan in asked)]
        for plan in asked:
            found = done(plan, old) or named(plan) | train_rank(
                plan, keeper=checkpointed(args, job()))
            runs.append(found)
            if first and args.out:
                write_json(args.out, report(runs))
        return runs
    finally:
        dist.destroy_process_group()


def _join():
    backend = methods.backend(int(os.environ["LOCAL_WORLD_SIZE"]))
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        meet(backend, PATIENCE)
    except (RuntimeError, OSError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RuntimeError(
            f"rank {os.environ['RANK']} could not meet the others at {where}: "
            f"{str(error).splitlines()[0]}") from None


def _check_hosts():
    ranks = gather((int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])))
    counts = dict(ranks)
    if len(set(counts.values())) > 1:
        words = ", ".join(f"host {host} has {n}" for host, n in sorted(counts.items()))

        def refuse():
            raise ValueError(f"the hosts start different numbers of ranks: {words}; "
                             "give each torchrun the same --nproc-per-node")
        agree(refuse)


def _started(pid):
    """Return a process's number and when it started: no other process has both."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return f"{pid}-{file.read().rpartition(')')[2].split()[19]}"
    except OSError:
        return str(pid)
