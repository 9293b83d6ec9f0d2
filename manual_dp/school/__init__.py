"""Exercises: the checks, and the grading of what learners hand in."""
