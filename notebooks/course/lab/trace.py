"""The old name of what `timeline` has; to be deleted with its last user."""

from course.lab.timeline import all_reduces

__all__ = ["all_reduces"]
