"""Wrong answers to the exercises of lessons in scripts.py.

<<NAME: code>> is right code in its place. Each entry of the dict below an answer puts a
mistake in place of some; its key is how the message to the learner begins.
"""

WRONG = {
    "resnet_cifar10/my_part": (
        """
from programs.resnet_ddp import crop_and_flip

def my_part(X, y, rows, rank, world_size, generator):
    <<BEFORE: pass>>
    images = <<CROP: crop_and_flip(X[rows], generator)>>
    return <<PART: images.chunk(world_size)[rank]>>, <<CLASSES: y[rows].chunk(world_size)[rank]>>
""",
        {
            "every rank has all rows": {"PART": "images", "CLASSES": "y[rows]"},
            "the classes are those of other rows": {
                "CLASSES": "y[:len(rows)].chunk(world_size)[rank]"
            },
            "together, the ranks have each row once": {
                "PART": "images[rank * 2 : rank * 2 + 2]",
                "CLASSES": "y[rows][rank * 2 : rank * 2 + 2]",
            },
            "they are neither cropped": {"CROP": "X[rows]"},
            "the images are right, but": {
                "CLASSES": "y[rows].flip(0).chunk(world_size)[rank]"
            },
            "an image is cropped by what": {
                "BEFORE": "rows = rows.chunk(world_size)[rank]",
                "PART": "images",
                "CLASSES": "y[rows]",
            },
        },
    ),
    "wrong_on_purpose/my_ring": (
        """
def my_ring(send, recv):
    rank, n = dist.get_rank(), dist.get_world_size()
    send_buff, recv_buff = <<FIRST: send.clone()>>, torch.zeros_like(send)
    accum = send.clone()
    for i in range(n - 1):
        out, box = send_buff, recv_buff
        if i % 2 == 1:
            out, box = <<TURN: box, out>>
        sending = dist.isend(<<OUT: out>>, (rank + 1) % n)
        <<TAKE: dist.recv(box, (rank - 1) % n)>>
        accum += <<ADD: box>>
        sending.wait()
    <<LAST: recv[:] = accum>>
""",
        {
            "each rank sends to the next": {
                "TAKE": "rank and dist.recv(box, (rank - 1) % n)"
            },
            "send has changed": {"FIRST": "send"},
            "recv is still 0": {"LAST": "recv = accum"},
            "every message carries 0": {"FIRST": "torch.zeros_like(send)"},
            "this is the mean": {"LAST": "recv[:] = accum / n"},
            "each adds up its own number": {"ADD": "send"},
            "each rank sends its own number": {"OUT": "send"},
            "add what has come, each": {"ADD": "out"},
            "a collective of torch's": {
                "LAST": "recv[:] = send; dist.all_reduce(recv)"
            },
        },
    ),
    "wrong_on_purpose/my_step": (
        """
from contextlib import nullcontext

loss = F.cross_entropy

def mine(X):
    return X[dist.get_rank() :: dist.get_world_size()]

def my_step(model, optimizer, X, y):
    <<BEFORE: pass>>
    parts = zip(mine(X).chunk(grad_accum), mine(y).chunk(grad_accum))
    for i, (X_part, y_part) in enumerate(parts, <<FIRST: 1>>):
        sync = <<SYNC: i % grad_accum == 0>>
        <<AHEAD: pass>>
        with nullcontext() if sync else model.no_sync():
            part = <<PART: loss(model(X_part), y_part)>> / <<DIVIDE: grad_accum>>
            part.backward()
        if <<STEP: i % grad_accum == 0>>:
            optimizer.step()
            <<CLEAR: optimizer.zero_grad()>>
""",
        {
            "the step is 4 times too long": {"DIVIDE": "1"},
            "the step is too short": {"DIVIDE": "(grad_accum * dist.get_world_size())"},
            "the step comes after the first": {"FIRST": "0"},
            "this is the step of the first": {"FIRST": "0", "DIVIDE": "1"},
            "the ranks end apart": {"SYNC": "i == 1"},
            "the gradients of the step before": {"CLEAR": "pass"},
            "they meet in every micro-batch": {"SYNC": "True"},
            "no_sync stands around backward": {
                "AHEAD": "ahead = loss(model(X_part), y_part)",
                "PART": "ahead",
            },
            "more rows at once": {
                "BEFORE": "optimizer.zero_grad(); loss(model(mine(X)), mine(y)).backward();"
                " optimizer.step(); return"
            },
            "all ranks must step": {"BEFORE": "dist.get_rank() or dist.barrier()"},
        },
    ),
    "lightning/yours": (
        """
from manual_dp.data import ensure_torchvision
ensure_torchvision()
import lightning as L

class Yours(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32),
                                 nn.Tanh(), nn.Linear(32, 10)).double()

    def training_step(self, batch, index):
        X, y = batch
        y_hat = self.net(X)
        <<LOSS: return F.cross_entropy(y_hat, y, label_smoothing=0.1)>>

    def configure_optimizers(self):
        half = self.trainer.estimated_stepping_batches // 2
        optimizer = torch.optim.SGD(self.parameters(), 0.1, <<MOMENTUM: 0.9>>)
        warm_up = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1, <<FACTOR: (step + 1) / half>>))
        return <<RULES: {"optimizer": optimizer,
                "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}>>
""",
        {
            "nothing was trained": {"LOSS": "F.cross_entropy(y_hat, y)"},
            "the scheduler moves once an epoch": {"RULES": "[optimizer], [warm_up]"},
            "the first rate is 0": {"FACTOR": "step / half"},
            "the warm-up takes all steps": {"FACTOR": "(step + 1) / half / 2"},
            "there is no warm-up": {"RULES": "optimizer", "FACTOR": "1"},
            "there is no momentum": {"MOMENTUM": "0"},
            "there is no label smoothing": {"LOSS": "return F.cross_entropy(y_hat, y)"},
        },
    ),
    "your_own_script/pairs": (
        """
from torch.nn.parallel import DistributedDataParallel

def my_make_model():
    torch.manual_seed(<<SEED: 0>>)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=<<MOMENTUM: 0.9>>)
    return <<MODEL: DistributedDataParallel(net)>>, optimizer

def my_make_batch(t):
    batch = images[12 * t : 12 * t + 12], texts[12 * t : 12 * t + 12]
    return <<BATCH: batch>>

def my_step(model, optimizer, a, b):
    rank, n = dist.get_rank(), dist.get_world_size()
    a, b = <<MINE: (a[rank::n], b[rank::n])>>
    a, b = model(torch.cat([a, b])).chunk(2)
    loss = F.cross_entropy(a @ b.T, torch.arange(len(a)))
    <<CLEAR: optimizer.zero_grad()>>
    loss.backward()
    optimizer.step()
""",
        {
            "draw them as the loop does": {"SEED": "1"},
            "make_batch returns the whole": {
                "BATCH": "[part[dist.get_rank()::dist.get_world_size()] for part in batch]"
            },
            "each rank trains alone": {"MODEL": "net"},
            "every rank takes all rows": {"MINE": "a, b"},
            "the sampler deals rows out": {
                "MINE": "(a.chunk(n)[rank], b.chunk(n)[rank])"
            },
            "there is no momentum": {"MOMENTUM": "0"},
            "the gradients of the steps before": {"CLEAR": "pass"},
        },
    ),
}
