"""Right answers as different people write them: {exercise: {style: cell}} a file."""
