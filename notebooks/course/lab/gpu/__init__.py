"""What one GPU can show, and what needs two: `python -m course bench --gpu`.

    bench     run all that the machine can; a report, a table
    equal     the device takes the CPU's step; the ledger of all methods on it
    sharing   ranks that share it through gloo; nccl on one rank
    mixed     mixed precision: losses, a step left out, clipping
    timeline  the parts of a step on the device's own clock; a clock that does not wait
    speed     images a second on the CPU and on the device
    pair      two GPUs: nccl, peer to peer, DataParallel beside DDP

Each function takes a device and returns plain numbers, so that all of it runs on the
CPU as well: torch.device("cpu") is one more device.
"""
