"""What lessons show and check with: the two names that every lesson needs.

    check   is this answer right? And if not, why not?
    show    the source of a function, with its links
"""

from course.school.checks import check
from manual_dp.lab.show import show

__all__ = ["check", "show"]
