"""The public record: bugs of real programs on many devices, each as a small one.

    RECORD    {name: (codes, broken, right, source, what TrainCheck's paper says)}

codes: the findings that would name the bug rightly; one of them is enough. broken,
right: functions that return the arguments of `audit`. The last is None where the paper
is not known to say anything.

TrainCheck (Jiang et al., OSDI 2025) learns rules from right runs. Its authors try it on
20 errors and find 18. Of the 18 that its repositories name, eight need many devices:
deepspeed 1801 and 5794, pytorch 104336, x-jxmnop, mmpretrain 702, and three of hardware
that loses data between GPUs (pytorch 84803 and 96600, Baichuan2 86). The others are no
bugs of many devices; two of these are here, for what can be said of them.
"""

from tests.support.record import (
    clipped_on_some_ranks,
    frozen_and_held,
    frozen_by_train,
    gathered_without_gradient,
    more_batches_on_one_rank,
    moved_and_back,
    never_cleared,
    optimizer_before_copy,
    same_rows_on_all_ranks,
    stopped_by_own_loss,
    summed_loss,
    tokens_of_each_rank,
    validated_on_one_rank,
    wrapped_now_and_then,
)

HANGS = ["unequal-batches", "hang", "mismatch", "exception"]
FOUND = "among the 18 that it finds"


def _entry(program, codes, source, says=None):
    return codes, program.broken, program.right, source, says


RECORD = {
    "moved and back": _entry(
        moved_and_back, ["not-synchronised"], "pytorch 104336",
        FOUND + "; parameters that differ between ranks, in step 0"),
    "wrapped now and then": _entry(
        wrapped_now_and_then, ["not-synchronised"],
        "x-jxmnop-ddp-out-of-sync, 2024",
        FOUND + "; parameters that differ between ranks, in step 0"),
    "clipped on some ranks": _entry(
        clipped_on_some_ranks, ["clip"], "DeepSpeed 1801, BLOOM-176B",
        FOUND + "; unsplit parameters that differ between ranks, in step 2"),
    "frozen by train()": _entry(
        frozen_by_train, ["unused-parameter", "frozen"], "mmpretrain 702",
        FOUND + " in a simulated trace; train() without freeze_stages, in step 0"),
    "frozen and held": _entry(
        frozen_and_held, ["not-in-optimizer", "nothing-moved"], "PyTorch forum 84911",
        FOUND + "; step() changes no weight. 25 of 913 rules are broken, 20 "
        "of them noise, says its tutorial"),
    "never cleared": _entry(
        never_cleared, ["stale"], "stackoverflow 60335387",
        FOUND + "; but in the stored output its one rule is not triggered"),
    "optimizer before copy": _entry(
        optimizer_before_copy, ["not-in-optimizer", "nothing-moved"],
        "accelerate 2665",
        "found; no weight of the optimizer's has a gradient, and step() changes none"),
    "summed loss": _entry(
        summed_loss, ["averaged-twice"], "documentation of DistributedDataParallel"),
    "tokens of each rank": _entry(
        tokens_of_each_rank, ["uneven-shards"],
        'Hugging Face, "Fixing Gradient Accumulation", 2024'),
    "gathered without gradient": _entry(
        gathered_without_gradient, ["gradient", "local"],
        'PyTorch forum, "all_gather does not propagate gradients"'),
    "validated on one rank": _entry(
        validated_on_one_rank, HANGS, "PyTorch forum, evaluation on one rank hangs"),
    "more batches on one rank": _entry(
        more_batches_on_one_rank, HANGS, "PyTorch tutorial on the Join context"),
    "stopped by own loss": _entry(
        stopped_by_own_loss, HANGS, "PyTorch forum, early stopping hangs under DDP"),
    "same rows on all ranks": _entry(
        same_rows_on_all_ranks, ["rows-same"], "documentation of IterableDataset"),
}
