"""Grade notebooks that were handed in; `python -m manual_dp grade`.

    command, feedback         what is asked; the table and the pages that come out
    grade, submission, journal    a class, one notebook of it, what is done already
    worker -> child -> answer     this side; the process beside; one job in a fork of it
    watch, landlock, paths        limits: time, memory, files, what may be read
    ranks                     `run_ranks` as answers have it
"""
