"""A network that is only counted: what all-reduces send on many ranks, and cost.

    ways        halving-doubling and a two-level ring, beside the core's all-reduces
    ledger      who sends how much to whom in which step, from a run without memory
    schedules   the same steps at up to thousands of ranks
    forms       the closed forms of these counts
    links       what a message costs on PCIe, NVLink, Ethernet, InfiniBand: sources
    price       seconds, from counts and links
    fit         alpha and beta of this machine, measured on ranks
    trials      such fits again and again: how far their predictions are off
    overlap     an all-reduce that runs while backward does; the best bucket
    plan        step time, efficiency, memory and cost for each number of devices
    cuts        the three cuts of lesson 1, priced
    published   what others have measured on hundreds of GPUs, and the plan's answer
"""
