"""What an exercise gives away: tools, and how a check uses a learner's function.

A learner's code that is being graded can read all of this folder, and of the course
nothing else but lenet.py and devices.py. So no file here knows an answer: it turns
plain lists into tensors, calls the learner's functions, and returns plain lists.
"""
