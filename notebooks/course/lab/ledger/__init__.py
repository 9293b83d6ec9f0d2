"""Every method side by side: does it train as one device does, and at what cost?

    compare     run the methods on the same minibatches; a table, a figure
    methods     the methods, each with its label
    plan        what they share: weights, minibatches, a step, taking notes

From a shell: `python -m course compare`.
"""
