"""How answers to the exercises of lessons are run: most as in a problem set."""

from manual_dp.school.lessons.checkpoints import resume  # noqa: F401
from manual_dp.school.lessons.gradients import accumulate, bucket  # noqa: F401
from manual_dp.school.lessons.memory import zero_bytes  # noqa: F401
from manual_dp.school.lessons.messages import exchange, open_group, ring  # noqa: F401
from manual_dp.school.lessons.prices import seconds  # noqa: F401
from manual_dp.school.lessons.replicas import forward  # noqa: F401
from manual_dp.school.lessons.ring import allgather, reduce_scatter  # noqa: F401
from manual_dp.school.lessons.rows import rows_to_go  # noqa: F401
from manual_dp.school.lessons.scaling import amdahl  # noqa: F401
from manual_dp.school.lessons.training import evaluate, sampler  # noqa: F401
from manual_dp.school.ps1.run import (  # noqa: F401
    allreduce,
    get_params,
    sgd,
    split_batch,
    train_batch,
)
from manual_dp.school.ps3.run import evaluate_accuracy, learning_rate  # noqa: F401
from manual_dp.school.ps4.run import average_in_hooks as hook  # noqa: F401
