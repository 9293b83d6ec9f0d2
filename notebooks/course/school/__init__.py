"""Exercises: the checks of lessons and problem sets, a file for each set or topic.

checks      exercise, check, about: what an exercise is made of, and compares with
answers     run a learner's answer in peace, and leave all as it was
lint        refuse an answer that is the course's own, or reaches into its check
draws       numbers, images; who worked on which rows; is it the sum?
ranks       answers on ranks: what they return, call, and wait for
linear      a linear model: batches, gradients, steps
ps1 ...     the exercises of each problem set; chart, planted: more of ps5, of ps7
messages, ddp, shards, memory, cost, claims, scripts    exercises of lessons, by topic
points      how many points a learner's copy of a set has: python -m course points ps1
"""
