"""What each finding means: its likely cause and the repair, by its code.

    Finding    code, number, says, cause, repair; rank, step, parameter where known
    finding    make one: cause and repair come from WORDS
    ranks      ranks as text
    few        a few of many things as text

WORDS is in the order of a report: what causes others comes first.
"""

from collections import namedtuple

from manual_dp.ranks.launch.verdict import listed as ranks  # noqa: F401  (for rules)

Finding = namedtuple("Finding", "code number says cause repair rank step parameter "
                     "place", defaults=("",))

WORDS = {
    "exception": (
        "the code raised it on this rank; the others were stopped",
        "read the traceback, below or in report.details; run the step with "
        "world_size=1"),
    "killed": (
        "no exception: the system ended the process, for want of memory (SIGKILL), by "
        "a job's limit (SIGTERM), or for a crash in native code (SIGSEGV)",
        "look for the out-of-memory killer in the system's log, and take a smaller "
        "batch; for a crash run python -X faulthandler"),
    "unequal-batches": (
        "a rank has more batches than another and waits for an all-reduce that never "
        "comes",
        "give all ranks equally many: drop_last, a DistributedSampler, or Join"),
    "hang": (
        "not all ranks call the same collective: one stands behind `if rank == 0`, or "
        "a rank left early",
        "let every rank call every collective, in one order"),
    "mismatch": (
        "ranks called different collectives at the same time, or with other shapes",
        "let every rank call the same collectives in one order; see checked_allreduce"),
    "not-finite": (
        "an update overflowed, or was divided by 0: a rate too large, log(0), an empty "
        "shard's mean",
        "look for the first step in which the loss is not finite; skip an empty shard"),
    "alias": (
        "replicas share memory: .to(device) returns the same tensor on the same "
        "device, and mp.spawn hands one model on a CPU to all ranks",
        "copy: p.detach().to(device, copy=True), as get_params does"),
    "start-differs": (
        "each rank drew weights of its own and nobody sent rank 0's",
        "wrap the model in DDP, broadcast the parameters, or seed all ranks alike"),
    "frozen": (
        "requires_grad was set on some ranks only: all-reduce then waits, or adds up "
        "gradients of different parameters",
        "freeze on all ranks alike, before the model is wrapped"),
    "modes": (
        "model.eval() or model.train() was called on some ranks only, as around an "
        "evaluation on rank 0",
        "call model.train() on every rank before the step"),
    "random-same": (
        "the step seeds all ranks alike, so that they draw the same masks and noise",
        "seed the model alike, then each rank with seed + rank"),
    "sampler-settings": (
        "the sampler was told another rank or world size than the process group",
        "leave num_replicas and rank out: DistributedSampler asks the process group"),
    "dataset-differs": (
        "each rank splits, shuffles or lists the data for itself (random_split with a "
        "seed of its own, files in no order), and the sampler deals out places",
        "split and shuffle with one generator on all ranks; sort the list of files"),
    "sampler-seed": (
        "the samplers' seeds differ, so each rank cuts another permutation",
        "one seed on all ranks: DistributedSampler(data, seed=0)"),
    "sampler-epoch": (
        "sampler.set_epoch was not called: each epoch has the same order, or, if some "
        "ranks call it, each rank cuts another permutation",
        "call sampler.set_epoch(epoch) before each epoch"),
    "batches-differ": (
        "make_batch draws on each rank with a seed of its own",
        "let make_batch return one minibatch on all ranks, and split it in the step"),
    "rows-same": (
        "every rank takes the same rows: no sampler, or a split that ignores the rank",
        "X[rank::world_size], X.chunk(world_size)[rank], or a DistributedSampler"),
    "rows-repeated": (
        "a rank sees a row twice: drawn with replacement, or padded",
        "split without padding, or weight the repeated rows by zero"),
    "rows-overlap": (
        "shards overlap: their edges are wrong, a sampler pads the last shard, or "
        "seeds differ",
        "check the edges; pad nothing, or weight padded rows by zero"),
    "rows-missed": (
        "the split gives them to nobody: it drops the tail (rows // world_size, "
        "drop_last, zip), or a shard's edge is wrong",
        "give them to some rank and weight the loss by n_i * W / N"),
    "unused-parameter": (
        "the loss does not depend on it: DDP waits for its gradient",
        "remove or freeze it, or find_unused_parameters=True"),
    "not-in-optimizer": (
        "the optimizer was made for other tensors, or before the layer was added",
        "make the optimizer after the model, from model.parameters()"),
    "no-gradient": (
        "the loss does not change with the weights (one class only, saturated)",
        "audit with a loss and data that teach something"),
    "nothing-moved": (
        "the optimizer's step is not reached, or lr is 0",
        "call optimizer.step() on every rank"),
    "not-synchronised": (
        "no all-reduce: the model is not wrapped, was called as model.module(X), the "
        "forward stood in no_sync, or a gradient was left out",
        "wrap in DDP and call the wrapper, or all-reduce every gradient before the "
        "step"),
    "not-sent-back": (
        "gradients are summed on one rank, and the others keep their own",
        "send the sum back: all_reduce, or reduce and then broadcast"),
    "one-rank": (
        "one rank's gradient is sent to all instead of the sum (broadcast for "
        "all_reduce)",
        "all_reduce the gradients"),
    "rank-left-out": (
        "the loop over ranks ends early",
        "sum over range(world_size)"),
    "counted-twice": (
        "some rank's gradient is added more often than others",
        "add each rank's gradient once"),
    "uneven-shards": (
        "the mean of the ranks' means: right for equal shards only",
        "multiply rank i's mean loss by n_i * W / N before backward"),
    "accumulation": (
        "micro-batches' mean losses are added up and not divided by their number, or "
        "each takes a step of its own",
        "loss / n in each micro-batch; zero_grad and step once for all of them"),
    "sum": (
        "gradients are summed over ranks and not divided by the world size (or lr is "
        "multiplied by it)",
        "divide by the world size; lr stays, the minibatch is the same"),
    "averaged-twice": (
        "divided by the world size once too often: DDP has taken the mean already, or "
        "the loss is a sum over the minibatch, or divided by its rows",
        "leave the second division out; under DDP multiply such a loss by W"),
    "factor": (
        "a constant that does not belong to this minibatch or world size",
        "divide by the rows of the whole minibatch"),
    "stale": (
        "gradients of an earlier step were not cleared",
        "optimizer.zero_grad() on every rank before each backward"),
    "labels": (
        "X and y are split or shuffled apart",
        "split both with the same indices"),
    "gradient": (
        "none of the known mistakes",
        "compare with a single device, a parameter at a time"),
    "clip": (
        "gradients are clipped before they are summed, on some ranks only, or to "
        "another norm than on one device",
        "clip the averaged gradient, once, on every rank, to one max_norm"),
    "local": (
        "a number over the minibatch (a normaliser, a contrastive loss's negatives) is "
        "taken over a rank's own rows, or a part of the loss is another one on ranks",
        "all-reduce or all-gather it first, so that gradients flow through it; compare "
        "the loss with a single device's, a part at a time"),
    "rates-differ": (
        "the learning rate was changed on some ranks only: a scheduler, or a metric "
        "that each rank has for itself",
        "let every rank step its scheduler with the same numbers"),
    "settings": (
        "the optimizer was made with other options on some ranks, or for another world "
        "size",
        "make it with the same options everywhere; only lr may go with the rows of a "
        "step"),
    "weights-changed": (
        "after the optimizer's step this rank's weights were written once more",
        "do it on all ranks alike, or broadcast afterwards"),
    "replicas-differ": (
        "the ranks do not take the same step from the same weights",
        "start from rank 0's weights and apply the same gradient on all"),
    "state-differs": (
        "an average of weights, a scheduler or an optimizer's state was updated, "
        "loaded or reset on some ranks only",
        "do it on all ranks alike, or broadcast the state"),
    "buffers": (
        "buffers, such as running means, are each rank's own",
        "DDP with broadcast_buffers=True, or broadcast before evaluation and saving"),
    "learning-rate": (
        "lr does not fit the minibatch: the rule goes with the rows of a whole step, "
        "not with the number of devices",
        "same rows a step: lr stays. W times the rows: W * lr for SGD, sqrt(W) * lr "
        "for Adam, with warm-up"),
    "schedule": (
        "scheduler.step() is called for each rank or micro-batch: warm-up and decay end"
        " as many times too early",
        "call it once after optimizer.step(); if it was made for so many calls, "
        "ignore=['schedule']"),
}


def finding(code, number, says, rank=None, step=None, parameter=None):
    """Make a Finding; cause and repair are those of its code."""
    return Finding(code, number, says, *WORDS[code], rank, step, parameter)


def check_codes(ignore):
    """Raise ValueError unless `ignore` is a list of codes that there are."""
    if isinstance(ignore, str) or not {*ignore} <= {*WORDS}:
        raise ValueError(f"ignore must be a list of codes, such as {[*WORDS][:2]}, got "
                         f"{ignore!r}")


def so_many(count, noun):
    """Return how many there are, in words."""
    return f"{count} {noun}{'s' * (count != 1)}"


def few(items):
    """Return the first five items as text."""
    return ", ".join(map(str, items[:5])) + (", ..." if len(items) > 5 else "")
