"""What is said about data-parallel training, and what two runs say of it.

    Claim       source, place, the words that stand there, question, condition
    CLAIMS      of claims_tested, numbered from 1, as results/claims.json has them
    PROMISES    of speed, and of a trainer: of promises_tested
    Verdicts    take two runs for each claim: true, false, or true if; print the table

    verdict = Verdicts()
    verdict(4, (even(8, 4), "8 rows over 4 GPUs"), (even(9, 4), "9 rows over 4 GPUs"))

The question of a claim is put so that the claim holds if the answer is yes. A run is a
pair: whether the answer is yes, and what was found. A claim with a condition is run
inside the condition, then outside of it. A claim without one is run as its source has
it, then as a control: a case in which the same measurement must answer the opposite.
"""

import json
import textwrap
from collections import namedtuple
from pathlib import Path

Claim = namedtuple("Claim", "source place words question condition", defaults=[""])
STORED = json.loads((Path(__file__).parents[2] / "results/claims.json").read_text())
CLAIMS, PROMISES = ([Claim(**claim) for claim in STORED[kind]]
                    for kind in ("claims", "promises"))


class Verdicts:
    """Hold the verdict of each of `claims`, from two runs of each."""

    def __init__(self, claims=CLAIMS):
        self.claims, self.given = list(claims), {}  # "true", "false", "true if"

    def __call__(self, number, run, control):
        """Print claim `number`, its question, what both runs found, and the verdict.

        Raises ValueError if both runs, (holds, found) each, answer alike.
        """
        claim = self.claims[number - 1]
        if bool(run[0]) == bool(control[0]):
            raise ValueError(f"claim {number}: both runs answer {run[0]} ({run[1]}; "
                             f"{control[1]}), so they decide nothing")
        holds = "true if" if claim.condition else "true"
        self.given[number] = holds if run[0] else "false"
        names = ("inside:", "outside:") if claim.condition else ("run:", "control:")
        print(f"{number}. {claim.source}, {claim.place}:", _quoted(claim, 3))
        print("  ", claim.question)
        for name, (holds, found) in zip(names, (run, control)):
            print(f"   {name:8} {'yes' if holds else 'no':3}  {found}")
        print(f"   {self.given[number].upper()}{self._condition(number)}")

    def table(self):
        """Return all claims as text, with their verdicts and conditions or a "?"."""
        wide = max(len(claim.source) for claim in self.claims)
        lines = [f"{'':3} {'verdict':7}  {'source':{wide}}  words"]
        for number, claim in enumerate(self.claims, 1):
            lines.append(f"{number:3} {self.given.get(number, '?'):7}  "
                         f"{claim.source:{wide}}  {_quoted(claim, wide + 15)}")
            if self._condition(number):
                lines.append(f"{'':{wide + 15}}if{self._condition(number)}")
        return "\n".join(lines)

    def _condition(self, number):
        claim = self.claims[number - 1]
        return f" {claim.condition}" if self.given.get(number) == "true if" else ""


def _quoted(claim, indent):
    """Return the words in quotation marks; lines after the first are indented."""
    return f"\n{'':{indent}}".join(textwrap.wrap(f'"{claim.words}"', 72))
