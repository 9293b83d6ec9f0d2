"""Wrong answers to the lessons' exercises: {exercise: {mistake: (hint, cell)}}.

Most are those of a problem set. The ring's halves are written anew: they work on the
chunks of all ranks.
"""

from tests.support.wrong import ps1, ps3

REDUCE_SCATTER = """
def reduce_scatter(chunks):
    world_size = len(chunks)
    for step in range(world_size - 1):
        for rank in range(world_size):
            peer = (rank + 1) % world_size
            i = (rank - 1 - step) % world_size
            chunks[peer][i].add_(chunks[rank][i])
"""
ALLGATHER = """
def allgather(chunks):
    world_size = len(chunks)
    for step in range(world_size - 1):
        for rank in range(world_size):
            peer = (rank + 1) % world_size
            i = (rank - step) % world_size
            chunks[peer][i].copy_(chunks[rank][i])
"""
REDUCES = {
    "does nothing": ("the tensors hold what they held", "for step in range", "return\n    "
                     "for step in range"),
    "one step too few": ("chunk 0 on rank 0 holds", "range(world_size - 1)",
                         "range(world_size - 2)"),
    "one step too many": ("chunk 0 on rank 0 holds", "range(world_size - 1)",
                          "range(world_size)"),
    "starts with the rank's own chunk": (
        "the chunks are finished on other ranks, chunk 0 on rank 2", "rank - 1 - step",
        "rank - step"),
    "starts two chunks back": (
        "the chunks are finished on other ranks, chunk 0 on rank 1", "rank - 1 - step",
        "rank - 2 - step"),
    "walks forward": ("chunk 0 on rank 0 holds", "rank - 1 - step", "rank + 1 + step"),
    "always its own chunk": ("chunk 0 on rank 0 holds", "(rank - 1 - step) % world_size",
                             "rank"),
    "copies and does not add": ("chunk 0 on rank 0 holds rank 1's", "add_", "copy_"),
    "puts a new tensor into the list": (
        "the list holds the sums", "chunks[peer][i].add_(chunks[rank][i])",
        "chunks[peer][i] = chunks[peer][i] + chunks[rank][i]"),
    "a new tensor that is lost": (
        "the tensors hold what they held", "chunks[peer][i].add_(chunks[rank][i])",
        "total = chunks[peer][i] + chunks[rank][i]"),
    "into the chunk after": (
        {"another chunk's numbers", "chunk 0 on rank 0"}, "chunks[peer][i].add_",
        "chunks[peer][(i + 1) % world_size].add_"),
    "the mean": ("this is the mean", "    for step in range", """\
    for row in chunks:
        for chunk in row:
            chunk.div_(world_size)
    for step in range"""),
    "returns the sums": ("the result is returned", "    for step in range", """\
    return [sum(row[rank] for row in chunks) for rank in range(world_size)]
    for step in range"""),
    "everything at rank 0": ("chunk 1 on rank 1 holds rank 1's", "    for step in range", """\
    for row in chunks[1:]:
        for i in range(world_size):
            chunks[0][i].add_(row[i])
    return
    for step in range"""),
}
GATHERS = {
    "does nothing": ("the tensors hold what they held", "for step in range", "return\n    "
                     "for step in range"),
    "adds what arrives": ("what arrives is added", "copy_", "add_"),
    "one step too few": ("nothing has been written into chunk 1 on rank 0",
                         "range(world_size - 1)", "range(world_size - 2)"),
    "goes on as reduce_scatter began": (
        "chunk 0 on rank 0 holds chunk 0 of rank", "(rank - step)", "(rank - 1 - step)"),
    "always its own chunk": ("nothing has been written into chunk 1 on rank 0",
                             "(rank - step) % world_size", "rank"),
    "sends backward": ("chunk 0 on rank 0 holds chunk 0 of rank", "(rank - step)",
                       "(rank + 1 + step)"),
    "puts another tensor into the list": (
        "the list holds", "chunks[peer][i].copy_(chunks[rank][i])",
        "chunks[peer][i] = chunks[rank][i]"),
    "writes one chunk off": (
        {"chunk 0 on rank 0 holds", "another chunk's numbers", "nothing has been written"},
        "chunks[peer][i].copy_", "chunks[peer][(i + 1) % world_size].copy_"),
    "everybody gets rank 0's": (
        "nothing has been written into chunk 1 on rank 0", "    for step in range", """\
    for row in chunks[1:]:
        for i in range(world_size):
            row[i].copy_(chunks[0][i])
    return
    for step in range"""),
    "returns them": ("the result is returned", "    for step in range", """\
    return [[chunks[i][i] for i in range(world_size)] for _ in chunks]
    for step in range"""),
    "zeros the rest": ({"nothing has been written", None, "another chunk's"},
                       "    for step in range", """\
    for rank, row in enumerate(chunks):
        for i in range(world_size):
            if i != rank:
                row[i].zero_()
    return
    for step in range"""),
}


def _changed(cell, old, new):
    if old not in cell:
        raise ValueError(f"no {old!r} to change")
    return cell.replace(old, new, 1)


ANSWERS = {
    "02/get_params": ps1.ANSWERS["get_params"],
    "03/allreduce": ps1.ANSWERS["allreduce"],
    "03/reduce_scatter": {name: (hint, _changed(REDUCE_SCATTER, *change))
                          for name, (hint, *change) in REDUCES.items()},
    "03/allgather": {name: (hint, _changed(ALLGATHER, *change))
                     for name, (hint, *change) in GATHERS.items()},
    "04/split_batch": ps1.ANSWERS["split_batch"],
    "05/sgd": ps1.ANSWERS["sgd"],
    "05/train_batch": ps1.ANSWERS["train_batch"],
    "06/evaluate_accuracy": ps3.ANSWERS["evaluate_accuracy"],
    "06/learning_rate": ps3.ANSWERS["learning_rate"],
}
