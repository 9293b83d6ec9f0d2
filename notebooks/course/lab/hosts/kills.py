"""Kill a rank at a random step, again and again: does each run end as if nothing was?

    kill_once   one run on two hosts of two ranks; what became of it
    kills       several, each beside the weights of a run that nobody disturbed

    python -m course.lab.hosts.kills --times 10 --out kills.json
"""

import argparse
import random
import tempfile
from pathlib import Path

import torch

from course.lab.hosts.agents import on_hosts
from course.lab.hosts.reasons import reason
from course.lab.hosts.saved import saved, until_saved
from course.lab.progress import bar
from manual_dp.files import write_json

STEPS = 11  # of an epoch: 1,438 digits, 120 a step
TRAIN = ["-m", "manual_dp", "train", "--method", "ddp", "--float64", "--epochs", "1",
         "--batch-size", "120", "--lr", "0.05", "--every", "1", "--checkpoint"]
LONG = 1800  # seconds for a run, on a machine that others keep busy


def kill_once(path, step, host, which):
    """Train on two hosts, kill a rank after this step; return where, and both codes."""
    return on_hosts(2, _kill, path, step, host, which, timeout=LONG)


def kills(times, seed=0):
    """Yield, for each run, when which rank died, and whether it ended all the same."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole.pt")
        on_hosts(1, _undisturbed, whole, own=False, timeout=LONG)
        expected = saved(whole)
        for number in range(times):
            path = Path(folder, f"{number}.pt")
            after = draw.randint(1, STEPS - 3)
            host, which = draw.randint(0, 1), draw.randint(0, 1)
            rank, place, codes = kill_once(path, after, host, which)
            ended = saved(path)
            yield {
                "host": host, "rank": rank, "killed_after_step": place,
                "finished": codes == [0, 0] and ended["epoch"] == 1,
                "equal": same_weights(ended["model"], expected["model"]),
                "same_loss": ended["history"]["loss"] == expected["history"]["loss"]}


def same_weights(model, other):
    """Return whether two dicts of weights are equal, bit for bit."""
    return model.keys() == other.keys() and all(
        torch.equal(model[name], other[name]) for name in other)


def _undisturbed(hosts, path):
    hosts.start(0, *TRAIN, path, ranks=4)
    told, = hosts.wait()
    if told.code:
        raise RuntimeError(f"the run that nobody disturbs failed: {reason(told.err)}")


def _kill(hosts, path, step, host, which):
    for number in (0, 1):
        hosts.start(number, *TRAIN, path, options=["--max-restarts=3"])
    until_saved(path, step, hosts)
    rank = hosts.end_rank(host, which)
    found = saved(path)
    place = STEPS * found["epoch"] + found["step"]
    return rank, place, [told.code for told in hosts.wait()]


def main(argv=None):
    """Read the command line, run; return 0 if all runs ended well and alike."""
    parser = argparse.ArgumentParser("python -m course.lab.hosts.kills")
    parser.add_argument("--times", type=int, default=10, help="runs")
    parser.add_argument("--seed", type=int, default=0, help="of step, host and rank")
    parser.add_argument("--out", type=Path, required=True, help="write JSON here")
    args = parser.parse_args(argv)
    runs = []
    for run in bar(kills(args.times, args.seed), "kills", args.times):
        runs.append(run)
        write_json(args.out, {"seed": args.seed, "runs": runs})
    good = all(run["finished"] and run["equal"] for run in runs)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
