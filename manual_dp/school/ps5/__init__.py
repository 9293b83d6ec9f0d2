"""Problem set 5: ten broken programs, each with a clue and a repair.

    judge      what is drawn and what a repaired program does, where ranks are lists
    ranks      the same for the four programs that need ranks
    roll       a roll call of ranks: seen by answers
    run        how answers are run: seen by answers
    chart      what a notebook prints of a program, healthy or not
"""
