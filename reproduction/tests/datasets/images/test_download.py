"""Downloads from a server on this machine: what is written, what is refused, what is left alone."""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import md5
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hidden_uncertainty import progress
from reproduction.datasets.images import fetch, sources, verify
from reproduction.datasets.images.sources import Download, File, Source

pytest.importorskip("pooch")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server, and the folder that it serves."""
    folder = tmp_path_factory.mktemp("served")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


@pytest.fixture
def offer(served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make `some` a data set of one download, as published."""

    def declare(path: str, content: bytes, *, urls: tuple[str, ...] = ("{}",), **options: object) -> None:
        address, folder = served
        name = path.rpartition("/")[2]
        (folder / name).write_bytes(content)
        places = tuple(url.format(f"{address}/{name}") for url in urls)
        download = Download(path, places, md5(content).hexdigest(), 1, **options)  # type: ignore[arg-type]
        monkeypatch.setitem(sources.SOURCES, "some", Source("some", "things", "free", (download,)))

    return declare


def tar(**contents: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in contents.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return file.getvalue()


def archived(**contents: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return file.getvalue()


def file(path: str, content: bytes, *also: str) -> File:
    return File(path, md5(content).hexdigest(), also)


def below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_a_file(offer: Callable[..., None], tmp_path: Path) -> None:
    content = gzip.compress(b"digits")
    offer("A/raw/x.gz", content, files=(file("A/raw/x", b"digits", "A/raw/x.gz"),))
    root = tmp_path / "made" / "here"
    assert fetch("some", root) == [root / "A/raw/x.gz"]
    assert below(root) == {"A/raw/x.gz"} and (root / "A/raw/x.gz").read_bytes() == content
    assert [check.state for check in verify("some", root)] == ["official"]
    assert fetch("some", root) == []
    (root / "other").write_bytes(b"")
    assert (root / "other").stat().st_mode == (root / "A/raw/x.gz").stat().st_mode


def test_the_unpacked_file_is_enough(offer: Callable[..., None], tmp_path: Path) -> None:
    offer("x.gz", gzip.compress(b"digits"), files=(file("x", b"digits", "x.gz"),))
    (tmp_path / "x").write_bytes(b"digits")
    assert fetch("some", tmp_path) == [] and below(tmp_path) == {"x"}


def test_an_archive_is_unpacked_and_removed(offer: Callable[..., None], tmp_path: Path) -> None:
    content = tar(**{"B/one": b"1", "B/two": b"2", "elsewhere": b"3"})
    offer("b.tar.gz", content, files=(file("B/one", b"1"), file("B/two", b"2")), unpacks="B")
    assert fetch("some", tmp_path) == [tmp_path / "B"]
    assert below(tmp_path) == {"B/one", "B/two"}
    (tmp_path / "B/two").unlink()
    fetch("some", tmp_path)
    assert below(tmp_path) == {"B/one", "B/two"}


def test_an_archive_that_stays(offer: Callable[..., None], tmp_path: Path) -> None:
    content = archived(**{"images_c/A/1/x.png": b"x", "images_c/A/2/y.png": b"y"})
    offer("o/images_c.zip", content, unpacks="o/images_c", keep=True)
    (tmp_path / "o/images_c/A/1").mkdir(parents=True)
    (tmp_path / "o/images_c/A/1/x.png").write_bytes(b"x")
    assert fetch("some", tmp_path) == [tmp_path / "o/images_c", tmp_path / "o/images_c.zip"]
    assert below(tmp_path) == {"o/images_c.zip", "o/images_c/A/1/x.png", "o/images_c/A/2/y.png"}


def test_nothing_is_replaced(offer: Callable[..., None], tmp_path: Path) -> None:
    offer("b.tar.gz", tar(**{"B/one": b"1", "B/two": b"2"}), files=(file("B/one", b"1"),), unpacks="B")
    (tmp_path / "B").mkdir()
    (tmp_path / "B/one").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="B/one' exists and is not the published file"):
        fetch("some", tmp_path)
    (tmp_path / "B/one").unlink()
    (tmp_path / "B/two").write_bytes(b"mine too, of which no checksum is published")
    with pytest.raises(FileExistsError, match="B/two' exists"):
        fetch("some", tmp_path)
    assert below(tmp_path) == {"B/two"}


@pytest.mark.parametrize("kind", ["changed", "cut", "missing", "no server"])
def test_what_fails_leaves_nothing(
    kind: str, offer: Callable[..., None], served: tuple[str, Path], tmp_path: Path
) -> None:
    offer(
        "x",
        b"digits",
        files=(file("x", b"digits"),),
        urls=("http://127.0.0.1:9/x",) if kind == "no server" else ("{}",),
    )
    if kind in ("changed", "cut"):
        (served[1] / "x").write_bytes(b"digits"[: 3 if kind == "cut" else 6].replace(b"g", b"G"))
    if kind == "missing":
        (served[1] / "x").unlink()
    with pytest.raises(OSError, match=r"could not download x: http://127\.0\.0\.1:.*Nothing was kept.*put a copy at"):
        fetch("some", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_next_place_is_tried(offer: Callable[..., None], tmp_path: Path) -> None:
    offer("x", b"digits", files=(file("x", b"digits"),), urls=("http://127.0.0.1:9/x", "{}no", "{}"))
    assert fetch("some", tmp_path) == [tmp_path / "x"]


@pytest.mark.parametrize(
    "name", ["../outside", "/outside-of-everything", "B/../../outside", "..\\outside", "c:outside"]
)
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_archives_do_not_reach_outside(kind: str, name: str, offer: Callable[..., None], tmp_path: Path) -> None:
    root = tmp_path / "root"
    content = (tar if kind == "tar.gz" else archived)(**{"B/one": b"1", name: b"2"})
    offer(f"b.{kind}", content, files=(file("B/one", b"1"),), unpacks="B")
    if kind == "zip" or (name.startswith(("..", "B/..")) and "\\" not in name):
        with pytest.raises(ValueError, match=rf"b\.{kind} cannot be unpacked: .*outside"):
            fetch("some", root)
        assert below(tmp_path) == set()
    else:  # made relative, or an odd name on this system; no part of what was asked for
        fetch("some", root)
        assert below(tmp_path) == {"root/B/one"}
    assert not Path("/outside-of-everything").exists()


def test_links_out_of_an_archive_are_refused(offer: Callable[..., None], tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        link = tarfile.TarInfo("B")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
    offer("b.tar.gz", stream.getvalue(), files=(file("B/one", b"1"),), unpacks="B")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        fetch("some", tmp_path / "root")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "cannot be unpacked"),
        (tar(C=b"1"), "holds no folder 'B'"),
        (tar(**{"B/one": b"1" * 999})[:60], "cannot be unpacked"),
    ],
    ids=["no archive", "another folder", "cut short"],
)
def test_archives_of_something_else(content: bytes, message: str, offer: Callable[..., None], tmp_path: Path) -> None:
    offer("b.tar.gz", content, files=(file("B/one", b"1"),), unpacks="B")
    with pytest.raises(ValueError, match=message):
        fetch("some", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_nothing(
    offer: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("x", bytes(3 * 10**6), files=(file("x", b"digits"),))

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.Bar, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch("some", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_megabytes(offer: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("x", bytes(3_500_000), files=(file("x", bytes(3_500_000)),))
    bars: list[progress.Bar] = []
    monkeypatch.setattr(progress.Bar, "__init__", _kept(bars, progress.Bar.__init__))
    fetch("some", tmp_path)
    assert [(bar.description, bar.completed, bar.total) for bar in bars] == [("some, megabytes", 3, 1)]


def _kept(bars: list[progress.Bar], make: Callable[..., None]) -> Callable[..., None]:
    def init(bar: progress.Bar, *arguments: object) -> None:
        bars.append(bar)
        make(bar, *arguments)

    return init


def test_without_pooch(offer: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("x", b"digits", files=(file("x", b"digits"),))
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"downloading data sets needs pooch: pip install -e '\.\[reproduction\]'"):
        fetch("some", tmp_path / "root")
    assert not (tmp_path / "root").exists()
