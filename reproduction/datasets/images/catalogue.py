"""Which data sets there are, which of them are on this machine, and whether they are the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zlib import crc32

from .files import Root, checksum, folder_of, present
from .omniglot import compare, pictures
from .sources import SOURCES, Download, get

State = Literal["official", "different", "missing", "unknown"]


@dataclass(frozen=True)
class Entry:
    """A data set in the list.

    Args:
        name: as in `python -m reproduction data fetch NAME`.
        contents: in words.
        megabytes: size of the download, roughly.
        found: whether all, some or none of its files are in the folder; None where no folder was given.
        terms: authors and license.
    """

    name: str
    contents: str
    megabytes: int
    found: Literal["all", "some", "none"] | None
    terms: str


@dataclass(frozen=True)
class Check:
    """A file or folder of a data set.

    Args:
        path: where it is, or should be.
        state: `"official"`, `"different"`, `"missing"`, or `"unknown"` where there is nothing to compare with.
    """

    path: Path
    state: State


def listing(root: Root = None) -> list[Entry]:
    """All data sets that can be read; checks only whether the files exist.

    Args:
        root: the folder of data sets; None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA;
            if that is not set, `found` is None.

    Example:
        >>> [entry.name for entry in listing()]
        ['mnist', 'fashionmnist', 'omniglot', 'cifar10', 'cifar100', 'svhn', 'svhn-extra', 'stl10']
    """
    return [
        Entry(
            source.name,
            source.contents,
            sum(download.megabytes for download in source.downloads),
            _found(source.name, root),
            source.terms,
        )
        for source in SOURCES.values()
    ]


def verify(name: str, root: Root = None) -> list[Check]:
    """Compare the files of a data set with their published checksums.

    Args:
        name: one of `listing()`.
        root: the folder of data sets; None takes it from the environment variable HIDDEN_UNCERTAINTY_DATA.

    Example:
        >>> {check.state for check in verify("mnist", "no such folder")}
        {'missing'}
    """
    source = get(name)
    folder = folder_of(root)
    return [check for download in source.downloads for check in verify_download(folder, download)]


def verify_download(folder: Path, download: Download) -> list[Check]:
    """Compare the files of one download with their published checksums.

    Args:
        folder: of data sets.
        download: a part of a data set.
    """
    if download.keep:
        return _verify_pictures(folder, download)
    checks = []
    for file in download.files:
        path = present(folder, file)
        state: State = "missing" if path is None else "official" if checksum(path) == file.md5 else "different"
        checks.append(Check(path or folder / file.path, state))
    return checks


def _verify_pictures(folder: Path, download: Download) -> list[Check]:
    """The archive of OMNIGLOT, and the folder of its pictures."""
    archive, tree = folder / download.path, folder / str(download.unpacks)
    published = archive.exists() and checksum(archive) == download.md5
    state: State = "official" if published else "different" if archive.exists() else "missing"
    found = {path.relative_to(tree.parent).as_posix(): crc32(path.read_bytes()) for path in pictures(tree)}
    if not found:
        return [Check(archive, state), Check(tree, "missing")]
    inside: State = "unknown" if not published else "different" if compare(tree, found) else "official"
    return [Check(archive, state), Check(tree, inside)]


def _found(name: str, root: Root) -> Literal["all", "some", "none"] | None:
    try:
        folder = folder_of(root)
    except FileNotFoundError:
        return None
    there = []
    for download in get(name).downloads:
        there += [present(folder, file) is not None for file in download.files]
        if download.keep:
            there.append((folder / str(download.unpacks)).is_dir())
    return "all" if all(there) else "some" if any(there) else "none"
