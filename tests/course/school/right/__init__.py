"""Right answers beside the solutions, a file for each set: {exercise: {style: cell}}."""
