"""Compare what the ranks hold with what they should hold, number by number.

assert_each_holds   fail with the first number that differs: whose it is, and where
"""


def assert_each_holds(found, expected, what, each="rank"):
    """Fail unless each rank's tensor has the dtype, shape and numbers that it should.

    found, expected: a tensor for each rank. what: names the call that was made.
    """
    assert len(found) == len(expected), f"{what}: {len(found)} {each}s answered"
    for rank, (tensor, wanted) in enumerate(zip(found, expected)):
        told = f"{what}, {len(found)} {each}s: {each} {rank} holds "
        kind, right_kind = (f"{t.dtype} {tuple(t.shape)}" for t in (tensor, wanted))
        assert kind == right_kind, f"{told}{kind}, expected {right_kind}"
        wrong = (tensor != wanted).nonzero().tolist()
        if wrong:
            place = tuple(wrong[0])
            raise AssertionError(
                f"{told}{tensor[place].item()} at {place}, expected "
                f"{wanted[place].item()}; {len(wrong)} of {tensor.numel()} differ"
            )
