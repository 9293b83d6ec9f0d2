"""What lessons look at training with, and what they draw.

look at training
    sends       who sends what to whom, in which step: from a run of the function
    rounds      ranks as small programs, step by step, in one process; what they send
    wire        what devices send one another in a step, as a log
    same        are two ways of training the same? step by step, or over a run
    timeline    what each rank does, and when: watched while it runs
    ticks       a slow wire and slow layers; runs in whole ticks
    turns       seconds of two sides that take turns
    price       seconds of a message and of a ring, from the numbers of a link

compare with, build on
    book        the code of d2l.ai 12.5, to compare with
    notebook    a function's source, a picture with sliders, the files beside a lesson
    torchrun    run a program under torchrun, with a deadline
    hosts       several hosts made of one machine, a torchrun on each
    figures     every picture of the course

measure
    ledger      every method of training beside one device: `compare`
    bench       every figure of speed: `bench`
"""
