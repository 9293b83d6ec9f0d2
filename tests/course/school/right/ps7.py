"""Right answers to problem set 7: {exercise: {style: cell}}."""

import re

from tests.course.school.wrong.ps7 import WRONG


def changed(name, **changes):
    """Return the cell that wrong answers are made of, with other words in places."""
    cell, places, _ = WRONG[f"ps7/{name}"]
    words = {**places, **changes}
    found = re.compile(rf"\b({'|'.join(words)})\b")
    for _ in range(3):
        cell = found.sub(lambda match: words[match[1]], cell)
    return cell


RIGHT = {
    "ps7/same_step": {
        "differences in a list": """
%time 1 + 1
def same_step(train_batch):
    far = []
    for k in range(1, 6):
        for rows in (1, 6, 11):
            start = draw_params(100 * k + rows)
            replicas = [copy_params(start) for _ in range(k)]
            one = copy_params(start)
            for t in range(3):
                X, y = draw_batch(rows, t)
                train_batch(X, y, replicas, [torch.device("cpu")] * k, 0.1)
                loss(one, X, y).mean().backward()
                with torch.no_grad():
                    for q in one:
                        q -= 0.1 * q.grad
                        q.grad = None
                far += [float((p - q).detach().abs().max())
                        for replica in replicas for p, q in zip(replica, one)]
    print(f"{len(far)} differences")
    return all(distance < 1e-10 for distance in far)
""",
        "every step from equal weights": """
def flat(params):
    return torch.cat([p.detach().reshape(-1) for p in params])

def one_device(params, X, y, lr):
    own = copy_params(params)
    loss(own, X, y).sum().div(len(y)).backward()
    return flat(own) - lr * torch.cat([p.grad.reshape(-1) for p in own])

def same_step(train_batch):
    good = True
    for k, rows in ((2, 5), (3, 4), (4, 6), (6, 4)):
        replicas = [copy_params(draw_params(7)) for _ in range(k)]
        for t in range(3):
            X, y = draw_batch(rows, t)
            wanted = one_device(replicas[0], X, y, 0.3)
            train_batch(X, y, replicas, ["cpu"] * k, 0.3)
            good &= all(torch.isclose(flat(r), wanted, rtol=0, atol=1e-11).all().item()
                        for r in replicas)
    return good
""",
        "torch's own comparison, which raises": """
def same_step(train_batch):
    try:
        for k, rows in [(3, 8), (4, 5), (2, 1)]:
            replicas = [copy_params(draw_params(0)) for _ in range(k)]
            one = copy_params(draw_params(0))
            for t in range(2):
                X, y = draw_batch(rows, t)
                train_batch(X, y, replicas, ["cpu"] * k, 1.0)
                g = torch.autograd.grad(loss(one, X, y).mean(), one)
                one = copy_params([p - d for p, d in zip(one, g)])
            for replica in replicas:
                torch.testing.assert_close(list(replica), one, rtol=1e-10, atol=1e-10)
    except AssertionError:
        return False
    return True
""",
        "float32 with room for it": changed(
            "same_step", DTYPE="torch.float32", RATE="0.05",
            SAME="torch.allclose(p, q, rtol=0, atol=2e-7)"),
        "a tensor as the verdict, of numpy's numbers": changed(
            "same_step", SAME="abs(p.detach().numpy() - q.detach().numpy()).max() < 1e-9"
        ).replace("return True", "return torch.tensor([True])"),
    },
    "ps7/same_weights": {
        "one list of distances": """
def same_weights(train):
    def distance(p, q):
        p, q = p.detach().double(), q.detach().double()
        return ((p - q).norm() / (1 + q.norm())).item()
    for k in (2, 3, 5):
        params = draw_params(k)
        batches = [draw_batch(n, n) for n in (7, 4, 2)]
        one, = train(params, batches, 1)
        room = {torch.float32: 1e-4}.get(one[0].dtype, 1e-9)
        far = [distance(p, q) for own in train(params, batches, k)
               for p, q in zip(own, one)]
        if not all(f <= room for f in far):
            return False
    return True
""",
        "two minibatches": changed(
            "same_weights", CASES="[(2, [5, 3]), (3, [2, 7]), (4, [9, 3])]"),
    },
    "ps7/same_on_ranks": {
        "each rank for itself": changed("same_on_ranks", RESULT="same"),
        "early, and nobody waits": changed(
            "same_on_ranks", NOW="if not same: return False", RESULT="True"),
        "gathered and compared": changed(
            "same_on_ranks", ROWS="(k + 1, 1, 3 * k)",
            REFERENCE="whole = [torch.empty_like(own[0]) for _ in range(k)]; "
                      "dist.all_gather(whole, own[0].detach())"),
        "a verdict as a tensor": changed(
            "same_on_ranks", RESULT="torch.tensor(spread(same))"),
    },
    "ps7/assert_same": {
        "the largest and the smallest number of a hash": """
def assert_same(model):
    text = b"".join(b"-" if t is None else t.detach().numpy().tobytes()
                    for p in model.parameters() for t in (p, p.grad))
    number = int(hashlib.sha256(text).hexdigest()[:15], 16)
    low, high = torch.tensor(number), torch.tensor(number)
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    assert low == high
""",
        "gathered tensors of bytes": """
def assert_same(model):
    m = hashlib.md5()
    for name, p in model.named_parameters():
        m.update(name.encode())
        m.update(p.data.contiguous().view(torch.uint8).numpy())
        if p.grad is not None:
            m.update(b"grad" + bytes(p.grad.flatten().view(torch.uint8).tolist()))
    mine = torch.tensor(list(m.digest()), dtype=torch.uint8)
    all_of_them = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    if any(not torch.equal(other, mine) for other in all_of_them):
        raise RuntimeError("apart")
""",
        "rank 0's sent to all, then a vote": """
def assert_same(model):
    parts = [repr([p.tolist(), None if p.grad is None else p.grad.tolist()])
             for p in model.parameters()]
    mine = [hashlib.sha1(" ".join(parts).encode()).hexdigest()]
    first = list(mine)
    dist.broadcast_object_list(first, src=0)
    apart = torch.tensor([int(first != mine)])
    dist.all_reduce(apart)
    if apart.item():
        raise AssertionError(f"{apart.item()} ranks differ from rank 0")
""",
        "a hash for each tensor, sent as 1,280 bytes": """
def assert_same(model):
    found = torch.zeros(20, 8, dtype=torch.int64)
    for i, t in enumerate(t for p in model.parameters() for t in (p, p.grad)):
        if t is not None:
            words = bytearray(hashlib.blake2b(t.detach().numpy().tobytes()).digest())
            found[i] = torch.frombuffer(words, dtype=torch.int64)
    every = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(every, found)
    assert all(torch.equal(every[0], other) for other in every)
""",
    },
    "ps7/same_after_kill": {
        "NaN made a number": changed(
            "same_after_kill",
            SAME="torch.equal(torch.nan_to_num(p, 7.0), torch.nan_to_num(q, 7.0))"),
        "every step": """
def same_after_kill(Training, path):
    def bits(training):
        return [p.numpy().tobytes() for p in training.weights()]
    whole = Training(5)
    line = []
    for _ in range(9):
        whole.run(1)
        line.append(bits(whole))
    for stop in (1, 5):
        half = Training(5)
        half.run(stop)
        half.save(path)
        for t in range(stop, 9):
            half.run(1)
            if bits(half) != line[t]:
                return False
        again = Training(77)
        again.run(2)  # whatever this process did before
        again.load(path)
        for t in range(stop, 9):
            again.run(1)
            if bits(again) != line[t]:
                return False
    return True
""",
        "the same seed for the new one": changed("same_after_kill").replace(
            "Training(2)", "Training(1)"),
    },
    "ps7/faster": {
        "the median of ratios": changed(
            "faster", RESULT="statistics.median(q / p for p, q in times) < 0.9"),
        "there and back": changed(
            "faster", MEASURE="times = []\n    for _ in range(60):\n"
                              "        p, q = seconds(a), seconds(b)\n"
                              "        r, s = seconds(b), seconds(a)\n"
                              "        times += [(p, q), (s, r)]"),
        "how often b wins": changed(
            "faster", RESULT="sum(q < 0.92 * p for p, q in times) > 75"),
    },
}
