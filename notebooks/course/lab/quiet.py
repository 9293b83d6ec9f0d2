"""Lightning in a notebook and on its ranks: silent, and in processes that are there.

    quiet_trainer   a Trainer that prints and keeps only what it is asked for
    as_torchrun     tell a rank of `run_ranks` what torchrun would have told it
    beside          a callback: each step of Lightning beside one by hand

Lightning starts processes of its own, or takes those that torchrun has started. It
tells by the environment. So ranks that `run_ranks` or %ranks has started will do too:
they have their deadline, and nothing hangs.
"""

import os

import torch.distributed as dist
from torch.func import functional_call
from torch.nn import functional as F

from manual_dp.data import ensure_torchvision
from manual_dp.params import largest_difference

SILENT = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
          "enable_model_summary": False, "accelerator": "cpu"}


def quiet_trainer(**settings):
    """Make a Trainer; on ranks these are its devices, elsewhere it has one.

    settings: of the Trainer. Without them it keeps no logs, saves nothing, and prints
    neither bar nor summary.
    """
    ranks = as_torchrun() if dist.is_initialized() else 1
    from manual_dp.models.command import quiet  # before lightning
    quiet()
    import lightning
    own = {"devices": ranks, "strategy": "ddp" if dist.is_initialized() else "auto"}
    return lightning.Trainer(**{**SILENT, **own, **settings})


def as_torchrun():
    """Set this rank's variables as torchrun would; return the number of ranks.

    They stay until the rank ends. The group is open: address and port are not used.
    """
    rank, world_size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world_size,
                      LOCAL_WORLD_SIZE=world_size, MASTER_ADDR="localhost",
                      MASTER_PORT="1", TORCHELASTIC_RUN_ID="run_ranks")
    return dist.get_world_size()


def beside():
    """Make a callback that takes each step by hand, too, from the same weights.

    Plain SGD of the mean cross-entropy of `module(X)`, at the module's rate; the ranks'
    gradients are summed by all_reduce. Nothing may be drawn at random, as by dropout.
    `apart` holds the largest difference of a weight after a step.
    """
    ensure_torchvision()
    import lightning

    class Beside(lightning.Callback):
        apart, steps = 0.0, 0

        def on_train_batch_start(self, trainer, module, batch, index):
            X, y = batch
            own = {name: p.detach().clone().requires_grad_()
                   for name, p in module.named_parameters()}
            params, buffers = [*own.values()], {name: b.clone() for name, b in
                                                module.named_buffers()}
            y_hat = functional_call(module, {**own, **buffers}, X.to(params[0].dtype))
            F.cross_entropy(y_hat, y).backward()
            for p in params:
                if dist.is_initialized():
                    dist.all_reduce(p.grad)
            ranks = trainer.world_size
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            self.expected = [p.detach() - rate * p.grad / ranks for p in params]

        def on_train_batch_end(self, trainer, module, *_):
            new = [p.detach() for p in module.parameters()]
            self.apart = max(self.apart, largest_difference(new, self.expected))
            self.steps += 1

    return Beside()
