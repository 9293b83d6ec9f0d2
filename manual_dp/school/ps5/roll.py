"""A roll call of ranks, for programs in which some rank may stay away.

    Roll   in a rank: no collective begins before all ranks have come to it

A collective that some rank never calls would hang. Here every rank first signs for it
in the group's store, and looks who else has signed: a missing rank is a number.
"""

import time
from contextlib import ExitStack
from unittest.mock import patch

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from manual_dp.school.tools.ranks import COLLECTIVES, watched

PATIENCE = 15  # seconds, for ranks that never come


class Roll(ExitStack):
    """Watch the collectives of this rank's process, DDP's too, until the block ends.

    absent: how many ranks had not come to a collective when another was done with
    everything, or patience ran out.
    """

    def __enter__(self):
        self.store = dist.distributed_c10d._get_default_store()
        self.scope, self.absent, self.signing = 0, 0, False
        self.seen = self.enter_context(watched(self._sign))
        init = DDP.__init__

        def hooked(model, *args, **kwargs):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            init(model, *args, **kwargs)
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        self.enter_context(patch.object(DDP, "__init__", hooked))
        return self

    def call(self, function, *args):
        """Return `function(*args)`; or None, if it waited for an absent rank."""
        self.scope += 1
        self.signed, self.absent, self.signing = 0, 0, True
        self.seen.clear()
        try:
            return function(*args)
        except Exception:
            if not self.absent:
                raise
        finally:
            self.signing = False
            self.store.add(f"{self.scope} done", 1)

    def sizes(self):
        """Return how many numbers each all-reduce was handed since the last call."""
        return [call for call in self.seen if isinstance(call, int)]

    def _sign(self, name):
        if not self.signing or name not in COLLECTIVES:
            return
        self.signed += 1
        end, ranks = time.monotonic() + PATIENCE, dist.get_world_size()
        anywhere = f"{self.scope} {self.signed}"  # some may be in another collective
        here = f"{anywhere} {name}"
        self.store.add(here, 1)
        self.store.add(anywhere, 1)
        while True:
            over = (self.store.add(f"{self.scope} done", 0) or time.monotonic() > end
                    or self.store.add(anywhere, 0) == ranks)
            absent = ranks - self.store.add(here, 0)
            if not absent:
                return
            if over:
                self.absent = absent
                raise RuntimeError(f"{absent} ranks do not call {name}")
            time.sleep(0.001)
