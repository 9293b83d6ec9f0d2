"""Compare replicas with one another, and with training on a single device.

    largest_difference  how far two sets of parameters are apart
"""

import torch


@torch.no_grad()
def largest_difference(params, others):
    """Return the largest |difference| between two replicas, as a float.

    params, others: lists of tensors of the same shapes, on any devices.
    """
    return max(float((p - q.to(p.device)).abs().max())
               for p, q in zip(params, others, strict=True))
