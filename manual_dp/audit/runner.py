"""Run somebody's script in a rank, as python would; leave notes for the command.

    python -m manual_dp.audit.runner train.py --its --arguments

A script that does not call `watch` is watched from the moment it wraps a model in DDP.
Where it raises, or where it stands when it is asked, is written to the folder.
"""

import faulthandler
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

from manual_dp.audit import script


def main():
    """Run the script that the command line names."""
    folder, rank = Path(os.environ[script.FOLDER]), os.environ["RANK"]
    stands = open(folder / f"stands-{rank}", "w")  # noqa: SIM115 (until the end)
    faulthandler.register(signal.SIGUSR1, stands, all_threads=False)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    wrap = DistributedDataParallel.__init__

    def wrap_and_watch(model, *args, **kwargs):
        wrap(model, *args, **kwargs)
        if not script.FOLLOWED:
            script.watch(model)
    DistributedDataParallel.__init__ = wrap_and_watch
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:
        if not (isinstance(error, SystemExit) and not error.code):
            (folder / f"raised-{rank}").write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    main()
