"""Problem set 1: train LeNet on many devices by hand, on plain tensors.

    judge   what is drawn and what is right
    run     how answers are run: seen by answers
"""
