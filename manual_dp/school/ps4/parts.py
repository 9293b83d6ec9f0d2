"""What `DDP` is judged with: ranks that start equal."""

import torch.distributed as dist


def start_equal(module):
    """Send rank 0's parameters and buffers to all ranks."""
    for group in (module.parameters(), module.buffers()):
        for part in group:
            dist.broadcast(part.detach(), src=0)
