"""Problem set 2: all-reduce that scales, as programs that send messages.

    judge   what is drawn, and how many steps and numbers are enough
    sums    are these the sums, and if not, whose numbers are they?
    run     how answers are run: seen by answers
"""
