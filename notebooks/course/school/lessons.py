"""The exercises of lessons: each asks for the function that the lesson then shows.

Those that a problem set has as well stand there, under two names.
"""

from course.school import ps1, ps3, ps4

__all__ = ["ps1", "ps3", "ps4"]
