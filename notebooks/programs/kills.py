"""Kill a rank at a random step, again and again: does each run end as if nothing was?

    python kills.py --times 10 --out kills.json

Each run trains on two hosts of two ranks. Its weights are compared, bit for bit, with
those of four ranks that nobody disturbed. The status is 0 if all are equal.
"""

import argparse
import random
import tempfile
from pathlib import Path

import torch

from course.lab.hosts import on_hosts, until_saved
from course.lab.notebook import bar
from manual_dp.files import write_json
from manual_dp.ranks import load

STEPS = 11  # of an epoch: 1,438 digits, 120 a step
TRAIN = [str(Path(__file__).with_name("train.py")), "--float64", "--epochs", "1",
         "--batch-size", "120", "--lr", "0.05", "--every", "1", "--checkpoint"]


def undisturbed(hosts, path):
    """Train on four ranks of one host; return its final checkpoint."""
    hosts.start(0, *TRAIN, path, ranks=4)
    told, = hosts.wait()
    if told.code:
        raise RuntimeError(f"the run that nobody disturbs failed: {told.err}")
    return load(path)


def killed(hosts, path, after, host, local_rank):
    """Kill a rank of this host after a step; return which step, and both codes."""
    for number in (0, 1):
        hosts.start(number, *TRAIN, path, options=["--max-restarts=3"])
    until_saved(path, after, hosts)
    hosts.end_rank(host, local_rank)
    found = load(path)
    step = STEPS * found["epoch"] + found["step"]
    return step, [told.code for told in hosts.wait()]


def kills(times, seed=0):
    """Yield, for each run, when which rank died, and whether it ended all the same."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        expected = on_hosts(1, undisturbed, Path(folder, "whole.pt"), own=False)
        for number in range(times):
            path = Path(folder, f"{number}.pt")
            after = draw.randint(1, STEPS - 3)
            host, local_rank = draw.randint(0, 1), draw.randint(0, 1)
            step, codes = on_hosts(2, killed, path, after, host, local_rank)
            ended = load(path)
            yield {
                "host": host, "rank": 2 * host + local_rank, "killed_after_step": step,
                "finished": codes == [0, 0] and ended["epoch"] == 1,
                "equal": all(map(torch.equal, ended["model"].values(),
                                 expected["model"].values())),
                "same_loss": ended["history"]["loss"] == expected["history"]["loss"]}


def main():
    """Read the command line, run, and write what became of each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10, help="runs")
    parser.add_argument("--seed", type=int, default=0, help="of step, host and rank")
    parser.add_argument("--out", type=Path, required=True, help="write JSON here")
    args = parser.parse_args()
    runs = []
    for run in bar(kills(args.times, args.seed), "kills", args.times):
        runs.append(run)
        write_json(args.out, {"seed": args.seed, "runs": runs})
    return 0 if all(run["finished"] and run["equal"] for run in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
