"""What lessons look at training with, and what they draw.

    figures     every picture of the course
    sends       who sends what to whom, in which step: from a run of the function
    wire        what devices send one another in a step, as a log
    weigh       what a network computes, and what its gradients weigh
    ledger      every method of training beside one device: `compare`
    gpu         what this machine's GPUs can show: `bench --gpu`
    plan        a step on more devices, predicted: `plan`
"""
