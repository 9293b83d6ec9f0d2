"""Problem set 9, predict before you pay: the exercises.

What is drawn and what is right stands in prices.py, programs.py, overlap.py,
scaling.py, memory.py and hosts.py.
"""

from manual_dp.school.exercise import Exercise
from manual_dp.school.ps9 import hosts, memory, overlap, prices, programs, scaling

EXERCISES = [
    Exercise("ps9/fit", 2, prices.draw_fit, prices.judge_fit),
    Exercise("ps9/allreduce_seconds", 3, prices.draw_prices, prices.judge_prices),
    Exercise("ps9/halving_doubling", 4, programs.draw_halving, programs.judge_halving),
    Exercise("ps9/two_level", 4, programs.draw_levels, programs.judge_levels),
    Exercise("ps9/finish", 3, overlap.draw, overlap.judge,
             answers=("finish", "best_cap"), cells=("finish",)),
    Exercise("ps9/best_world_size", 4, scaling.draw, scaling.judge,
             answers=("step_seconds", "best_world_size", "first_slower"),
             cells=("best_world_size",)),
    Exercise("ps9/zero_bytes", 3, memory.draw, memory.judge,
             answers=("zero_bytes", "fewest_ranks"), cells=("zero_bytes",)),
    Exercise("ps9/place", 2, hosts.draw_places, hosts.judge_places),
    Exercise("ps9/rows_left", 3, hosts.draw_rows, hosts.judge_rows),
]
WORDS = {"words": 4}  # points that a person gives, by grade id
