"""Instruments that look at training from outside; no lesson builds them.

    cost        count what crosses between devices
    same        are two ways of training the same? step by step, or over a run
    wire        a wire between two devices that notes what it carries
    sends       record an all-reduce: who sends which chunk to whom, step by step
    crossing    what one step of DataParallel sends from device to device
    rounds      how long an all-reduce would take, by a stated model
    programs    five programs that train on ranks, one right and four wrong
    trace       watch a rank: all-reduces, when gradients and buckets were ready
    slow        a slow wire made on purpose, for all-reduces
    torchrun    run a program under torchrun, with a deadline
    show        a function's source, in a notebook
    progress    the progress bar of long commands
    book        the code of d2l.ai 12.5, to compare with
    claims      what is said about the subject, and what a run says of it
    figures     every picture of the course
    ledger      every method of training beside one device: `compare`
    bench       every figure of speed: `bench`
"""
