"""Problem set 2: all-reduce that scales, as programs that send messages.

    judge   what is drawn, and how many steps and numbers are enough
    run     how answers are run: seen by answers
"""
