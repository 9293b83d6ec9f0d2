"""Wrong answers to problem set 8: {exercise: {mistake: (hint, cell)}}."""

from tests.support.wrong.exchange import exchanged

# right answers, in which one part at a time is made wrong
PARTS = {
    "train_step_amp": ("""
def train_step_amp(model, loss, microbatches, rows, optimizer, scaler, max_norm):
    k, n = dist.get_world_size(), len(microbatches)
    own = sum(len(y) for X, y in microbatches)
    START
    for i, (X, y) in enumerate(microbatches):
        with FORWARD:
            share = SHARE
        with BACKWARD:
            SCALED.backward()
        THEN
    UNSCALE
    CLIP
    STEP
    UPDATE
""", {"START": "optimizer.zero_grad()",
      "FORWARD": "model.no_sync() if i < n - 1 else nullcontext()",
      "SHARE": "loss(model(X), y) * len(y) * k / rows", "BACKWARD": "nullcontext()",
      "SCALED": "scaler.scale(share)", "THEN": "pass",
      "UNSCALE": "scaler.unscale_(optimizer)",
      "CLIP": "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
      "STEP": "scaler.step(optimizer)", "UPDATE": "scaler.update()"}),
    "epoch_loss": ("""
def epoch_loss(sums, counts):
    total = torch.stack([sums.sum(), counts.sum().double()])
    REDUCE
    return RESULT

def prints(rank, step, steps, lines):
    return PRINTS
""", {"REDUCE": "dist.all_reduce(total)", "RESULT": "total[0] / total[1]",
      "PRINTS": "rank == 0 and (step + 1) * lines // steps > step * lines // steps"}),
    "local_sgd": ("""
def local_sgd(model, batches, lr, every):
    floats = FLOATS
    def average(tensors):
        for t in tensors:
            dist.all_reduce(t)
            DIVIDE
    START
    for step, (X, y) in enumerate(batches, 1):
        model.zero_grad()
        F.cross_entropy(model(X), y).backward()
        GRADIENTS
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
        if DUE:
            average(floats)
    END
""", {"FLOATS": "[t for t in model.state_dict().values() if t.is_floating_point()]",
      "DIVIDE": "t /= dist.get_world_size()",
      "START": "[dist.broadcast(t, 0) for t in floats]", "GRADIENTS": "pass",
      "DUE": "step % every == 0 or step == len(batches)", "END": "pass"}),
    "replay": ("""
def replay(events, gradient, w0, lr):
    w, held, done, staleness = w0.clone(), {}, [], []
    for number, (kind, rank) in enumerate(events):
        if kind == "read":
            READ
        else:
            old, then, since = held[rank]
            w = STEP
            staleness.append(STALE)
            done.append(rank)
    END
    return w, RESULT
""", {"READ": "held[rank] = w.clone(), len(done), number",
      "STEP": "w - lr * gradient(rank, old)", "STALE": "len(done) - then",
      "END": "pass", "RESULT": "staleness"}),
    "loader_for": ("""
def loader_for(dataset, rank, world_size, seed, epoch):
    g = torch.Generator().manual_seed(ORDER)
    order = torch.randperm(len(dataset), generator=g).tolist()
    mine = MINE
    with KEPT:
        torch.manual_seed(AUGMENT)
        return ROWS
""", {"ORDER": "1000 * seed + epoch", "MINE": "order[rank::world_size]",
      "KEPT": "torch.random.fork_rng(devices=[])",
      "AUGMENT": "10 ** 6 * seed + 1000 * epoch + rank",
      "ROWS": "[dataset[row] for row in mine]"}),
    "once": ("""
def once(function, path):
    together = dist.is_initialized()
    rank = RANK
    error, failed = None, path + ".failed"
    if WHO:
        try:
            DOWNLOAD
        except Exception as caught:
            FAILED
    if together:
        TELL
    elif rank == 0 and error:
        LEAVE
    WAIT
    RAISE
""", {"RANK": "dist.get_rank() if together else int(os.environ.get('RANK', 0))",
      "WHO": "rank == 0 and not os.path.exists(path)",
      "DOWNLOAD": "function(path + '.part'); os.replace(path + '.part', path)",
      "FAILED": "error = str(caught) or repr(caught)",
      "TELL": "box = [error]; dist.broadcast_object_list(box); error = box[0]",
      "LEAVE": "open(failed + '.part', 'w').write(error); "
               "os.replace(failed + '.part', failed)",
      "WAIT": "while not (together or error or os.path.exists(path)):\n"
              "        if os.path.exists(failed): error = open(failed).read()\n"
              "        time.sleep(0.01)",
      "RAISE": "if error: raise RuntimeError(error)"}),
    "schedule_steps": ("""
def schedule_steps(rows, batch_size, world_size, accumulate, epochs):
    up = lambda n, d: -(-n // d)
    return STEPS
""", {"STEPS": "up(up(up(rows, world_size), batch_size), accumulate) * epochs"}),
    "lit_lenet": ("""
class LitLeNet(L.LightningModule):
    def __init__(self, params, lr):
        super().__init__()
        from torchmetrics import MeanMetric
        self.params = nn.ParameterList(PARAMS)
        self.rate, self.share, self.hits = RATE, MeanMetric(), []

    def training_step(self, batch, batch_idx):
        X, y = batch
        loss = LOSS
        LOG
        return RESULT

    def validation_step(self, batch, batch_idx):
        X, y = batch
        right = (lenet(X, list(self.params)).argmax(1) == y).double()
        VALUE

    def configure_optimizers(self):
        return OPTIMIZER
""", {"PARAMS": "p.detach().clone() for p in params", "RATE": "lr",
      "LOSS": "F.cross_entropy(lenet(X, list(self.params)), y)",
      "LOG": "self.log('train_loss', loss, sync_dist=True)", "RESULT": "loss",
      "VALUE": "self.share(right); self.log('val_acc', self.share)",
      "OPTIMIZER": "torch.optim.SGD(self.parameters(), lr=self.rate)"}),
}

