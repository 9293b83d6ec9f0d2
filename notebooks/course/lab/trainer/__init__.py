"""Train LeNet or a ResNet by any method on any number of ranks: `train`.

    methods    what each method wraps a network in, and which devices it takes
    step       one step: microbatches, mixed precision, clipping, one update
    rows       which rows an epoch still has
    keeper     the run's checkpoint
    agree      what fails on one rank fails on all
    joined     the same runs on ranks that torchrun has started, on several hosts
    epochs     what a rank does in a run: epochs of steps, test accuracy, the clock
    runs       which runs are asked for; start them, one after another
    table      what they say about each other: speed-up, efficiency, accuracy
    command    the options on the command line
"""

from course.lab.trainer import joined
from course.lab.trainer.methods import METHODS
from course.lab.trainer.runs import checkpointed, done, kept, plans, run
from course.lab.trainer.table import report, summary, table

__all__ = ["METHODS", "checkpointed", "done", "joined", "kept", "plans", "report",
           "run", "summary", "table"]
