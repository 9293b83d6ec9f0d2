"""What `ring_allreduce` is judged with: the two halves of the ring."""


def reduce_scatter(rank, world_size, tensor):
    """Sum chunk `rank` up on rank `rank`."""
    yield from _walk(rank, world_size, tensor, 1, lambda chunk, came: chunk.add_(came))


def allgather(rank, world_size, tensor):
    """Hand each rank's own chunk round."""
    yield from _walk(rank, world_size, tensor, 0, lambda chunk, came: chunk.copy_(came))


def _walk(rank, world_size, tensor, back, write):
    chunks = tensor.tensor_split(world_size)
    for step in range(world_size - 1):
        i = rank - back - step
        came = yield (rank + 1) % world_size, chunks[i % world_size]
        write(chunks[(i - 1) % world_size], came)
