"""What is said about data-parallel training, and what two runs say of it.

    Claim       source, place, the words that stand there, question, condition
    CLAIMS      those of lesson 20, numbered from 1
    PROMISES    of speed, and of a trainer: those of lesson 21
    Verdicts    take two runs for each claim: true, false, or true if; print the table

    verdict = Verdicts()
    verdict(4, (even(8, 4), "8 rows over 4 GPUs"), (even(9, 4), "9 rows over 4 GPUs"))

The question of a claim is put so that the claim holds if the answer is yes. A run is a
pair: whether the answer is yes, and what was found. A claim with a condition is run
inside the condition, then outside of it. A claim without one is run as its source has
it, then as a control: a case in which the same measurement must answer the opposite.

Sources: Book = d2l.ai, section 12.5. U-Net, Deep Dive, Blog, ResNet-50 = four articles
on the web. Torch = documentation of DistributedDataParallel in torch 2.13. Guide =
LambdaLabs' distributed-training-guide. Lesson 20 has their titles.
"""

import textwrap
from collections import namedtuple

Claim = namedtuple("Claim", "source place words question condition", defaults=[""])

CLAIMS = [  # in the order of lesson 20
    Claim("Book", "12.5.6", "copy all the model parameters to all the devices",
          "Is the result a tensor of its own?",
          "the parameters are not on that device yet"),
    Claim("Book", "12.5.4",
          "the gradient with regard to the bias parameter is still zero",
          "Before any computation, does `.grad` hold zeros in PyTorch?"),
    Claim("Book", "12.5.4",
          "adds up all vectors and broadcasts the result back to all GPUs",
          "Does every rank end with the sum?"),
    Claim("Book", "12.5.5", "distribute a minibatch evenly across multiple GPUs",
          "Do all shards have the same number of rows?",
          "the number of GPUs divides the rows"),
    Claim("Book", "12.5.6",
          "In terms of the optimization algorithms, they are identical.",
          "Is every step within 1e-12 of one device, from equal weights, in float64?"),
    Claim("Book", "12.5.2",
          "parameter values across the GPUs are identical and synchronized",
          "Are the replicas equal, bit for bit, after a step?",
          "all ranks add in the same order"),
    Claim("Book", "12.5.1",
          "adding more GPUs does not allow us to train larger models",
          "Does a rank keep all weights, however many ranks there are?",
          "every rank keeps a whole replica"),
    Claim("Deep Dive", "step 5", "DDP launches separate processes for each GPU.",
          "Are there more processes after the call of DDP than before?"),
    Claim("U-Net", "Example 2",
          "performs parameter updates after synchronizing these gradients",
          "Does DDP's backward change a weight?"),
    Claim("Guide", "chapter 2",
          "`optimizer.step()` is a synchronization point across ALL processes",
          "Must rank 0 wait in it until the other ranks come?"),
    Claim("Torch", "a note", "Parameters are never broadcast between processes.",
          "Does rank 1 keep the weight that it was given?",
          "the constructor has ended"),
    Claim("Deep Dive", "step 5",
          "communicates gradients with others to keep models in sync",
          "Are the ranks' weights equal after five steps?", "the models begin equal"),
    Claim("ResNet-50", "third paragraph",
          "requires all GPUs to finish their forward and backward passes before the "
          "gradients are averaged",
          "Does every average come after the rank's last gradient?",
          "all gradients fit in one bucket"),
    Claim("Torch", "a note",
          "the gradient will be M times smaller [...] if the loss is summed",
          "Is DDP's gradient one device's, divided by the number of ranks?"),
    Claim("Torch", "a warning", "This module doesn't work with torch.autograd.grad",
          "Does a rank get the gradient of its own row only?"),
    Claim("Torch", "a note",
          "Buffers [...] are broadcast from the module in process of rank 0, to all "
          "other replicas in the system in every iteration.",
          "Does rank 1's forward see rank 0's buffer in three iterations of three?",
          "the iteration before was not under `no_sync`"),
    Claim("U-Net", "Example 1",
          "if I had two GPUs, the effective batch size becomes 64 * 2 = 128",
          "Is each rank's gradient that of all ranks' rows?"),
    Claim("U-Net", "Example 1",
          "inconsistencies between the state of parameters on different GPUs",
          "Do ranks hold different weights after five steps?"),
    Claim("U-Net", "Example 2", "It correctly achieves gradient synchronization",
          "Is each rank's gradient that of all ranks' rows?"),
    Claim("U-Net", "Example 2",
          "the same issues with learning rate apply here as well",
          "Does a step at 0.001 miss one GPU's step at 0.001, with the same rows?"),
    Claim("Deep Dive", "pitfall 3",
          "Setting batch_size=32 for DataParallel means 32 total, but actually each "
          "GPU gets 32.",
          "Does a step take `batch_size` rows for each GPU?"),
    Claim("Blog", "causes, 1",
          "when moving from 1 to 4 GPUs, consider increasing your learning rate by 4x",
          "SGD: is one long step within a tenth of the way of several short ones?",
          "the gradient hardly changes from step to step: a small rate"),
    Claim("U-Net", "Example 3",
          "adjusting the learning rate by a factor equal to the number of GPUs",
          "Adam: does this factor keep the way better than its square root does?",
          "rows agree about a weight more than they differ"),
    Claim("Blog", "causes, 2",
          "With fewer steps per epoch in multi-GPU training, schedulers need "
          "adjustment",
          "Does a cosine that was made for one GPU end above 0?",
          "each GPU takes as many rows a step as the one GPU did, and the schedule "
          "counts steps"),
    Claim("ResNet-50", "Example 2",
          "The distributed sampler ensures that each process receives a different "
          "subset of the training data.",
          "Is every row dealt only once in an epoch?",
          "the number of ranks divides the rows"),
    Claim("ResNet-50", "Example 2",
          "Important for shuffle across multiple epochs with DDP",
          "Does the order change from epoch to epoch?"),
    Claim("ResNet-50", "Example 2", "print every 200 mini-batches (rank 0)",
          "Does rank 0 print a line in an epoch of CIFAR-10?",
          "a GPU has 200 steps in an epoch, or more"),
    Claim("Blog", "strategies",
          "the data is only shuffled within the subset, not across the subsets",
          "Does rank 0 see the same rows in every epoch?"),
    Claim("Deep Dive", "pitfall 2",
          "Set different seeds or use DistributedSampler to ensure each GPU gets "
          "unique data batches.",
          "Does each row go to one GPU only in an epoch?",
          "you use the sampler, and the number of ranks divides the rows"),
    Claim("Deep Dive", "pitfall 2",
          "Not setting different random seeds per GPU leading to identical data "
          "batches.",
          "Do all GPUs get the same batches from equal seeds?", "there is no sampler"),
    Claim("Blog", "causes, 1",
          "Larger effective batch sizes produce different batch statistics",
          "Do the statistics differ from those of one GPU with the old minibatch?",
          "the rows of one replica grow"),
    Claim("Blog", "downloads", "Only main process (rank 0) downloads data",
          "Does exactly one process download?",
          "the process group is open when the question is asked"),
    Claim("U-Net", "Example 1", "local_rank = int(dist.get_rank())",
          "Is it the number of the rank's GPU in its machine, for all ranks?",
          "there is one machine"),
    Claim("ResNet-50", "Example 3",
          "This allows us to train with a large effective batch size",
          "Is the gradient that of the whole minibatch?",
          "each mean loss is divided by the number of parts, and parts are equal"),
    Claim("ResNet-50", "Example 3",
          "The key is to call .zero_grad() less frequently than calling .step().",
          "Do eight backwards move the weight as two large minibatches do?"),
]

