"""What lessons look at a training with, and what they draw.

look at a training
    allreduce_trace  who sends what to whom in an all-reduce, step by step
    rounds           ranks as small programs, step by step, in one process
    send_log         what devices send one another in a step, as a log
    equivalence      are two ways of training the same? step by step, or over a run
    timeline         what each rank does, and when: recorded while it runs
    slowdown         a slow wire and slow layers; runs in whole ticks
    stopwatch        seconds of both sides of a comparison, which take turns
    links            seconds of a message and of a ring, from the numbers of a link

compare with, build on
    d2l_code         the code of d2l.ai 12.5, to compare with
    notebook         a function's source, a picture with sliders, a lesson's files
    ranges           what a setting may be, and a word when it is something else
    torchrun         run a program under torchrun, with a deadline
    hosts            several hosts made of one machine, a torchrun on each
    figures          every picture of the course

measure
    ledger           every method of training beside one device: `compare`
    bench            every figure of speed: `bench`
"""
