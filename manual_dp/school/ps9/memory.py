"""Memory of a rank at each stage of ZeRO, with shards of whole weights.

    draw     layers, stages, memories
    judge    the bytes, then the number of ranks that is enough
"""

from manual_dp.school.exercise import close, differ
from manual_dp.school.ps9.form import compare, number

STAGES = (0, 1, 2, 3)


def draw(random):
    """Draw layers, and memories that just suffice, or just do not."""
    for layers in ([random.randint(50, 99), 7, 1], [10],
                   [random.randint(10 ** 6, 10 ** 8) for _ in range(5)],
                   [2_000_000_011, 3_000_000_019, 1_000_000_007]):
        most = random.randint(20, 90)
        asked = [[n, stage] for n in (1, 2, 3, random.randint(4, 999))
                 for stage in STAGES]
        memories = []
        for stage in (1, 2, 3):
            n = random.randint(2, 9)
            just = kept(layers, n, stage)
            memories += [[stage, just], [stage, just - 1]]
        beyond = kept(layers, most + random.randint(1, 9), 3)
        memories += [[3, beyond], [0, 16 * sum(layers)], [0, 16 * sum(layers) - 1],
                     [1, 4 * sum(layers)], [3, 2 * max(layers)],
                     [3, kept(layers, most, 3) + 1]]  # for large layers, `most` it is
        yield {"layers": layers, "most": most, "asked": asked, "memories": memories}


def kept(layers, n, stage, parts=(2, 2, 12), whole=True, shard=None):
    """Return the bytes of the rank that keeps most; the arguments are mistakes.

    parts: bytes of a weight, its gradient, its Adam. shard: of a layer on n ranks.
    """
    weight, gradient, adam = parts
    cut = sum((shard or _up)(layer, n) for layer in layers)
    full = sum(layers)
    return (weight * (cut if stage > 2 else full)
            + gradient * (cut if stage > 1 else full)
            + adam * (cut if stage > 0 else full)
            + weight * max(layers) * (stage > 2) * whole)


def _up(layer, n):
    return -(-layer // n)


def fewest(layers, stage, memory, most, strict=False):
    """Return the smallest number of ranks on which it fits, or None."""
    return next((n for n in range(1, most + 1) if
                 kept(layers, n, stage) + strict <= memory), None)


def judge(case, got):
    """Compare the bytes of all, then the number of ranks for each memory."""
    layers, most = case["layers"], case["most"]
    given = f"layers {layers}"
    yield differ(f"{given}; the list afterwards", got["layers"], layers, [
        ("the list is the caller's: leave it as it is", True)], 0)
    yield _judge_bytes(case, given, [number(value) for value in got["bytes"]])
    for (stage, memory), found in zip(case["memories"], got["ranks"], strict=True):
        yield _judge_ranks(f"{given}; fewest_ranks for stage {stage}, {memory} bytes, "
                           f"at most {most} ranks", layers, stage, memory, most,
                           number(found))


def _judge_bytes(case, given, got):
    layers = case["layers"]

    def of_all(layers=layers, **how):
        return [kept(layers, n, stage, **how) for n, stage in case["asked"]]
    right = of_all()
    asked = ", ".join(f"({n}, {stage})" for n, stage in case["asked"])
    given = f"{given}; zero_bytes for (world_size, stage) = {asked}"
    return compare(given, got, right, [
        ("stage 3 needs room for the largest layer's whole weights, too",
         of_all(whole=False)),
        ("at stage 3 one layer is whole at a time, the largest: not all of them",
         [value + 2 * (sum(layers) - max(layers)) * (stage > 2)
          for value, (_, stage) in zip(right, case["asked"])]),
        ("the whole layer is the largest one, not the last",
         [value + 2 * (layers[-1] - max(layers)) * (stage > 2)
          for value, (_, stage) in zip(right, case["asked"])]),
        ("the whole layer has 2 bytes a weight, no gradients and no Adam",
         _extra(case, right, got)),
        ("a shard has whole weights: round each layer's up", close(
            got, of_all(shard=lambda layer, n: layer / n), 1e-12)),
        ("round up, not down: the bytes of the rank that keeps most count",
         of_all(shard=lambda layer, n: layer // n)),
        ("each layer is cut by itself: round up for each, then add up",
         _together(case)),
        ("each layer is cut by itself, and the largest layer is missing",
         _together(case, False)),
        ("nothing is shared out", [16 * sum(layers)] * len(right)),
        ("stages are counted from 0: at stage 0 all is whole",
         [kept(layers, n, stage + 1) for n, stage in case["asked"]]),
        ("this is the memory of all ranks: what does one rank keep?",
         [n * value for value, (n, _) in zip(right, case["asked"])]),
        ("Adam has 12 bytes a weight: the weight in 32 bits counts, too",
         of_all(parts=(2, 2, 8))),
        ("weights and gradients have 16 bits here, 2 bytes each",
         of_all(parts=(4, 4, 8))),
        ("this is in gigabytes: return bytes", [value / 1e9 for value in right]),
        ("this is rounded: whole bytes are wanted, exactly",
         all(isinstance(g, (int, float)) and abs(g / r - 1) < 1e-6
             for g, r in zip(got, right)))], 0)


def _extra(case, right, got):
    """Return whether the whole layer is there with more than its weights."""
    return any(got == [value + extra * max(case["layers"]) * (stage > 2)
                       for value, (_, stage) in zip(right, case["asked"])]
               for extra in (2, 12, 14))


def _together(case, whole=True):
    """Return the bytes if the layers were one flat tensor."""
    layers = case["layers"]
    return [kept([sum(layers)], n, stage, whole=False)
            + 2 * max(layers) * (stage > 2) * whole for n, stage in case["asked"]]


def _judge_ranks(given, layers, stage, memory, most, got):
    wanted = fewest(layers, stage, memory, most)
    if close(got, wanted, 0):
        return None
    more = fewest(layers, stage, memory, 10 * most)
    bytes_of = [kept(layers, n, stage) for n in range(1, most + 1)]
    tell = differ if None in (got, wanted) else compare  # None may be right here
    return tell(given, got, wanted, [
        ("None is wanted if `most` ranks are not enough", wanted is None and (
            got in (0, -1, False, most, most + 1) or got == more)),
        ("what just fits, fits: `memory` bytes are enough",
         memory in bytes_of and got == fewest(layers, stage, memory, most, True)),
        ("one rank counts, too: begin with 1", wanted == 1 and got == 2),
        ("one too few: it does not fit there", wanted is not None and wanted - 1),
        ("the bytes are no number of ranks", got in bytes_of),
        ("`most` itself counts, too", wanted == most),
        ("this is the largest number of ranks: the smallest is wanted", most),
        ("there is such a number: look at all from 1 to `most`", got is None)], 0)
