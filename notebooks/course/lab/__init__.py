"""What lessons look at training with, and what they draw.

    figures     every picture of the course
    sends       who sends what to whom, in which step: from a run of the function
    wire        what devices send one another in a step, as a log
    weigh       what a network computes, and what its gradients weigh
    ledger      every method of training beside one device: `compare`
    price       what an all-reduce sends by a formula, what a step costs on links
    same        are two ways of training the same? step by step, or over a run
    onestep     one step of a big network on ranks, beside one device
    programs    five programs that train on ranks, one right and four wrong
    trace       watch a rank: all-reduces, when gradients and buckets were ready
    timeline    what each rank did, and when: recorded, predicted, exported
    scaling     what more ranks bring: the laws, and seconds on this machine
    slow        a slow wire made on purpose, for all-reduces
    loading     a slow loader made on purpose: how long does each step wait?
    quiet       Lightning without a word, in a notebook and on its ranks
    laps        where the time of a step goes, in five parts
    local       local SGD: train alone, average the weights now and then
    replay      workers of different pace, waiting or not, on a clock of ticks
    kept        count the bytes that forward keeps for backward
    torchrun    run a program under torchrun, with a deadline
    hosts       several hosts made of one machine, and torchrun on each
    show        a function's source, in a notebook
    folder      the files that lie beside a lesson: are they here?
    progress    the progress bar of long commands
    book        the code of d2l.ai 12.5, to compare with
    claims      what is said about the subject, and what a run says of it
    trainer     any network by any method on any number of ranks: `train`
    bench       every figure of speed: `bench`
"""
