"""One fit may be luck: fit alpha and beta again and again, and keep the errors.

    once    measure, fit by three sizes, predict five others
    trials  the same on 2 ranks and on 4, several times: the errors

    python -m course.lab.network.trials --times 20 --out fits.json
"""

import argparse
from pathlib import Path

import torch.distributed as dist

from course.lab.network import fit
from course.lab.progress import bar
from manual_dp.files import write_json

KNOWN = [2**12, 2**18, 2**24]                    # bytes, to fit by
OTHERS = [2**13, 2**15, 2**20, 2**21, 2**23]     # to predict
WORLD_SIZES = (2, 4)
REPEAT = 15                                      # times that a size is timed


def once(world_size):
    """Time torch's all-reduce; return {size: seconds}, the Fit, and its error.

    The Fit is by the sizes of KNOWN, the error that of OTHERS, in the median.
    """
    took = fit.measure(world_size, sorted(KNOWN + OTHERS), REPEAT, dist.all_reduce)
    found = fit.fit({size: took[size] for size in KNOWN}, world_size)
    new = {size: took[size] for size in OTHERS}
    return took, found, fit.error(found, world_size, new)


def trials(times):
    """Yield for each time {"2 ranks": error, "4 ranks": error}."""
    for _ in range(times):
        yield {f"{n} ranks": round(once(n)[2], 3) for n in WORLD_SIZES}


def main(argv=None):
    """Read the command line, fit, and write the errors after each time."""
    parser = argparse.ArgumentParser("python -m course.lab.network.trials")
    parser.add_argument("--times", type=int, default=20, help="for each world size")
    parser.add_argument("--out", type=Path, required=True, help="write JSON here")
    args = parser.parse_args(argv)
    errors = []
    for found in bar(trials(args.times), "trials", args.times):
        errors.append(found)
        write_json(args.out, {"known": KNOWN, "others": OTHERS, "errors": errors})


if __name__ == "__main__":
    main()
