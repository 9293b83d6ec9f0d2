"""Problem set 4: DDP by hand, on real ranks.

    judge      what is drawn, and what is right in each exercise
    truth      one device on minibatches that nobody split, to compare with
    run        how answers are run, and on which network: seen by answers
"""
