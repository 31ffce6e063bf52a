"""The page results/claims.md: every claim of the paper beside the numbers that support or contradict it here.

A claim is judged by the rule beside it, from result files alone. `python -m reproduction.render` writes the page.
"""

from __future__ import annotations

import os

from ..markdown import table
from .base import Results
from .dense import DENSE
from .images import IMAGES

CLAIMS = IMAGES + DENSE


def page(folder: str | os.PathLike[str]) -> str:
    """The page of all claims, in Markdown.

    Args:
        folder: of the result files.
    """
    results = Results(folder)
    rows = []
    for claim in CLAIMS:
        about = [claim.text, claim.rule]
        try:
            findings = list(claim.judge(results))
        except FileNotFoundError as error:
            rows.append([*about, "", f"not measured yet: {error}", ""])
            continue
        for finding in findings:
            rows.append([*about, finding.where, finding.numbers, "yes" if finding.holds else "**no**"])
            about = ["", ""]
    lines = [
        "# Claims of the paper",
        "Every claim of the paper beside the numbers that support or contradict it here, rendered from result files "
        "in this folder. Each is judged by the rule beside it. The rules for residual networks, depth of layers, "
        "regularisation, segmentation and depth estimation were written before these were measured, except that the "
        "first has become stricter: it asked for a higher mean, whatever the deviation.",
        table(["claim", "rule", "where", "measured here", "holds"], rows),
    ]
    return "\n\n".join(lines) + "\n"
