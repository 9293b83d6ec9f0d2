"""The command line of models/lightning.py: LightningCLI, with its answers in one line.

    Program   read a configuration, say what will run, run it
    main      run it; a wrong configuration ends in one line
    quiet     silence Lightning's hints and notes
"""

import logging
import sys
import warnings
from argparse import ArgumentError

from manual_dp.models.lightning import Images, LitLeNet  # before lightning
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException


class Program(LightningCLI):
    """Add two lines to what Lightning says: what will run, and how it ended."""

    def after_instantiate_classes(self):
        """Let fail what can while there is one process; print who computes."""
        trainer = self.trainer
        rows = self.datamodule.rows_of_a_rank(trainer.world_size)
        if trainer.is_global_zero:
            self.datamodule.prepare_data()
            print(f"accelerator {type(trainer.accelerator).__name__}, "
                  f"devices {trainer.num_devices}, "
                  f"strategy {type(trainer.strategy).__name__}, "
                  f"{trainer.world_size} x {rows} rows a minibatch", flush=True)

    def after_fit(self):
        """Print what was logged last."""
        if self.trainer.is_global_zero:
            print(", ".join(f"{name} {value:.4f}" for name, value in
                            sorted(self.trainer.callback_metrics.items())))


def main(args=None):
    """Run the command line. Logs and checkpoints are kept where they are asked for."""
    quiet()
    try:
        Program(LitLeNet, Images, None, args=args, seed_everything_default=0,
                trainer_defaults={"logger": False, "enable_checkpointing": False},
                parser_kwargs={"exit_on_error": False})
    except (ArgumentError, MisconfigurationException, OSError, TypeError,
            ValueError) as error:
        words = " ".join(str(error).split())
        print(f"manual_dp.models.lightning: error: {words}", file=sys.stderr)
        sys.exit(2)


def quiet():
    """Silence Lightning's hints and notes; errors stay."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning|torch|jsonargparse")
