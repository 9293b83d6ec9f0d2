"""The old name of what `notebook` has; to be deleted with its last user."""

from course.lab.notebook import bar

__all__ = ["bar"]
