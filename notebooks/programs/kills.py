"""Kill a rank at a random moment, again and again: does each run end as if nothing was?

    python kills.py --times 5 --out kills.json

Each run is train_ddp.py on two hosts of two ranks. Its weights are compared, bit for
bit, with those of a run that nobody disturbed. The status is 0 if all are equal.
"""

import argparse
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from course.lab.hosts import on_hosts
from manual_dp.files import write_json

EPOCHS = 6


def start(hosts, path):
    """Start the program on two hosts; return their torchruns."""
    program = Path(__file__).with_name("train_ddp.py")
    return [
        hosts.type(
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 2 --nproc-per-node 2 "
            "--max-restarts 3 --rdzv-backend c10d --rdzv-id kills "
            f"--rdzv-endpoint 127.0.0.1:29400 --local-addr 127.0.0.{host + 1} "
            f"--rdzv-conf is_host={int(host == 0)} '{program}' --float64 "
            f"--epochs {EPOCHS} --checkpoint '{path}'"
        )
        for host in (0, 1)
    ]


def epochs(path):
    """Return how many epochs the file is after."""
    with suppress(FileNotFoundError):
        return torch.load(path)["epoch"] + 1
    return 0


def kill(hosts, path, draw):
    """Kill one of four ranks, some time after some epoch; return what was so then."""
    after, rank, pause = (
        draw.randint(1, 4),
        draw.randint(0, 3),
        draw.uniform(0, 0.2),
    )
    torchruns = start(hosts, path)
    while epochs(path) < after and all(run.is_alive() for run in torchruns):
        time.sleep(0.02)
    time.sleep(pause)
    ranks = psutil.Process(torchruns[rank // 2].pid).children()
    killed = {"rank": rank, "epochs_saved": epochs(path)}
    sorted(ranks, key=lambda process: process.pid)[rank % 2].kill()
    for run in torchruns:
        run.join()
    codes = [run.exitcode for run in torchruns]
    return killed | {"finished": codes == [0, 0] and epochs(path) == EPOCHS}


def kills(hosts, folder, times, seed):
    """Return, for each run, when which rank died, and whether it ended all the same."""
    draw, whole, runs = random.Random(seed), f"{folder}/whole.pt", []
    for run in start(hosts, whole):
        run.join()
    expected = torch.load(whole)["model"]
    for number in range(times):
        path = f"{folder}/{number}.pt"
        killed = kill(hosts, path, draw)
        ended = torch.load(path)["model"]
        runs.append(
            killed
            | {
                "equal": all(
                    torch.equal(ended[name], weight)
                    for name, weight in expected.items()
                )
            }
        )
    return runs


def main():
    """Read the command line, run, and write what became of each run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5, help="runs")
    parser.add_argument(
        "--seed", type=int, default=0, help="of epoch, rank and moment"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="write JSON here"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = on_hosts(
            kills, folder, args.times, args.seed, timeout=120 * args.times
        )
    write_json(args.out, {"seed": args.seed, "runs": runs})
    return 0 if all(run["finished"] and run["equal"] for run in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
