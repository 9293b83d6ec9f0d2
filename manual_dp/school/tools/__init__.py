"""What several problem sets share.

Open to answers:

    plain    numbers as nested lists
    images   images for LeNet, and which weights they go through
    ranks    run on ranks, and watch their collectives
    rounds   run a program for each rank, step by step
    run      call the answers to an exercise on one case
    alarm    end what takes too long

For judges alone:

    linear   a linear model: rows, gradients, steps
"""
