"""What lessons look at training with, and what they draw.

look at training
    sends       who sends what to whom, in which step: from a run of the function
    wire        what devices send one another in a step, as a log
    weigh       what a network computes, sends, and keeps for backward
    same        are two ways of training the same? step by step, or over a run
    timeline    what each rank does, and when: watched, recorded, predicted
    ticks       a slow wire and slow layers; runs in whole ticks
    replay      workers of different pace, waiting or not, on a clock of ticks
    scaling     what more ranks bring: the laws, and seconds on this machine
    laps        where the time of a step goes, in five parts
    loading     a slow loader made on purpose: how long does each step wait?
    onestep     one step of a big network on ranks, beside one device

compare with, build on
    book        the code of d2l.ai 12.5, to compare with
    claims      what is said about the subject, and what a run says of it
    quiet       Lightning without a word, in a notebook and on its ranks
    notebook    a function's source, a progress bar, the files beside a lesson
    torchrun    run a program under torchrun, with a deadline
    hosts       several hosts made of one machine, and torchrun on each
    figures     every picture of the course

measure, plan, train
    ledger      every method of training beside one device: `compare`
    network     all-reduces counted and priced on thousands of ranks: `plan`
    gpu         what this machine's GPUs can show: `bench --gpu`
    plan        a step on more devices, predicted: `plan`
    bench       every figure of speed: `bench`
    trainer     any network by any method on any number of ranks: `train`
"""
