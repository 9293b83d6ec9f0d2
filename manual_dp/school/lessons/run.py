"""How answers to the exercises of lessons are run: most as in a problem set."""

from manual_dp.school.exercise import flat
from manual_dp.school.lessons.gradients import accumulate, bucket  # noqa: F401
from manual_dp.school.lessons.memory import zero_bytes  # noqa: F401
from manual_dp.school.lessons.messages import exchange, open_group, ring  # noqa: F401
from manual_dp.school.lessons.prices import seconds  # noqa: F401
from manual_dp.school.lessons.rows import rows_to_go  # noqa: F401
from manual_dp.school.lessons.scaling import amdahl  # noqa: F401
from manual_dp.school.lessons.training import (  # noqa: F401
    evaluate,
    resume,
    sampler,
)
from manual_dp.school.ps1.run import (  # noqa: F401
    allreduce,
    get_params,
    sgd,
    split_batch,
    train_batch,
)
from manual_dp.school.ps3.run import evaluate_accuracy, learning_rate  # noqa: F401
from manual_dp.school.ps4.run import average_in_hooks as hook  # noqa: F401
from manual_dp.school.tools.plain import numbers, tensor


def reduce_scatter(case, reduce_scatter):
    """Call it on all chunks; return the tensors that these were cut from."""
    return _on_chunks(case, reduce_scatter, _own)


def allgather(case, allgather):
    """Call it on all chunks; return the tensors that these were cut from."""
    return _on_chunks(case, allgather, _joined)


def _on_chunks(case, answer, form):
    kept = [tensor(row) for row in case["tensors"]]
    chunks = [list(t.tensor_split(len(kept))) for t in kept]
    returned = answer(chunks)
    return {"tensors": numbers(kept), "list": form(_rows(chunks)),
            "returned": form(_rows(returned))}


def _own(rows):
    return [row[rank] if any(isinstance(part, list) for part in row[rank:rank + 1])
            else row for rank, row in enumerate(rows)]


def _joined(rows):
    return [flat(row) for row in rows]


def _rows(chunks):
    # what a learner's code returns, or leaves in a list, may be anything
    rows = numbers(chunks) if isinstance(chunks, (list, tuple)) else []
    return [row for row in rows if isinstance(row, list)]
