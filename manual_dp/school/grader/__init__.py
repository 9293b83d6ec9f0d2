"""Grade notebooks that were handed in; `python -m manual_dp grade`.

    command, feedback         what is asked; the table and the pages that come out
    grade, submission, journal    a class, one notebook of it, what is done already
    worker -> child -> answer     this side; the process beside; one job in a fork of it
    watch, usage, landlock, paths   limits: time, memory, files, what may be read
    jail, limits                  no other process is seen; none was touched
    apart, seal                   what measures answers is out of their reach
    litter                        folders of jobs, gone with them
    ranks                         `run_ranks` as answers have it
"""
