"""Problem set 3: what more devices change: batch, learning rate, rows, accuracy.

    judge      what is right: plans and rates
    epoch      the same for the shards of an epoch
    accuracy   the same for a test on all devices
    run        how answers are run: seen by answers
"""
