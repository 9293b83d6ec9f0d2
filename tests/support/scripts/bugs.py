"""Bugs in the four scripts, as edits of their source, each visible in three steps.

    BUGS                 {script: {name: (codes, [(old, new), ...])}}
    planted, source      the script with a bug in it, and without

codes: the findings that would name the bug rightly; one of them is enough. Nobody who
watches a script knows its loss or runs it at world size 1. So each bug here is one that
what the ranks see and hold can show, together, within three optimizer steps.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
HANGS = ("hang", "mismatch", "unequal-batches", "exception")


def source(script):
    return (FOLDER / f"{script}.py").read_text()


def planted(script, name):
    """Return the source of `script` with the bug `name` in it.

    Raises ValueError unless each `old` is found exactly once.
    """
    text = source(script)
    for old, new in BUGS[script][name][1]:
        if text.count(old) != 1:
            raise ValueError(f"{script}, {name}: {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    return text


def after(line, new):
    """Return the edit that puts `new` after `line`, with as much space before it."""
    space = line[:len(line) - len(line.lstrip())]
    return line, line + "".join(f"\n{space}{part}" for part in new.split("\n"))


# unet: DDP taken away, and gradients combined by hand: rightly or not

NO_DDP = ("    model = DDP(net)", "    model = net")


def by_hand(*lines):
    """Return the edit that does `lines` with each parameter after the backward pass."""
    loop = "\n    ".join(["for p in model.parameters():", *lines])
    return after("        loss.backward()", loop)


UNET = {
    "loader without its sampler": (["rows-same"], [
        ("batch_size=args.batch_size, sampler=sampler)",
         "batch_size=args.batch_size, shuffle=True)")]),
    "sampler seeded by rank": (["sampler-seed", "rows-overlap", "rows-repeated"], [
        ("seed=args.seed)\n", "seed=args.seed + dist.get_rank())\n")]),
    "sampler of rank 0 on all ranks": (["sampler-settings", "rows-same"], [
        ("shuffle=True, seed", "num_replicas=dist.get_world_size(), rank=0, seed")]),
    "not wrapped": (["not-synchronised"], [NO_DDP]),
    "module inside called": (["not-synchronised"], [
        ("scores = model(images)", "scores = model.module(images)")]),
    "way down alone averaged by hand": (["not-synchronised"], [
        NO_DDP, after("        loss.backward()",
                      "for p in model.down.parameters():\n"
                      "    dist.all_reduce(p.grad)\n"
                      "    p.grad /= world_size")]),
    "drawn by seeds of ranks, averaged by hand": (["start-differs"], [
        NO_DDP, ("manual_seed(args.seed)\n    net",
                 "manual_seed(args.seed + dist.get_rank())\n    net"),
        by_hand("dist.all_reduce(p.grad)", "p.grad /= world_size")]),
    "reduced to rank 0, not sent back": (["not-sent-back"], [
        NO_DDP, by_hand("dist.reduce(p.grad, dst=0)", "p.grad /= world_size")]),
    "gradient of rank 0 broadcast": (["one-rank"], [
        NO_DDP, by_hand("dist.broadcast(p.grad, src=0)")]),
    "rank 1 left out": (["rank-left-out"], [
        NO_DDP, by_hand("if rank == 1:", "    p.grad.zero_()",
                        "dist.all_reduce(p.grad)", "p.grad /= world_size")]),
    "summed by hand, not divided": (["sum"], [
        NO_DDP, by_hand("dist.all_reduce(p.grad)")]),
    "summed by hand after DDP": (["sum"], [by_hand("dist.all_reduce(p.grad)")]),
    "divided by hand after DDP": (["averaged-twice"], [
        by_hand("p.grad /= world_size")]),
    "head in no optimizer": (["not-in-optimizer"], [
        ("Adam(model.parameters()",
         'Adam([p for name, p in model.named_parameters() if "head" not in name]')]),
    "loss summed on rank 0 only": (HANGS, [
        after("        loss.backward()",
              "if rank == 0:\n    dist.all_reduce(loss.detach())")]),
    "minibatches of few blobs skipped": (HANGS, [
        ("        optimizer.zero_grad()",
         "        if masks.float().mean() < 0.19:\n            continue\n"
         "        optimizer.zero_grad()")]),
    "weights clamped on rank 0": (["weights-changed", "replicas-differ"], [
        after("        optimizer.step()",
              "if rank == 0:\n    for p in model.parameters():\n"
              "        p.data.clamp_(-0.1, 0.1)")]),
    "gradients not cleared": (["stale"], [("        optimizer.zero_grad()\n", "")]),
}

RESNET = {
    "no set_epoch": (["sampler-epoch"], [
        ("            train_sampler.set_epoch(epoch)\n", "")]),
    "momentum on rank 0 only": (["settings"], [
        ("momentum=args.momentum)",
         "momentum=args.momentum * (dist.get_rank() == 0))")]),
    "weight decay on rank 0 only": (["settings"], [
        ('"weight_decay": args.wd}',
         '"weight_decay": args.wd if dist.get_rank() == 0 else 0.0}')]),
    "schedule on rank 0 only": (["rates-differ"], [
        ("        scheduler.step()",
         "        if dist.get_rank() == 0:\n            scheduler.step()")]),
    "lr times the rank": (["rates-differ"], [
        ("lr=args.lr, momentum", "lr=args.lr * (1 + dist.get_rank()), momentum")]),
    "rank 0 stays in eval mode": (["modes"], [
        ("    model.train()\n", ""),
        ("    model.eval()", "    if dist.get_rank() == 0:\n        model.eval()")]),
    "validation on rank 0 only": (HANGS, [
        ("accuracy = validate(test_loader, model)",
         "accuracy = validate(test_loader, model) if rank == 0 else None")]),
    "barrier on rank 0 only": (HANGS, [
        ("    dist.barrier()", "        dist.barrier()")]),
    "rows dealt by hand, one too many": (HANGS, [
        ("Stripes(64, seed=0)", "Stripes(65, seed=0)"),
        ("train_loader = DataLoader(train_set, batch_size",
         "own = range(rank, len(train_set), dist.get_world_size())\n"
         "    train_set = torch.utils.data.Subset(train_set, own)\n"
         "    train_loader = DataLoader(train_set, batch_size"),
        ("sampler=train_sampler", "shuffle=True")]),
    "step skipped where the loss is large": (["replicas-differ"], [
        ("        optimizer.step()\n",
         "        if loss.item() < 1.95:\n            optimizer.step()\n")]),
    "new head after the wrapper, on rank 0": (["start-differs"], [
        after("    model = DDP(ResNet())",
              "if rank == 0:\n    model.module.fc.reset_parameters()")]),
    "buffers not broadcast": (["buffers"], [
        ("DDP(ResNet())", "DDP(ResNet(), broadcast_buffers=False)")]),
    "gradients cleared before the update": (["no-gradient", "nothing-moved"], [
        ("        optimizer.zero_grad(set_to_none=True)\n", ""),
        after("        loss.backward()", "optimizer.zero_grad()")]),
    "gradients not cleared": (["stale"], [
        ("        optimizer.zero_grad(set_to_none=True)\n", "")]),
    "head frozen on rank 1": (["frozen"], [
        after("    model = DDP(ResNet())",
              "if rank == 1:\n    model.module.fc.requires_grad_(False)")]),
}

CLIP = "    torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)"
SYNC = "        with nullcontext() if last else model.no_sync():"
STEP = "    optimizer.step()\n"

GPT = {
    "first micro-batch synchronised": (["not-synchronised"], [
        ("nullcontext() if last", "nullcontext() if micro == 0")]),
    "no micro-batch synchronised": (["not-synchronised"], [
        (SYNC, "        with model.no_sync():")]),
    "inner module called": (["not-synchronised"], [
        ("loss = model(X, Y)", "loss = raw_model(X, Y)")]),
    "each micro-batch clipped": (["clip"], [
        (CLIP, "    " + CLIP)]),
    "clipped before the sum": (["clip"], [
        (SYNC, "        with model.no_sync():"),
        after(CLIP, "for p in model.parameters():\n"
                    "    dist.all_reduce(p.grad)\n"
                    "    p.grad /= world_size")]),
    "clipped on rank 0 only": (["clip"], [
        (CLIP, "    if rank == 0:\n    " + CLIP)]),
    "clipped to a norm for each rank": (["clip"], [
        ("args.grad_clip)", "args.grad_clip / (1 + rank))")]),
    "step for each micro-batch": (["accumulation", "not-synchronised"], [
        (STEP, "    " + STEP), (CLIP, "    " + CLIP)]),
    "cleared before each micro-batch": (["accumulation"], [
        after("        X, Y = get_batch()", "optimizer.zero_grad()")]),
    "same text on all ranks": (["rows-same"], [
        ("manual_seed(args.seed + rank)", "manual_seed(args.seed)")]),
    "vectors in no group": (["not-in-optimizer"], [
        (',\n              {"params": vectors, "weight_decay": 0.0}]', "]")]),
    "betas by rank": (["settings"], [
        ("betas=(0.9, 0.95)", "betas=(0.9, 0.95 + rank / 50)")]),
    "warm-up by rank": (["rates-differ"], [
        ('group["lr"] = get_lr(step)', 'group["lr"] = get_lr(step + rank)')]),
    "summed by hand after DDP": (["sum"], [
        (CLIP, "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n"
         + CLIP)]),
    "gradient of the norm dropped on rank 1": (
        ["replicas-differ", "not-synchronised", "no-gradient"], [
            (CLIP, "    if rank == 1:\n        raw_model.ln_f.weight.grad = None\n"
             + CLIP)]),
    "embedding normalised on rank 0": (["weights-changed", "replicas-differ"], [
        (STEP, STEP + "    if rank == 0:\n        with torch.no_grad():\n"
         "            raw_model.wte.weight /= raw_model.wte.weight.norm()\n")]),
    "loss reported by rank 0 alone": (HANGS, [("if step % 5 == 4:", "if rank == 0:")]),
    "drawn by seeds of ranks": (["start-differs"], [
        ("torch.manual_seed(args.seed)", "torch.manual_seed(args.seed + rank)"),
        ("DDP(raw_model)", "DDP(raw_model, init_sync=False)")]),
}

WRAP = "        self.model = DistributedDataParallel(model)"
UPDATE = "        self.optimizer.step()"
BACKWARD = "        loss.backward()"

CLASSIFIER = {
    "moving average on rank 0 only": (["state-differs"], [
        ("        self.ema.update_parameters(self.model.module)",
         "        if self.rank == 0:\n"
         "            self.ema.update_parameters(self.model.module)")]),
    "seeded alike at each step": (["random-same"], [
        after("        self.optimizer.zero_grad()", "set_seed(self.steps)")]),
    "seeded alike after the model": (["random-same"], [
        ("set_seed(args.seed + 1 + rank)", "set_seed(args.seed + 1)")]),
    "rank 0 in eval mode": (["modes"], [
        ("self.model.train()", "self.model.train(self.rank != 0)")]),
    "buffers not broadcast": (["buffers"], [
        ("Parallel(model)", "Parallel(model, broadcast_buffers=False)")]),
    "sampler of one replica": (["sampler-settings", "rows-same"], [
        ("num_replicas=world_size, rank=rank", "num_replicas=1, rank=0")]),
    "sampler of twice the ranks": (["sampler-settings", "rows-missed"], [
        ("num_replicas=world_size,", "num_replicas=2 * world_size,")]),
    "weights drawn again after the wrapper": (["start-differs"], [
        after(WRAP, "for layer in self.model.module[::4]:\n"
                    "    layer.reset_parameters()")]),
    "optimizer of another copy": (["not-in-optimizer", "nothing-moved"], [
        ("import argparse\n", "import argparse\nimport copy\n"),
        ("Parallel(model)", "Parallel(copy.deepcopy(model))")]),
    "last layer outside the wrapper's care": (["not-synchronised"], [
        (WRAP, "        DistributedDataParallel._set_params_and_buffers_to_ignore_"
               'for_model(\n            model, ["8.weight", "8.bias"])\n' + WRAP)]),
    "noise of each rank's own": (["replicas-differ", "not-synchronised"], [
        after(BACKWARD, "for p in self.model.parameters():\n"
                        "    p.grad += 0.01 * torch.randn_like(p)")]),
    "first layer frozen on rank 1": (["frozen"], [
        after(WRAP, "if rank == 1:\n    model[0].requires_grad_(False)")]),
    "lr halved by each rank's own loss": (["rates-differ"], [
        after(BACKWARD, "if loss.item() > 0.7:\n"
                        '    self.optimizer.param_groups[0]["lr"] /= 2')]),
    "minibatch of a large loss skipped": (HANGS, [
        (BACKWARD, "        if loss.item() > 0.75:\n            return loss.item()\n"
         + BACKWARD)]),
    "cleared on rank 0 only": (["stale"], [
        ("        self.optimizer.zero_grad()",
         "        if self.rank == 0:\n            self.optimizer.zero_grad()")]),
    "weight decay times the rank": (["settings"], [
        ("weight_decay=args.weight_decay)", "weight_decay=args.weight_decay * rank)")]),
    "average copied back on rank 0": (["weights-changed", "replicas-differ"], [
        ("        self.steps += 1",
         "        if self.rank == 0:\n            self.model.module.load_state_dict("
         "self.ema.module.state_dict())\n        self.steps += 1")]),
}

BUGS = {"unet": UNET, "resnet": RESNET, "gpt": GPT, "classifier": CLASSIFIER}
