"""Wrong answers, a file for each set: {exercise: (a right cell, its places, wrong ones)}.

A wrong answer is a right one with other words in some places, {place: words}; its name
is how the hint begins that a learner must be told.
"""
