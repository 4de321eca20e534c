"""The claims of the paper, with the rules by which logged runs decide them."""

from ..runs import Evidence, section_of
from . import addition, dvae, gradients, optimisation
from .verdicts import Claim, Outcome, Verdict

__all__ = ["CLAIMS", "Claim", "Outcome", "Verdict", "judge"]

CLAIMS: tuple[Claim, ...] = tuple(
    value
    for module in (gradients, optimisation, dvae, addition)
    for value in vars(module).values()
    if isinstance(value, Claim)
)


def judge(evidence: Evidence) -> list[tuple[Claim, Verdict]]:
    """Return every claim with its verdict.

    A claim is "not testable" if its experiment was run, but not with the paper's sizes and methods.
    """
    sections = {section_of(run) for run in evidence.runs}
    judged = []
    for claim in CLAIMS:
        verdict = claim.judge(evidence)
        if verdict.outcome == "not run" and claim.section in sections:
            verdict = Verdict("not testable", f"at this size: {verdict.why}")
        judged.append((claim, verdict))
    return judged