PROMISES = [  # in the order of lesson 21
    Claim("ResNet-50", "second paragraph",
          "we must ensure the weights are synchronized, or the training will not "
          "converge effectively",
          "Without any exchange, is every rank right on less than 80 %?"),
    Claim("ResNet-50", "fourth paragraph",
          "the larger the dataset [...], the more dominant communication overhead "
          "becomes",
          "Does a rank send more bytes for each operation?"),
    Claim("ResNet-50", "fourth paragraph", "the larger the model",
          "Does a rank send more bytes for each operation?",
          "a row uses each new weight less often than the old ones"),
    Claim("Deep Dive", "step 5",
          "This reduces bottlenecks compared to DataParallel.",
          "Do fewer bytes go in and out of the busiest device, by a tenth or more?",
          "there are more than two devices"),
    Claim("Deep Dive", "myth 2", "More GPUs always speed up training proportionally.",
          "Are N ranks at least 0.8 N times as fast as one?"),
    Claim("Deep Dive", "myth 4",
          "Model parallelism is always superior because it handles bigger models.",
          "Is there room for stages, but not for replicas?",
          "no device has room for the whole model, and the only other choice is whole "
          "replicas"),
    Claim("Blog", "causes, 3",
          "Different synchronization strategies can affect weight updates and "
          "convergence patterns.",
          "Do the weights differ by more than 1e-12, in float64?",
          "a strategy leaves out exchanges"),
    Claim("Blog", "reproducibility",
          "by default, the seed is [...] not automatically propagated to worker "
          "processes or DataLoader generators",
          "Do two runs draw differently?"),
    Claim("Blog", "reproducibility",
          "in the CLI config you cannot specify workers=True",
          "Is the seed kept from the workers?"),
    Claim("Blog", "the data module",
          "Lightning needs the following things: [...] train_loader()",
          "Does Lightning train with a data module of this function?"),
    Claim("Blog", "lightning_train.py",
          'Options include "dp" (data parallel), "ddp" (distributed data parallel), '
          '"auto"',
          "Does the Trainer take all of them?"),
    Claim("Blog", "appendix, 2", "Train/eval mode switching",
          "Is every step in its own mode?"),
    Claim("Blog", "appendix, 9",
          "Performs sanity validation batch before training to catch errors early",
          "Does an error in validation come before the first training step?"),
]


