"""Grade notebooks that were handed in; `python -m manual_dp grade`.

    command                       what is asked
    grade, journal                a class; what is done already
    submission, cells             one notebook of it: answers, by nbgrader's marks
    gradebook, students           who has what for each set
    words, sheet                  points that a person gives; tables for a spreadsheet
    feedback, pages, titles       a page for each student, one for the instructor
    mistakes                      what to teach again
    worker -> child -> answer     this side; the process beside; one job in a fork of it
    watch, usage, landlock, paths   limits: time, memory, files, what may be read
    jail, limits                  no other process is seen; none was touched
    apart, seal                   what measures answers is out of their reach
    litter                        folders of jobs, gone with them
    ranks                         `run_ranks` as answers have it
"""
