"""Problem set 8: real models, other ways to synchronise, and a trainer.

    run, trainer   how answers are run; answers may see both
    judge          the exercises; what is drawn and right for most of them
    amp, averages  the same for mixed precision and for local SGD
    loaders        the same for a rank's loader
    schedule       the same for Lightning
"""
