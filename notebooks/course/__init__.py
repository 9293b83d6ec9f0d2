"""What lessons show and check with: the two names that every lesson needs.

check   is this answer right? And if not, why not?
show    the source of a function, with its links
"""

from course.lab import ranges
from course.lab.notebook import show
from course.school.checks import check

__all__ = ["check", "show"]

ranges.watch()
