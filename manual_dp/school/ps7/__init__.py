"""Problem set 7: the learner writes the test, and bugs are planted to try it.

    judge        what is drawn, and how many points a test has earned
    run, clock   how answers are run, and on which machine: seen by answers
    given        what learners and programs have in common: seen by answers

and the programs that a test is tried on, right ones and planted bugs:

    steps, more_steps             a step on many devices            7.1
    trainers, broken_trainers     a training nobody looks into      7.2
    ranked                        a step on ranks                   7.3
    scripts                       what may become of a model        7.4
    charts                        what a bug does to each row       7.5
    checkpoints                   save, kill, resume                7.6
    machines                      two programs and a clock          7.7
"""
