"""Right answers to problem set 7: {exercise: {style: cell}}."""

from tests.course.school.right import changed

RIGHT = {
    "ps7/same_step": {
        "torch's own comparison, which raises": changed(
            "ps7/same_step",
            ("def same_step", "%time 1 + 1\ndef compare"),
            RATE="1.0",
            SAME="torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10) is None",
        )
        + """
def same_step(train_batch):
    try:
        return compare(train_batch)
    except AssertionError:
        return False
""",
        "float32 with room for it, by numpy; a tensor as the verdict": changed(
            "ps7/same_step",
            ("return True", "return torch.tensor([True])"),
            DTYPE="torch.float32",
            RATE="0.05",
            SAME="abs(p.detach().numpy() - q.detach().numpy()).max() < 2e-7",
        ),
    },
    "ps7/same_weights": {
        "lengths of differences": changed(
            "ps7/same_weights",
            SIZE="(1 + q.norm())",
            CASES="[(5, [7, 4, 2]), (3, [8])]",
            TOLERANCE="{torch.float32: 1e-4}.get(one[0].dtype, 1e-9)",
        ),
        "two minibatches": changed(
            "ps7/same_weights", CASES="[(2, [5, 3]), (3, [2, 7]), (4, [9, 3])]"
        ),
    },
    "ps7/same_on_ranks": {
        "verdicts are gathered, and looked at by each": changed(
            "ps7/same_on_ranks",
            RESULT="every(same)\n\n"
            "def every(same):\n"
            "    said = [None] * dist.get_world_size()\n"
            "    dist.all_gather_object(said, same)\n"
            "    return all(said)",
        ),
        "all leave together, after the first that any rank refuses": changed(
            "ps7/same_on_ranks", NOW="if not spread(same): return False", RESULT="True"
        ),
        "each rank's verdict is its own, and a tensor; something is gathered": changed(
            "ps7/same_on_ranks",
            ("for p, q in zip(own, one))", "for p, q in zip(own, one)); p = own[0]"),
            ROWS="(k + 1, 1, 3 * k)",
            RESULT="torch.tensor(same)",
            NOW="dist.all_gather([torch.empty_like(p) for _ in range(k)], p.detach())",
        ),
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
        "a hash for each tensor, sent as 1,280 bytes": """
def assert_same(model):
    found = torch.zeros(20, 8, dtype=torch.int64)
    for i, t in enumerate(t for p in model.parameters() for t in (p, p.grad)):
        if t is not None:
            words = bytearray(hashlib.blake2b(t.detach().numpy().tobytes()).digest())
            found[i] = torch.frombuffer(words, dtype=torch.int64)
    every = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(every, found)
    if not all(torch.equal(every[0], other) for other in every):
        raise AssertionError("apart")
""",
    },
    "ps7/same_after_kill": {
        "NaN made a number, and the same seed": changed(
            "ps7/same_after_kill",
            ("Training(2)", "Training(1)"),
            SAME="torch.equal(torch.nan_to_num(p, 7.0), torch.nan_to_num(q, 7.0))",
        ),
        "every step": """
def same_after_kill(Training, path):
    def trail(training, steps):
        for _ in range(steps):
            training.run(1)
            yield b"".join(p.numpy().tobytes() for p in training.weights())
    line, same = list(trail(Training(5), 9)), True
    for stop in (1, 5):
        half = Training(5)
        half.run(stop)
        half.save(path)
        same &= list(trail(half, 9 - stop)) == line[stop:]
        again = Training(77)
        again.run(2)  # whatever this process did before
        again.load(path)
        same &= list(trail(again, 9 - stop)) == line[stop:]
    return same
""",
    },
    "ps7/faster": {
        "how often b wins": changed(
            "ps7/faster", RESULT="sum(q < 0.92 * p for p, q in times) > 75"
        ),
        "there and back, and the median of ratios": changed(
            "ps7/faster",
            RESULT="statistics.median(q / p for p, q in times) < 0.9",
            MEASURE="times = []\n    for _ in range(60):\n"
            "        p, q = seconds(a), seconds(b)\n"
            "        r, s = seconds(b), seconds(a)\n"
            "        times += [(p, q), (s, r)]",
        ),
    },
}
