"""CLINC150: short queries of 150 intents, and queries out of their scope."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .root import find

PARTS = ("train", "val", "test", "oos_train", "oos_val", "oos_test")
PADDING, UNKNOWN = 0, 1  # numbers that stand for no word, and for words that training queries do not hold
LONGEST = 32  # words of a query; the others are cut off
OUTSIDE = -1  # the label of queries out of scope


@dataclass(frozen=True, eq=False)
class Intents:
    """Queries as numbers of words.

    Args:
        parts: numbers (n, LONGEST) and labels (n,) of each part.
        words: what the numbers stand for.
        intents: what the labels stand for.
        digest: sha256 of the file.
    """

    parts: Mapping[str, tuple[Tensor, Tensor]]
    words: Sequence[str]
    intents: Sequence[str]
    digest: str
    length: int = LONGEST

    def __getitem__(self, part: str) -> tuple[Tensor, Tensor]:
        return self.parts[part]


def clinc150(*, root: Any = None) -> Intents:
    """Read the full version of CLINC150, with 100 training queries per intent.

    Words are those that two training queries hold at least, in lower case; the order of intents is alphabetical.

    Args:
        root: the folder that holds `clinc150/`; None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> clinc150(root="data")["test"][0].shape  # doctest: +SKIP
        torch.Size([4500, 32])
    """
    path = find(root, "clinc150", "data_full.json")
    text = path.read_bytes()
    queries = _parse(path, text)
    split = {part: [_words(query) for query, _ in queries[part]] for part in PARTS}
    counts = Counter(word for query in split["train"] for word in set(query))
    words = ["<padding>", "<unknown>", *sorted(word for word, count in counts.items() if count > 1)]
    intents = sorted({intent for _, intent in queries["train"]})
    number, label = ({name: i for i, name in enumerate(names)} for names in (words, intents))
    parts = {}
    for part in PARTS:
        rows = torch.full((len(split[part]), LONGEST), PADDING, device="cpu")
        for i, query in enumerate(split[part]):
            row = [number.get(word, UNKNOWN) for word in query[:LONGEST]] or [UNKNOWN]
            rows[i, : len(row)] = torch.tensor(row, device="cpu")
        labels = [label.get(intent, OUTSIDE) for _, intent in queries[part]]
        parts[part] = (rows, torch.tensor(labels, dtype=torch.long, device="cpu"))
    return Intents(parts, words, intents, sha256(text).hexdigest())


def _parse(path: Path, text: bytes) -> dict[str, list[list[str]]]:
    try:
        queries = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is damaged or not JSON: {error}.") from None
    if not isinstance(queries, dict) or not set(PARTS) <= set(queries):
        raise ValueError(f"{str(path)!r} is not the full version of CLINC150: expected the parts {', '.join(PARTS)}.")
    for part in PARTS:
        pairs = queries[part]
        if not isinstance(pairs, list) or not all(isinstance(p, list) and [*map(type, p)] == [str, str] for p in pairs):
            raise ValueError(f"{part!r} of {str(path)!r} is not a list of queries, each [text, intent].")
    return queries


def _words(query: str) -> list[str]:
    """Words and single signs of a query.

    Example:
        >>> _words("What's my balance?")
        ['what', "'", 's', 'my', 'balance', '?']
    """
    return re.findall(r"\w+|[^\w\s]", query.lower())
