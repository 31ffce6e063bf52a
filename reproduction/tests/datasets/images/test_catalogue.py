"""The list of data sets, and what is said of files that are there, changed or missing."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from reproduction.datasets.images import listing, sources, verify

Write = Callable[[str, bytes], Path]
NAME, OTHER = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def test_every_source_is_complete_and_consistent() -> None:
    paths = []
    for source in sources.SOURCES.values():
        assert source.contents and source.terms and source.downloads
        for download in source.downloads:
            assert download.files or download.keep
            assert all(
                re.fullmatch(r"https?://\S+/" + re.escape(Path(download.path).name), url) for url in download.urls
            )
            for md5 in (download.md5, *(file.md5 for file in download.files)):
                assert re.fullmatch("[0-9a-f]{32}", md5)
            if download.unpacks:
                assert all(file.path.startswith(f"{download.unpacks}/") for file in download.files)
                assert Path(download.unpacks).parent == Path(download.path).parent
            else:
                assert any(download.path in (file.path, *file.also) for file in download.files)
            paths += [download.path, *(file.path for file in download.files if file.path != download.path)]
    assert len(set(paths)) == len(paths)
    md5s = [file.md5 for source in sources.SOURCES.values() for file in source.files.values()]
    assert len(set(md5s)) == len(md5s) == 24


def test_a_listing_says_what_is_there(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {entry.found for entry in listing()} == {None}
    assert {entry.found for entry in listing(tmp_path)} == {"none"}
    for name in sources.IDX:
        write(f"MNIST/raw/{name}.gz", b"")
    write("train_32x32.mat", b"")
    (tmp_path / "omniglot-py/images_background").mkdir(parents=True)
    monkeypatch.setenv("HIDDEN_UNCERTAINTY_DATA", str(tmp_path))
    found = {entry.name: entry.found for entry in listing()}
    assert found.pop("mnist") == "all" and found.pop("svhn") == found.pop("omniglot") == "some"
    assert set(found.values()) == {"none"}


def test_megabytes_are_those_of_all_downloads() -> None:
    megabytes = {entry.name: entry.megabytes for entry in listing()}
    assert megabytes["svhn"] == 182 + 64 and megabytes["svhn-extra"] == 1329


@pytest.mark.parametrize("packed", [False, True])
def test_verify(packed: bool, write: Write, publish: Callable[..., None], tmp_path: Path) -> None:
    publish("mnist", {NAME: b"one", OTHER: b"two"})
    ending = ".gz" if packed else ""
    pack = gzip.compress if packed else bytes
    one = write(f"MNIST/raw/{NAME}{ending}", pack(b"one"))
    write(f"MNIST/raw/{OTHER}{ending}", pack(b"tow"))
    checks = {check.path.name: check.state for check in verify("mnist", tmp_path)}
    assert checks == {
        f"{NAME}{ending}": "official",
        f"{OTHER}{ending}": "different",
        "train-labels-idx1-ubyte": "missing",
        "t10k-images-idx3-ubyte": "missing",
    }
    one.write_bytes(one.read_bytes()[:-1])
    assert verify("mnist", tmp_path)[0].state == "different"


def test_names_and_folders_that_are_not_known() -> None:
    with pytest.raises(ValueError, match="no data set 'mnits'; nearest names: 'mnist'"):
        verify("mnits", "anywhere")
    with pytest.raises(ValueError, match=r"no data set '\?'; All: mnist, "):
        verify("?", "anywhere")
    with pytest.raises(FileNotFoundError, match="is not known: pass --data FOLDER"):
        verify("mnist")
