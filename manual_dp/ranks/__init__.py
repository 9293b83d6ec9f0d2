"""A process per rank: start ranks, and let them send tensors to one another.

The names are in the order to read them. Each file here is a page of the course. launch/
and live/ are tools: one starts ranks for one call, the other keeps them running.
"""

from manual_dp.ranks.launch import RankError, run_ranks
from manual_dp.ranks.live import Ranks, load_ipython_extension
from manual_dp.ranks.collectives import (
    allgather,
    broadcast,
    checked_allreduce,
    reduce_scatter,
    ring_allreduce,
)
from manual_dp.ranks.bucket import Bucket, make_buckets
from manual_dp.ranks.ddp import DDP, BucketDDP, NaiveDDP
from manual_dp.ranks.checkpoint import CheckpointError, load, save
from manual_dp.ranks.resume import load_model, resume, snapshot

__all__ = [
    "run_ranks",
    "RankError",
    "Ranks",
    "load_ipython_extension",
    "broadcast",
    "ring_allreduce",
    "reduce_scatter",
    "allgather",
    "checked_allreduce",
    "make_buckets",
    "Bucket",
    "NaiveDDP",
    "BucketDDP",
    "DDP",
    "save",
    "load",
    "CheckpointError",
    "snapshot",
    "resume",
    "load_model",
]
