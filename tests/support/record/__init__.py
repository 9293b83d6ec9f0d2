"""The public record: bugs of real programs on many devices, each as a small one.

    RECORD    {name: (codes, broken, right, source, what TrainCheck's paper says)}

codes: the findings that would name the bug rightly; one of them is enough. broken,
right: functions that return the arguments of `audit`. The last is None where the paper
is not known to say anything. TrainCheck: Jiang et al., OSDI 2025.
"""

from tests.support.record import (
    clipped_on_some_ranks,
    frozen_by_name,
    frozen_until_train,
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
    wrapped_in_each_call,
)

HANGS = ["unequal-batches", "hang", "mismatch", "exception"]
IN_SET = "one of the 20 real silent errors it is tried on"


def _entry(program, codes, source, says=None):
    return codes, program.broken, program.right, source, says


RECORD = {
    "moved and back": _entry(
        moved_and_back, ["not-synchronised"], "pytorch 104336", IN_SET),
    "wrapped in each call": _entry(
        wrapped_in_each_call, ["not-synchronised"],
        "x-jxmnop-ddp-out-of-sync, 2024", IN_SET),
    "clipped on some ranks": _entry(
        clipped_on_some_ranks, ["clip"], "DeepSpeed 1801, BLOOM-176B",
        IN_SET + "; found, by weights that are to stay the same on all ranks"),
    "frozen until train()": _entry(
        frozen_until_train, ["not-synchronised", "frozen"], "mmpretrain 702", IN_SET),
    "frozen by name": _entry(
        frozen_by_name, ["frozen", "gradient"], "PyTorch forum 84911", IN_SET),
    "never cleared": _entry(
        never_cleared, ["stale"], "stackoverflow 60335387", IN_SET),
    "optimizer before copy": _entry(
        optimizer_before_copy, ["not-in-optimizer", "nothing-moved"],
        "accelerate 2665"),
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
