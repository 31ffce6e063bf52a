"""What was found is kept in files, one per set, method and seed: a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from hidden_uncertainty import io

Record = dict[str, Any]


class Records:
    """Records in a folder, or none where there is no folder.

    Args:
        folder: where; None keeps nothing.
        about: what must be equal for a record to be taken, such as a digest of the data.
    """

    def __init__(self, folder: str | PathLike[str] | None, about: Mapping[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.about = json.loads(json.dumps(about))

    def of(self, **more: Any) -> Records:
        """The same folder, with more that must be equal."""
        return Records(self.folder, {**self.about, **more})

    def find(self, name: str, make: Callable[[], Record]) -> Record:
        """A record by its name: the one in the folder, or a new one that is put there."""
        path = None if self.folder is None else self.folder / f"rivals-{name}.json"
        if path is not None and path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["about"] == self.about:
                return content["record"]
        record = json.loads(json.dumps(make()))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with io.replacing(path) as file:
                file.write(json.dumps({"about": self.about, "record": record}).encode())
        return record

    def train(self, name: str, network: nn.Module, train: Callable[[], float]) -> float:
        """Train a network, or load the one in the folder: the seconds that its training took."""
        path = None if self.folder is None else self.folder / f"rivals-{name}.safetensors"
        if path is not None and path.exists():
            header, tensors = io.read(path)
            if header["about"] == self.about:
                network.load_state_dict(tensors)
                network.eval()
                return header["seconds"]
        seconds = train()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            io.write(path, {"about": self.about, "seconds": seconds}, network.state_dict())
        return seconds