class Verdicts:
    """Hold the verdict of each of `claims`, from two runs of each."""

    def __init__(self, claims=CLAIMS):
        self.claims = list(claims)
        self.given = {}  # {number: "true", "false" or "true if"}

    def __call__(self, number, run, control):
        """Print claim `number`, its question, what both runs found, and the verdict.

        run, control: (holds, found), where holds is True or False, computed. The two
        must differ: a measurement that answers the same in both decides nothing.
        Raises TypeError or ValueError, and then keeps nothing.
        """
        _check(number, run, control, self.claims)
        claim = self.claims[number - 1]
        names = ("inside:", "outside:") if claim.condition else ("run:", "control:")
        self.given[number] = _verdict(run[0], claim.condition)
        print(f"{number}. {claim.source}, {claim.place}:", _quoted(claim, 3))
        print("  ", claim.question)
        for name, (holds, found) in zip(names, (run, control)):
            print(f"   {name:8} {'yes' if holds else 'no':3}  {found}")
        print("  ", " ".join([self._said(number).upper(), *self._depends(number)]))

    def table(self):
        """Return all claims as text, with their verdicts and conditions or a "?"."""
        wide = max(len(claim.source) for claim in self.claims)
        lines = [f"{'':3} {'verdict':7}  {'source':{wide}}  words"]
        for number, claim in enumerate(self.claims, 1):
            lines.append(f"{number:3} {self._said(number):7}  {claim.source:{wide}}  "
                         + _quoted(claim, wide + 15))
            lines += [f"{'':{wide + 15}}if {condition}"
                      for condition in self._depends(number)]
        return "\n".join(lines)

    def _said(self, number):
        return self.given.get(number, "?")

    def _depends(self, number):
        return [self.claims[number - 1].condition] * (self._said(number) == "true if")


def _quoted(claim, indent):
    """Return the words in quotation marks; lines after the first are indented."""
    return f"\n{'':{indent}}".join(textwrap.wrap(f'"{claim.words}"', 72))


def _verdict(holds, condition):
    return ("true if" if condition else "true") if holds else "false"


def _check(number, run, control, claims):
    if type(number) is not int or not 1 <= number <= len(claims):
        raise ValueError(f"claims have numbers from 1 to {len(claims)}, got {number!r}")
    for name, (holds, found) in (("run", run), ("control", control)):
        if type(holds) is not bool:
            raise TypeError(f"claim {number}, {name}: holds must be True or False, "
                            f"got {holds!r}")
        if not isinstance(found, str) or not found.strip():
            raise ValueError(f"claim {number}, {name}: say what was found, "
                             f"got {found!r}")
    if run[0] == control[0]:
        raise ValueError(f"claim {number}: both runs answer {run[0]} "
                         f"({run[1]}; {control[1]}), so they decide nothing")
