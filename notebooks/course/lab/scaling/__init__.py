"""How training scales with ranks: the laws, and what this machine does.

    laws       speed-up, efficiency, Amdahl's law and its fit, break-even
    measure    seconds on this machine: ranks, threads, small batches
    target     steps that a size of minibatch needs until the network is good enough
    few        what few rows a rank do to accuracy
    device     a device that works later, and why a clock has to wait for it
"""
