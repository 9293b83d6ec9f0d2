"""Exercises: the checks, and the grading of what learners hand in.

    exercise    what an exercise is, and what is said of numbers that are not right
    sums        are these the sums over ranks, and if not, whose numbers are they?
    checks      `check`, which a notebook calls
    ps1 ... ps9 the problem sets: in each, judge.py knows what is right, and run.py,
                which answers may see, runs them
    lessons     the same for the functions that learners write in a lesson; not graded
    tools       what several sets share; answers may see most of it
    grader      the same judgement for what is handed in, in a process of its own
"""
