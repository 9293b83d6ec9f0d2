"""Print how large each part of the project is: files, lines, and tokens beside an aim.

    python notebooks/tools/count.py

A token is a name, a number, a string or a sign of the language, as Python's own
tokenizer cuts a file. Comments and docstrings do not count, and neither does layout: so
the number says how much there is to understand. The aims are no limits. A change that
makes a part larger says in its commit what for.
"""

import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
STARTS = {
    tokenize.ENCODING,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
}
# (its name, patterns of its files from the root, tokens that it aims at)
PARTS = [
    (
        "core, ranks, models, files",
        ["manual_dp/*.py", "manual_dp/ranks/*.py", "manual_dp/models/*.py"]
        + ["manual_dp/files/*.py"],
        12_500,
    ),
    (
        "ranks/launch, ranks/live",
        ["manual_dp/ranks/launch/*.py", "manual_dp/ranks/live/*.py"],
        8_700,
    ),
    ("audit", ["manual_dp/audit/*.py"], 16_000),
    ("course/school", ["notebooks/course/school/**/*.py"], 40_000),
    ("course/lab", ["notebooks/course/lab/**/*.py"], 21_000),
    (
        "tools, exercises",
        ["notebooks/tools/*.py", "notebooks/exercises/*.py"],
        7_000,
    ),
    ("tests", ["tests/**/*.py"], 105_000),
]


def count_tokens(text):
    """Return how many tokens a file has, without its comments and docstrings."""
    count, starts_line = 0, True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in LAYOUT:
            if token.type in STARTS:
                starts_line = True
        elif token.type == tokenize.STRING and starts_line:
            pass  # a docstring: a line that begins with a string
        else:
            count += 1
            starts_line = False
    return count


def count_lines(text):
    """Return how many lines a file has that are not empty."""
    return sum(bool(line.strip()) for line in text.split("\n"))


def main():
    """Print a line for each part."""
    print(f"{'':28}{'files':>6}{'lines':>8}{'tokens':>9}{'aim':>9}")
    for name, patterns, aim in PARTS:
        paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
        texts = [path.read_text(encoding="utf-8") for path in paths]
        lines = sum(map(count_lines, texts))
        tokens = sum(map(count_tokens, texts))
        print(f"{name:28}{len(paths):6}{lines:8,}{tokens:9,}{aim:9,}")


if __name__ == "__main__":
    main()