ONE_CALL = "every rank must call the same collectives"
ROUNDED = "sync_dist takes the mean of the ranks' numbers of rows, and rounds it down"
CHANGES = {
    "train_step_amp": {
        "clips before it unscales": ("this was clipped before it was unscaled", {
            "UNSCALE": "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
            "CLIP": "scaler.unscale_(optimizer)"}),
        "never unscales": ("this was clipped before it was unscaled", {
            "UNSCALE": "pass"}),
        "does not clip": ("the gradient is not clipped", {"CLIP": "pass"}),
        "clips on each rank, then averages": (
            "leave averaging to DDP", {
                "FORWARD": "model.no_sync()",
                "CLIP": "nn.utils.clip_grad_norm_(model.parameters(), max_norm); "
                        "[dist.all_reduce(p.grad) for p in model.parameters()]; "
                        "[p.grad.div_(k) for p in model.parameters()]"}),
        "clips in each microbatch, before the average": (
            "this was clipped before it was unscaled", {
                "THEN": "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
                "UNSCALE": "scaler.unscale_(optimizer)", "CLIP": "pass"}),
        "clips values, not the norm": (
            "the gradient is longer than max_norm", {
                "CLIP": "nn.utils.clip_grad_value_(model.parameters(), max_norm)"}),
        "steps in every microbatch": ("replicas differ", {
            "THEN": "scaler.step(optimizer); scaler.update()",
            "UNSCALE": "pass", "CLIP": "pass", "STEP": "pass", "UPDATE": "pass"}),
        "the mean of the means": ("this is a mean of means", {
            "SHARE": "loss(model(X), y) / n"}),
        "the parts' means added up": ("the means of", {"SHARE": "loss(model(X), y)"}),
        "world_size forgotten": ("the step is 3 times too small", {
            "SHARE": "loss(model(X), y) * len(y) / rows"}),
        "divided by the own rows": ("this is the mean of the ranks' means", {
            "SHARE": "loss(model(X), y) * len(y) / own"}),
        "no_sync around backward alone": (
            "no_sync is for all microbatches but the last", {
                "FORWARD": "nullcontext()",
                "BACKWARD": "model.no_sync() if i < n - 1 else nullcontext()"}),
        "averages in every microbatch": (
            "no_sync is for all microbatches but the last", {
                "FORWARD": "nullcontext()"}),
        "no_sync for the last one too": ("replicas differ", {
            "FORWARD": "model.no_sync()"}),
        "old gradients": ("old gradients are in it", {"START": "pass"}),
        "the optimizer's own step": ("this step must be skipped", {
            "STEP": "optimizer.step()"}),
        "update forgotten": ("scaler.update() ends every step", {"UPDATE": "pass"}),
        "no scaler at all": ("call scaler.update() once", {
            "SCALED": "share", "UNSCALE": "pass", "STEP": "optimizer.step()",
            "UPDATE": "pass"}),
        "each parameter clipped alone": ("each parameter was clipped alone", {
            "CLIP": "[nn.utils.clip_grad_norm_([p], max_norm) "
                    "for p in model.parameters()]"}),
        "returns the loss": ("nothing is returned", {
            "UPDATE": "scaler.update(); return share"}),
        "unscales twice": ("scaler.unscale_(optimizer) is called once", {
            "UNSCALE": "scaler.unscale_(optimizer); scaler.unscale_(optimizer)"}),
        "never steps": ("nothing has moved", {
            "STEP": "pass"}),
    },
    "epoch_loss": {
        "the mean of the ranks' means": ("this is the mean of the ranks' means", {
            "REDUCE": "total = torch.stack([(total[0] / total[1]).nan_to_num(0), "
                      "(total[1] > 0).double()]); dist.all_reduce(total)"}),
        "rank 0's own": ("every rank has the mean of its own rows", {"REDUCE": "pass"}),
        "the mean of the minibatches' means": (
            "this is the mean of the minibatches' means", {
                "REDUCE": "total = torch.stack([(sums / counts).sum(), "
                          "torch.tensor(float(len(sums)), dtype=sums.dtype)]); "
                          "dist.all_reduce(total)"}),
        "reduced to rank 0": ("only rank 0 has the mean of all rows", {
            "REDUCE": "dist.reduce(total, 0)"}),
        "called on rank 0 alone": ("a collective is for all ranks", {
            "REDUCE": "dist.get_rank() == 0 and dist.all_reduce(total)"}),
        "not called without rows": ("a collective is for all ranks", {
            "REDUCE": "len(sums) and dist.all_reduce(total)"}),
        "divided by the own rows": ("the sum is that of all ranks", {
            "REDUCE": "all_sums = sums.sum(); dist.all_reduce(all_sums)",
            "RESULT": "all_sums / counts.sum()"}),
        "not divided": ("this is the sum", {"RESULT": "total[0]"}),
        "divided by the ranks": ("this was divided by the ranks", {
            "RESULT": "total[0] / dist.get_world_size()"}),
        "divided by the minibatches": ("this was divided by the minibatches", {
            "REDUCE": "total[1] = len(sums); dist.all_reduce(total)"}),
        "writes into the sums": ("dist.all_reduce writes into the tensor", {
            "REDUCE": "dist.all_reduce(total); sums /= 2"}),
        "writes into the counts": ("the counts are the caller's", {
            "REDUCE": "dist.all_reduce(total); counts.cumsum_(0)"}),
        "every 200 steps": ("nothing is printed in a short epoch", {
            "PRINTS": "rank == 0 and step % 200 == 199"}),
        "every rank prints": ("rank 0 speaks for all", {
            "PRINTS": "(step + 1) * lines // steps > step * lines // steps"}),
        "prints the first step": ("the first step has a line", {
            "PRINTS": "rank == 0 and (step * lines % steps) < lines"}),
        "a step before the end": ("the last line belongs to the last step", {
            "PRINTS": "rank == 0 and (step + 2) * lines // steps"
                      " > (step + 1) * lines // steps"}),
        "too many lines": ({"there are", "the last line belongs"}, {
            "PRINTS": "rank == 0 and (step + 1) % max(1, steps // lines) == 0"}),
        "the last lines in a row": ("the gaps between lines differ", {
            "PRINTS": "rank == 0 and step >= steps - lines"}),
    },
    "local_sgd": {
        "averages gradients": ("gradients are averaged, in each step", {
            "GRADIENTS": "average([p.grad for p in model.parameters()])",
            "DUE": "False"}),
        "averages once, at the end": ("weights are averaged once, at the end", {
            "DUE": "False", "END": "average(floats)"}),
        "the sum, not the mean": ("the ranks' weights are added up", {
            "DIVIDE": "pass"}),
        "buffers forgotten": ("buffers are forgotten", {
            "FLOATS": "[p.data for p in model.parameters()]",
            "START": "[dist.broadcast(t, 0) for t in model.state_dict().values()]"}),
        "counts from 0": ("weights are averaged before the first step counts", {
            "DUE": "(step - 1) % every == 0 or step == len(batches)"}),
        "a step too early": ("weights are averaged a step too early", {
            "DUE": "(step + 1) % every == 0 or step == len(batches)"}),
        "a step more between": ("weights are averaged after each 4 steps", {
            "DUE": "step % (every + 1) == 0 or step == len(batches)"}),
        "the start is not equal": ("the ranks begin with different weights", {
            "START": "pass"}),
        "the start of the last rank": ("the ranks begin with rank 1's", {
            "START": "[dist.broadcast(t, dist.get_world_size() - 1) for t in floats]"}),
        "the end is not equal": ("the ranks end with different weights", {
            "DUE": "step % every == 0"}),
        "never averages": ("the ranks end with different weights", {"DUE": "False"}),
        "never steps": ("nothing has moved", {
            "START": "return"}),
        "asks in every step": ("communicate only when an average is due", {
            "GRADIENTS": "dist.barrier()"}),
        "the counter is added up": ("it counts the forwards, on all ranks alike", {
            "FLOATS": "list(model.state_dict().values())",
            "DIVIDE": "t.div_(dist.get_world_size()) if t.is_floating_point() else 0",
            "START": "[dist.broadcast(t, 0) for t in floats if t.is_floating_point()]"}),
    },
    "replay": {
        "fresh gradients": ("gradients are those at the weights as they are", {
            "STEP": "w - lr * gradient(rank, w)"}),
        "staleness by rank": ({"this counts ranks, not updates",
                               "a rank's own writes count, too"}, {
            "STALE": "len(set(done[then:]) - {rank})"}),
        "own writes left out": ("a rank's own writes count, too", {
            "STALE": "sum(other != rank for other in done[then:])"}),
        "a write reads again": ("a write is no read", {
            "STEP": "w - lr * gradient(rank, old)\n"
                    "            held[rank] = w, then, since"}),
        "in the order of the ranks": ("in the order of the ranks", {
            "RESULT": "[n for _, n in sorted(zip(done, staleness), "
                      "key=lambda pair: pair[0])]"}),
        "the average of all ranks": ("gradients are averaged over ranks", {
            "STEP": "w - lr * sum(gradient(r, w) for r in held) / len(held)"}),
        "the rate divided by the ranks": ("the rate is divided by the ranks", {
            "STEP": "w - lr / len(held) * gradient(rank, old)"}),
        "the first read counts": ("a rank that reads again forgets", {
            "READ": "held.setdefault(rank, (w.clone(), len(done), number))"}),
        "the own write counts": ("the own write counts, too", {
            "STALE": "len(done) - then + 1"}),
        "all events between": ("this counts all events between", {
            "STALE": "number - since - 1"}),
        "writes from the beginning": ("this is how many updates there were", {
            "STALE": "len(done)"}),
        "up the gradient": ("the step goes up the gradient", {
            "STEP": "w + lr * gradient(rank, old)"}),
        "nothing moves": ("nothing has moved", {
            "STEP": "(gradient(rank, old), w)[1]"}),
        "in place": ("w0 is the caller's", {
            "END": "w0.copy_(w)"}),
        "rank 0's gradient": ("each gradient is one rank's", {
            "STEP": "w - lr * gradient(0, old)"}),
    },
    "loader_for": {
        "seed + rank in the order": ("the ranks shuffle in different ways", {
            "ORDER": "1000 * seed + epoch + 7919 * rank"}),
        "no epoch in the order": ("the order is the same in every epoch", {
            "ORDER": "seed"}),
        "no seed in the order": ("the permutation's seed must hold `seed`", {
            "ORDER": "epoch"}),
        "not shuffled": ("the order is the same in every epoch", {
            "MINE": "list(range(len(dataset)))[rank::world_size]"}),
        "the same draws on all ranks": ("the ranks draw the same numbers", {
            "AUGMENT": "10 ** 6 * seed + 1000 * epoch"}),
        "the same draws in all epochs": ("a rank draws the same numbers in every", {
            "AUGMENT": "10 ** 6 * seed + rank"}),
        "epoch + rank": ("one rank draws in one epoch what another one draws", {
            "AUGMENT": "10 ** 6 * seed + epoch + rank"}),
        "a hundred ranks an epoch": ("one rank draws in one epoch what another one", {
            "AUGMENT": "10 ** 6 * seed + 100 * epoch + rank"}),
        "no seed in the draws": ("the augmentations' seed must hold `seed`", {
            "AUGMENT": "1000 * epoch + rank"}),
        "seeds each row": ("every row is augmented in the same way", {
            "ROWS": "[(torch.manual_seed(10 ** 6 * seed + 1000 * epoch + rank), "
                    "dataset[row])[1] for row in mine]"}),
        "touches the global generator": ("torch's global generator is not yours", {
            "KEPT": "nullcontext()"}),
        "draws when it is asked": ("torch's global generator is not yours", {
            "ROWS": "(dataset[row] for row in mine)"}),
        "never seeds": ("torch's global generator is not yours", {
            "KEPT": "nullcontext()", "AUGMENT": "torch.initial_seed()"}),
        "pads": ("some rows come twice: DistributedSampler pads", {
            "MINE": "list(DistributedSampler(order, world_size, rank, seed=seed))"}),
        "drops the last rows": ("some rows are left out at the end", {
            "MINE": "order[rank:len(order) // world_size * world_size:world_size]"}),
        "all rows": ("every rank has all rows", {"MINE": "order"}),
        "uneven": ("deal evenly", {
            "MINE": "order[:1] if rank == 0 and world_size > 1 else "
                    "order[1:][rank - 1::max(1, world_size - 1)]"}),
        "the clock": ("the augmentations draw other numbers", {
            "AUGMENT": "time.time_ns() % 2 ** 62"}),
        "an order of its own": ("the ranks shuffle in different ways", {
            # counted, not the clock's: of 462 pairs of orders, one deals each row once
            "ORDER": "loader_for.__dict__.setdefault('made', []).append(0) or "
                     "len(loader_for.made)"}),
        "the order of the training's seed": ("the rows come in another order", {
            "ORDER": "1000 * torch.initial_seed() + epoch"}),
    },
    "once": {
        "every rank downloads": ("every rank downloads", {
            "WHO": "not os.path.exists(path)"}),
        "always downloads": ("a file that is there is not downloaded again", {
            "WHO": "rank == 0"}),
        "the others do not wait": ("some rank does not wait", {
            "TELL": "pass", "WAIT": "pass"}),
        "the others wait for a second": ("some rank does not wait", {
            "WAIT": "time.sleep(rank > 0)\n"
                    "    if os.path.exists(failed): error = open(failed).read()"}),
        "rank 0 raises alone, the others wait": ("rank 0 has failed, and the others", {
            "FAILED": "raise"}),
        "the error stays on rank 0": ("only rank 0 raises", {
            "TELL": "dist.barrier()"}),
        "the error is swallowed": ("the error is swallowed", {"RAISE": "pass"}),
        "without the words": ("all ranks raise; say on each", {
            "FAILED": "error = 'the download failed'"}),
        "half a file": ("half a file is left there", {
            "DOWNLOAD": "function(path)"}),
        "half a file is taken for a whole one": (
            "a rank goes on while the file is half written", {
                "DOWNLOAD": "function(path)",
                "FAILED": "error = str(caught) or repr(caught); os.remove(path)"}),
        "a group that is not there": ("before init there is no group", {
            "RANK": "dist.get_rank()"}),
        "rank 0 everywhere before init": ("every rank downloads", {
            "RANK": "dist.get_rank() if together else 0"}),
        "no word of the error before init": ("rank 0 has failed, and the others", {
            "LEAVE": "pass"}),
        "looks for itself first": ("every rank must come to the same collectives", {
            "RANK": "dist.get_rank() if together else int(os.environ.get('RANK', 0))\n"
                    "    if os.path.exists(path): return"}),
        "one kind of error": ("rank 0 has failed, and the others", {
            "FAILED": "if not isinstance(caught, OSError): raise\n"
                      "            error = str(caught) or repr(caught)"}),
        "an error without words": ("an error may have no words", {
            "FAILED": "error = str(caught)"}),
        "RANK where there is a group": ("every rank downloads: where there is a group", {
            "RANK": "int(os.environ.get('RANK', 0))"}),
        "nobody": ("nobody downloads", {
            "WHO": "rank == 1"}),
    },
    "schedule_steps": {
        "batch_size of all ranks": ("batch_size is that of each rank", {
            "STEPS": "up(up(rows, batch_size), accumulate) * epochs"}),
        "accumulation forgotten": ("these are batches", {
            "STEPS": "up(up(rows, world_size), batch_size) * epochs"}),
        "rounded down": ("the last batch of an epoch counts too", {
            "STEPS": "rows // world_size // batch_size // accumulate * epochs"}),
        "steps rounded down": ("the last step of an epoch has fewer batches", {
            "STEPS": "up(up(rows, world_size), batch_size) // accumulate * epochs"}),
        "batches rounded down": ("the last batch of an epoch is smaller", {
            "STEPS": "up(rows // world_size // batch_size, accumulate) * epochs"}),
        "carried into the next epoch": ("a step ends with the epoch", {
            "STEPS": "up(up(up(rows, world_size), batch_size) * epochs, accumulate)"}),
        "all rows in one stream": ("batches do not go on into the next epoch", {
            "STEPS": "up(rows * epochs, batch_size * world_size * accumulate)"}),
        "one epoch": ("these are the steps of one epoch", {
            "STEPS": "up(up(up(rows, world_size), batch_size), accumulate)"}),
    },
    "lit_lenet": {
        "the sum of the losses": ("the loss is summed over rows", {
            "LOSS": "F.cross_entropy(lenet(X, list(self.params)), y, reduction='sum')"}),
        "a rate of its own": ("the rate is the one that is handed over", {
            "RATE": "0.01"}),
        "Adam": ("plain SGD is wanted", {
            "OPTIMIZER": "torch.optim.Adam(self.parameters(), lr=self.rate)"}),
        "the rate times the ranks": ("the step is 2 times too large", {
            "OPTIMIZER": "torch.optim.SGD(self.parameters(), "
                         "lr=self.rate * self.trainer.world_size)"}),
        "the loss divided by the ranks": ("the step is 2 times too small", {
            "RESULT": "loss / self.trainer.world_size"}),
        "the tensors themselves": ("copy them", {
            "PARAMS": "nn.Parameter(p) for p in params"}),
        "returns nothing": ("nothing has moved", {"RESULT": "None"}),
        "nothing is logged": ("nothing is logged under this name", {"LOG": "pass"}),
        "the own loss": ("every rank logs the loss of its own rows", {
            "LOG": "self.log('train_loss', loss)"}),
        "no accuracy": ("nothing is logged under this name", {"VALUE": "pass"}),
        "the mean of the means": ("this is the mean of the batches' means", {
            "VALUE": "self.log('val_acc', right.mean(), batch_size=1, "
                     "sync_dist=True)"}),
        "the own accuracy": ("every rank has the accuracy of its own rows", {
            "VALUE": "self.log('val_acc', right.mean(), batch_size=len(y))"}),
        "Lightning's mean over ranks": (ROUNDED, {
            "VALUE": "self.log('val_acc', right.mean(), batch_size=len(y), "
                     "sync_dist=True)"}),
        "Lightning finds the rows itself": (ROUNDED, {
            "VALUE": "self.log('val_acc', right.mean(), sync_dist=True)"}),
        "the mean of the ranks' shares": ("this is the mean of the ranks' shares", {
            "VALUE": "self.hits.append(right)\n"
                     "    def on_validation_epoch_end(self):\n"
                     "        mine = torch.cat(self.hits).mean()\n"
                     "        self.hits.clear()\n"
                     "        if dist.is_initialized():\n"
                     "            dist.all_reduce(mine)\n"
                     "            mine /= dist.get_world_size()\n"
                     "        self.log('val_acc', mine)"}),
    },
}
ANSWERS = exchanged(PARTS, CHANGES)
