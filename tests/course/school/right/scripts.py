"""Right answers to the exercises of lessons in scripts.py."""

from tests.course.school.right import changed

RIGHT = {
    "resnet_cifar10/my_part": {
        "dealt like cards": changed(
            "resnet_cifar10/my_part",
            PART="images[rank::world_size]",
            CLASSES="y[rows[rank::world_size]]",
        ),
        "in blocks, lists": changed(
            "resnet_cifar10/my_part",
            BEFORE="mine = range(len(rows))[rank * len(rows) // world_size :"
            " (rank + 1) * len(rows) // world_size]",
            PART="[images[i] for i in mine]",
            CLASSES="[y[rows[i]].item() for i in mine]",
        ),
    },
    "wrong_on_purpose/my_ring": {
        "one buffer": """
def my_ring(send, recv):
    rank, n = dist.get_rank(), dist.get_world_size()
    passing = send.clone()
    recv.copy_(send)
    for _ in range(n - 1):
        come = torch.empty_like(send)
        sending = dist.isend(passing, (rank + 1) % n)
        dist.recv(come, (rank - 1) % n)
        sending.wait()
        recv += come
        passing = come
""",
        "receives first": changed(
            "wrong_on_purpose/my_ring",
            (
                "sending = dist.isend",
                "coming = dist.irecv(box, (rank - 1) % n)\n"
                "        sending = dist.isend",
            ),
            TAKE="coming.wait()",
            LAST="recv.copy_(accum)",
        ),
    },
    "wrong_on_purpose/my_step": {
        "a step behind the loop": changed(
            "wrong_on_purpose/my_step",
            STEP="False",
        )
        + """
    optimizer.step()
    optimizer.zero_grad()
""",
        "cleared at first, summed by row, the flag by hand": """
loss = F.cross_entropy

def my_step(model, optimizer, X, y):
    rank, n = dist.get_rank(), dist.get_world_size()
    X, y = X[rank::n], y[rank::n]
    optimizer.zero_grad()
    size = len(X) // grad_accum
    for start in range(0, len(X), size):
        model.require_backward_grad_sync = start + size == len(X)
        part = slice(start, start + size)
        (loss(model(X[part]), y[part], reduction="sum") / len(X)).backward()
    optimizer.step()
""",
    },
    "lightning/yours": {
        "two lists": changed(
            "lightning/yours",
            LOSS="return nn.CrossEntropyLoss(label_smoothing=0.1)(y_hat, y)",
            RULES='[optimizer], [{"scheduler": warm_up, "interval": "step"}]',
        ),
        "a linear warm-up, the loss in a dict": changed(
            "lightning/yours",
            ("torch.optim.lr_scheduler.LambdaLR", "torch.optim.lr_scheduler.LinearLR"),
            ("lambda step: min(1, (step + 1) / half)", "1 / half, 1, half - 1"),
            LOSS='return {"loss": F.cross_entropy(y_hat, y, label_smoothing=0.1)}',
        ),
    },
    "your_own_script/pairs": {
        "cleared behind the step": changed(
            "your_own_script/pairs",
            ("    optimizer.step()\n", "    optimizer.step()\n    model.zero_grad()\n"),
            CLEAR="pass",
        ),
        "averaged by hand, batches as lists": changed(
            "your_own_script/pairs",
            (
                "    optimizer.step()\n",
                "    for p in model.parameters():\n"
                "        dist.all_reduce(p.grad)\n"
                "        p.grad /= n\n"
                "    optimizer.step()\n",
            ),
            MODEL="net",
            BATCH="[torch.stack(list(part)) for part in batch]",
        ),
    },
}
