"""torchvision, beside whichever torch there is."""

import sys

import torch


def ensure_torchvision():
    """Import torchvision and return it.

    Its wheel is built for GPUs. Beside a CPU-only torch the import fails, because two
    operators are not declared. We declare them, which is enough unless somebody calls
    them. Call this before importing d2l or lightning, in every process. Beside any
    other torch it only imports.
    """
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )
        # take out what the first attempt has half imported
        for name in list(sys.modules):
            if name.split(".")[0] == "torchvision":
                del sys.modules[name]
        import torchvision
    return torchvision
