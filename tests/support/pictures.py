"""Every picture of the course that is an SVG, at the ends of what its lesson allows.

`python -m tests.support.pictures` stores a hash of each, and of each SVG in the lessons'
outputs, in tests/golden/pictures.json. Look at every picture whose hash is new:
`git diff tests/golden` names it.
"""

import functools
import hashlib
import json
from pathlib import Path

import nbformat

from course.lab.figures import bars, boxes, graph, player, step
from course.lab.send_log import Sent
from manual_dp.allreduce import WAYS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/pictures.json"


def ring(ranks):
    return [Sent(rank, (rank + 1) % ranks, "chunk", 1_806_952) for rank in range(ranks)]


@functools.cache
def pictures():
    """Return a list of (name, picture), each drawn once."""
    made = {}
    for n in range(2, 9):
        made[f"step of {n}"] = step.draw(n, 4)
    made["step of 8 rows"] = step.draw(8, 8)
    made["step of one row"] = step.draw(2, 1)
    made["memory of 1"] = boxes.memory({"get_params": [5]})
    made["memory of 4"] = boxes.memory(
        {"p.to(device)": [7] * 4, "get_params": [*range(4)]}
    )
    made["memory of 8"] = boxes.memory(
        {
            "p.to(device)": [7] * 8,
            "get_params": [*range(8)],
            "pairs": [1, 1, 2, 2, 3, 3, 4, 4],
        }
    )
    made["shards"] = bars.shards(
        {
            "5 rows over 4": [2, 2, 1, 0],
            "2 rows over 8": [1, 1] + [0] * 6,
            "60 rows over 8": [8] * 7 + [4],
            "3 rows over 1": [3],
        }
    )
    for sizes in ([3, 3, 3, 1], [2, 2, 1, 0], [1, 1], [8] * 7 + [2]):
        made[f"weights {sizes}"] = bars.weights(sizes)
    for function in WAYS.values():
        for n in range(2, 9):
            made[f"{function.__name__} {n}"] = player.play(function, n)
            made[f"{function.__name__} {n}, stills"] = player.stills(function, n)
    for n in range(2, 9):
        made[f"ticks {n}"] = player.ticks(WAYS, n)
    sizes = [
        ("b4", 10),
        ("W4", 1280),
        ("b3", 128),
        ("W3", 102_400),
        ("b2", 50),
        ("W2", 25_000),
        ("b1", 20),
        ("W1", 500),
    ]
    made["buckets"] = bars.buckets(
        {
            "cap 25 MiB": [sizes],
            "cap 0.05 MiB": [sizes[:4], sizes[4:]],
            "cap 0.001 MiB": [[size] for size in sizes],
        }
    )
    for n in (2, 4, 8):
        zeros = [(sent.source, sent.target, 0) for sent in ring(n)]
        numbers = []
        for i in range(1, n):
            numbers += [(sent.source, sent.target, i) for sent in ring(n)]
        runs = {
            "zeros": (zeros, [1] * n, [2] * n),
            "numbers": (numbers, [1] * n, [n * (n + 1) / 2] * n),
        }
        made[f"messages of {n}"] = graph.messages(runs, n)
    return [*made.items(), *processes().items()]


def processes():
    """Return {name: picture} of ranks as processes, and of what they wait for."""
    made = {}
    for n in (1, 2, 3, 8):
        numbers = [10.0 * rank for rank in range(n)]
        made[f"worlds of {n}"] = boxes.worlds(numbers, numbers)
    for ranks in (2, 4, 8):
        start = [(rank + 1, rank + 1, rank) for rank in range(ranks)]
        made[f"relay, {ranks} ranks"] = boxes.relay([start] * ranks)
    one, two = ("step 1", 1.0, 51.0), ("step 2", 50.0, 51.0)
    made["calls that mix"] = boxes.calls(
        [[one, ("step 2", 2.0, 62.0)], [two, ("step 3", 60.0, 62.0)]]
    )
    made["calls that meet"] = boxes.calls([[one], [("step 1", 50.0, 51.0)]])
    made["a call is missing"] = boxes.calls([[one, ("step 2", 2.0, 2.0)], [two]])
    for count, ranks in ((1, 1), (2, 2), (2, 3), (3, 2)):
        hosts = []  # of each its (local rank, rank)
        for first in range(0, count * ranks, ranks):
            hosts.append([(local, first + local) for local in range(ranks)])
        made[f"hosts {count} {ranks}"] = boxes.hosts(hosts)
    made["hosts, unequal"] = boxes.hosts([[(1, 7), (0, 0)], [(0, 2)]])
    return made


def hashes():
    """Return {name: hash} of the pictures drawn now, and of those that lessons store."""
    return {
        "drawn": {name: short(picture.text) for name, picture in pictures()},
        "stored": {name: short(text) for name, text in stored()},
    }


def stored():
    """Yield (lesson and cell, text) of each SVG in a lesson's outputs, but a measured one."""
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.id == "real-run":  # drawn from seconds, so other at each refresh
                continue
            for output in cell.get("outputs", []):
                if text := output.get("data", {}).get("image/svg+xml"):
                    yield f"{path.stem} {cell.id}", "".join(text)


def short(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(hashes(), indent=1) + "\n")
