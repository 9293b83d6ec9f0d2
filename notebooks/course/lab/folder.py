"""The old name of what `notebook` has; to be deleted with its last user."""

from course.lab.notebook import need_folders

__all__ = ["need_folders"]
