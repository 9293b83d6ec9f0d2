"""Problem set 6: batch normalisation over ranks, and accumulation.

    judge        what is drawn and what is right: statistics, and a sum with a gradient
    norm         the same for batch normalisation
    accumulate   the same for accumulation, with and without DDP
    shards       what these share: uneven shards, and values rank by rank
    run          how answers are run: seen by answers
"""
