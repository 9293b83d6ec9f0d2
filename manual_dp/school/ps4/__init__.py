"""Problem set 4: DDP by hand, on real ranks.

    judge      what is drawn, and what is right in each exercise
    truth      one device on minibatches that nobody split, to compare with
    messages   were the right all-reduces sent?
    words      how a learner is told what the ranks have done
    network    the network that is trained: seen by answers
    run        how answers are run: seen by answers
"""
