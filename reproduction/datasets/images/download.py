"""Downloading data sets: checked against their published checksums, and written whole or not at all."""

from __future__ import annotations

import filecmp
import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from hidden_uncertainty.progress import Bar, progress_bar, track

from .catalogue import verify_download
from .files import BLOCK, Root, folder_of, optional
from .sources import Download, get


def fetch(name: str, root: Root = None) -> list[Path]:
    """Download what is missing of a data set.

    Existing files are never touched: published files are not fetched again, and other files in their place are an error
    before anything is downloaded.

    Args:
        name: one of `listing()`.
        root: the folder of data sets, created if needed; None takes it from the environment variable
            HIDDEN_UNCERTAINTY_DATA.

    Returns:
        The files and folders that were written.

    Example:
        >>> fetch("mnist", "data")[0]  # doctest: +SKIP
        PosixPath('data/MNIST/raw/train-images-idx3-ubyte.gz')
    """
    source = get(name)
    folder = folder_of(root)
    missing = []
    for download in source.downloads:
        checks = verify_download(folder, download)
        different = [str(check.path) for check in checks if check.state == "different"]
        if different:
            raise FileExistsError(
                f"{different[0]!r} exists and is not the published file"
                + (f", nor are {len(different) - 1} others" if len(different) > 1 else "")
                + ". Move it away, or fetch into another folder."
            )
        if any(check.state != "official" for check in checks):
            missing.append(download)
    if not missing:
        return []
    optional("pooch", "pooch", "downloading data sets")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with progress_bar(f"{name}, megabytes", sum(download.megabytes for download in missing)) as bar:
        for download in missing:
            written += _fetch_one(download, folder, _Meter(bar))
    return written


class _Meter:
    """A progress bar for pooch, which counts bytes of one file; shows megabytes."""

    def __init__(self, bar: Bar) -> None:
        self.total = 0
        self._bar = bar
        self._bytes = 0
        self._shown = 0

    def update(self, count: int) -> None:
        self._bytes += count
        new = min(self._bytes, self.total) // 10**6 - self._shown
        if new > 0:
            self._bar.advance(new)
            self._shown += new

    def reset(self) -> None:
        self._bytes = 0

    def close(self) -> None:
        pass


def _fetch_one(download: Download, folder: Path, meter: _Meter) -> list[Path]:
    """Fetch into a temporary folder, check, unpack, and only then move into place."""
    with TemporaryDirectory(prefix=".fetching-", dir=folder) as temporary:
        staged = Path(temporary)
        path = staged / download.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _transfer(download, path, meter)
        if download.unpacks:
            _unpack(path, path.parent)
            if not (staged / download.unpacks).is_dir():
                raise ValueError(
                    f"{path.name} from {download.urls[0]} holds no folder {Path(download.unpacks).name!r}."
                )
            if not download.keep:
                path.unlink()
        wanted = [place for place in (download.unpacks, download.path) if place and (staged / place).exists()]
        for place in wanted:
            _refuse_clash(staged / place, folder / place)
        for place in wanted:
            _merge(staged / place, folder / place)
    return [folder / place for place in wanted]


def _transfer(download: Download, path: Path, meter: _Meter) -> None:
    """Download to a path from the first address that serves the published file."""
    pooch = optional("pooch", "pooch", "downloading data sets")
    # No compression on the way: pooch would store what it unpacked, which has another checksum.
    get_file = pooch.HTTPDownloader(progressbar=meter, chunk_size=BLOCK, headers={"Accept-Encoding": "identity"})
    failures = []
    for url in download.urls:
        try:
            get_file(url, str(path), None)
        except OSError as error:  # every error of requests is one
            failures.append(f"{url}: {error}")
            continue
        if pooch.file_hash(str(path), alg="md5") == download.md5:
            return
        failures.append(f"{url}: the {path.stat().st_size:,} bytes received have another md5 than {download.md5}")
    raise OSError(
        f"could not download {path.name}: {'; '.join(failures)}. Nothing was kept. Try again, or put a copy at "
        f"{download.path!r} in the folder of data sets" + (" and unpack it there." if download.unpacks else ".")
    )


def _unpack(archive: Path, into: Path) -> None:
    """Unpack a .zip or .tar.gz; an entry that would land outside the folder is an error."""
    try:
        if archive.suffix == ".zip":
            with ZipFile(archive) as content:
                for item in track(content.infolist(), f"unpacking {archive.name}"):
                    name = PurePosixPath(item.filename.replace("\\", "/"))
                    if name.is_absolute() or ".." in name.parts or ":" in item.filename:
                        raise BadZipFile(f"{item.filename!r} would be extracted outside the folder")
                    content.extract(item, into)
        else:
            with tarfile.open(archive) as members:
                for member in track(members, f"unpacking {archive.name}"):
                    members.extract(member, into, filter="data")
    except (BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive.name} cannot be unpacked: {error}. Nothing was kept.") from None


def _refuse_clash(new: Path, old: Path) -> None:
    """Raise an error if a file would replace one with other content."""
    for path in [new] if new.is_file() else [item for item in new.rglob("*") if item.is_file()]:
        there = old / path.relative_to(new)
        if there.exists() and not filecmp.cmp(path, there, shallow=False):
            raise FileExistsError(f"{str(there)!r} exists and is not the published file. Move it away.")


def _merge(new: Path, old: Path) -> None:
    """Move a file or folder into place, in one step where nothing was there."""
    if not old.exists():
        old.parent.mkdir(parents=True, exist_ok=True)
        os.replace(new, old)
    elif new.is_dir():
        for item in new.iterdir():
            _merge(item, old / item.name)
