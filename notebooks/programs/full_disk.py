"""Rank 1 fails, and rank 0 notices: which of them is the reason?

torchrun --standalone --nproc-per-node 2 --log-dir logs full_disk.py
"""

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    """Wait on rank 0 for a number that rank 1 never sends."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise OSError("no space left")
    dist.broadcast(torch.ones(1), src=1)


if __name__ == "__main__":
    main()
