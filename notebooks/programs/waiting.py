"""Who waits for whom? Sleeps play the disk and the GPUs.

step   what a step takes beside its computing, with a loader's workers
loop   what a loop over devices takes, beside one device

Both return a multiple, so that no machine's speed is in it.

python programs/waiting.py     some seconds
"""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    """40 images, each of which takes 20 ms to decode."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        time.sleep(0.02)
        return i


def step(workers, compute=0.05):
    """Return how many times its computing the median step with 4 images takes."""
    batches = iter(DataLoader(Slow(), 4, num_workers=workers))
    next(batches)  # so the workers have started
    clock = [time.perf_counter()]
    for _ in batches:
        time.sleep(compute)
        clock.append(time.perf_counter())
    steps = [end - start for start, end in zip(clock, clock[1:])]
    return median(steps) / compute


def loop(devices, ask, seconds=0.1):
    """Return how long a loop over devices takes, as a multiple of one's computing.

    A device is a thread with a queue: it is told what to do, and Python goes on.
    ask: whether the loop asks each device for its loss at once, as `.item()` does.
    """
    queues = [ThreadPoolExecutor(1) for _ in range(devices)]
    start, losses = time.perf_counter(), []
    for queue in queues:
        loss = queue.submit(time.sleep, seconds)
        if ask:
            loss.result()  # waits until the device has come to it
        losses.append(loss)
    for loss in losses:
        loss.result()
    return (time.perf_counter() - start) / seconds


if __name__ == "__main__":
    print("a step takes, with")
    for workers in 0, 1, 2, 4:
        times = step(workers)
        print(f"  {workers} workers: {times:.1f} times its computing")
    print("the loop takes, in one device's time, with")
    for devices in 1, 2, 4:
        goes_on, asks = loop(devices, False), loop(devices, True)
        print(f"  {devices} devices: {goes_on:.1f}, {asks:.1f} if it asks")
