"""Every claim of the paper's text beside the numbers that support or contradict it here, written to results/claims.md.

A claim is judged by a rule that stands beside it, from result files alone. The page is written by
`python -m hidden_uncertainty.studies.render`.
"""

from __future__ import annotations

import os

from ._claims_base import Results
from ._claims_dense import DENSE
from ._claims_images import IMAGES
from .render import table

CLAIMS = IMAGES + DENSE


def page(folder: str | os.PathLike[str]) -> str:
    """The page of all claims, in Markdown.

    Args:
        folder: of the result files.
    """
    results = Results(folder)
    rows = []
    for claim in CLAIMS:
        said = [claim.text, claim.rule]
        try:
            findings = list(claim.judge(results))
        except FileNotFoundError as error:
            rows.append([*said, "", f"not measured yet: {error}", ""])
            continue
        for finding in findings:
            rows.append([*said, finding.where, finding.numbers, "yes" if finding.holds else "**no**"])
            said = ["", ""]
    lines = [
        "# Claims of the paper",
        "Every claim of the paper's text beside the numbers that support or contradict it here, rendered from result "
        "files in this folder. Each is judged by the rule beside it; the rules for residual networks, layers' "
        "depth, regularisation, segmentation and depth of scenes were written down before those were measured, but the "
        "first, which has become stricter: it asked for a higher mean, whatever the deviation.",
        table(["claim", "rule", "where", "measured here", "holds"], rows),
    ]
    return "\n\n".join(lines) + "\n"
