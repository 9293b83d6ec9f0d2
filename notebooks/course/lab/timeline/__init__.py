"""The timeline of a run: what each rank did, from when to when.

    spans      what is noted, on one clock for all ranks, and sums of it
    record     the steps of a real run, noted on each rank
    pace       how long the parts of a step last, in ticks
    paced      a real run whose parts are made to last whole ticks
    predict    the same without a run, on a clock that is only counted
    chrome     spans as a file that trace viewers open
    profiler   what torch's own profiler says of the same steps
"""
