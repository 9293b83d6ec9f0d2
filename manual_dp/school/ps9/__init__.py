"""Problem set 9: predict before you pay.

    run        how answers are run; answers may see it
    judge      the exercises
    prices     what is drawn and right for a link and for the ways to sum
    programs   the same for all-reduces as programs of ranks
    overlap    the same for buckets
    scaling    the same for the best number of ranks
    memory     the same for ZeRO
    hosts      the same for places on hosts, and for the rows that are left
    form       what to say of an answer that is no number
"""
