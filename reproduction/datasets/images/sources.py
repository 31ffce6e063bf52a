"""Where each data set is published, under which terms, and the checksums of its files.

The md5 sums of downloads, of CIFAR's batches and of STL10's files are those that torchvision checks. Those of MNIST
and FashionMNIST are of the unpacked content, so that a copy that was packed again counts as the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True)
class File:
    """A file that is read.

    Args:
        path: below the folder of data sets.
        md5: of its content, unpacked if it is a .gz.
        also: other paths under which people have it.
    """

    path: str
    md5: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Download:
    """A file to download.

    Args:
        path: where it goes, below the folder of data sets.
        urls: where it is published; if one fails, the next is tried.
        md5: of the download.
        megabytes: its size, roughly.
        files: itself, or the files in it if it is an archive.
        unpacks: the folder in an archive, which is unpacked beside it.
        keep: whether the archive is kept after unpacking.
    """

    path: str
    urls: tuple[str, ...]
    md5: str
    megabytes: int
    files: tuple[File, ...] = ()
    unpacks: str | None = None
    keep: bool = False


@dataclass(frozen=True)
class Source:
    """A data set.

    Args:
        name: as in `python -m reproduction data fetch NAME`.
        contents: in words.
        terms: authors and license.
        downloads: its files.
    """

    name: str
    contents: str
    terms: str
    downloads: tuple[Download, ...]

    @property
    def files(self) -> dict[str, File]:
        """The files that are read, by the last part of their path."""
        return {file.path.rpartition("/")[2]: file for download in self.downloads for file in download.files}


def get(name: str) -> Source:
    """A data set by its name.

    Example:
        >>> get("mnist").contents
        '60,000 + 10,000 digits, 28×28'
        >>> get("cifar")
        Traceback (most recent call last):
        ValueError: there is no data set 'cifar'; nearest names: 'cifar10', 'cifar100'. All: ...
    """
    if name not in SOURCES:
        near = ", ".join(map(repr, get_close_matches(name, SOURCES, cutoff=0.4)))
        nearest = f"nearest names: {near}. " if near else ""
        raise ValueError(f"there is no data set {name!r}; {nearest}All: {', '.join(SOURCES)}.")
    return SOURCES[name]


IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx(
    folder: str, places: tuple[str, ...], packed: str, unpacked: str, megabytes: tuple[int, ...]
) -> list[Download]:
    """Four .gz files; checksums are separated by spaces, in the order of `IDX`."""
    return [
        Download(
            path=f"{folder}/{name}.gz",
            urls=tuple(f"{place}/{name}.gz" for place in places),
            md5=md5,
            megabytes=size,
            files=(File(f"{folder}/{name}", content, also=(f"{folder}/{name}.gz",)),),
        )
        for name, md5, content, size in zip(IDX, packed.split(), unpacked.split(), megabytes, strict=True)
    ]


def _svhn(part: str, md5: str, megabytes: int) -> Download:
    path = f"SVHN/{part}_32x32.mat"
    # torchvision writes it into any folder that it is given.
    file = File(path, md5, also=(f"{part}_32x32.mat",))
    return Download(path, (f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat",), md5, megabytes, (file,))


def _omniglot(part: str, md5: str, megabytes: int) -> Download:
    url = f"https://raw.githubusercontent.com/brendenlake/omniglot/master/python/images_{part}.zip"
    # The archive is kept: its pictures have no published checksums, but the archive has one, and it holds theirs.
    return Download(
        f"omniglot-py/images_{part}.zip", (url,), md5, megabytes, unpacks=f"omniglot-py/images_{part}", keep=True
    )


_MNIST = _idx(
    "MNIST/raw",
    ("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist"),
    "f68b3c2dcbeaaa9fbdd348bbdeb94873 d53e105ee54ea40749a09fcbcd1e9432 "
    "9fb629c4189551a2d022fa330f9573f3 ec29112dd5afa0611ce80d1b7f02629c",
    "6bbc9ace898e44ae57da46a324031adb a25bea736e30d166cdddb491f175f624 "
    "2646ac647ad5339dbf082846283269ea 27ae3e4e09519cfbb04c329615203637",
    (10, 0, 2, 0),
)
_FASHION = _idx(
    "FashionMNIST/raw",
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d 25c81989df183df01b3e8a0aad5dffbe "
    "bef4ecab320f06d8554ea6380940ec79 bb300cfdad3c16e7a12a480ee83cd310",
    "f4a8712d7a061bf5bd6d2ca38dc4d50a 9018921c3c673c538a1fc5bad174d6f9 "
    "8181f5470baa50b63fa0f6fddb340f0a 15d484375f8d13e6eb1aabb0c3f46965",
    (26, 0, 4, 0),
)
_CIFAR10 = Download(
    "cifar-10-python.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    "c58f30108f718f92721af3b95e74349a",
    170,
    files=(
        File("cifar-10-batches-py/data_batch_1", "c99cafc152244af753f735de768cd75f"),
        File("cifar-10-batches-py/data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        File("cifar-10-batches-py/data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        File("cifar-10-batches-py/data_batch_4", "634d18415352ddfa80567beed471001a"),
        File("cifar-10-batches-py/data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        File("cifar-10-batches-py/test_batch", "40351d587109b95175f43aff81a1287e"),
    ),
    unpacks="cifar-10-batches-py",
)
_CIFAR100 = Download(
    "cifar-100-python.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
    "eb9058c3a382ffc7106e4002c42a8d85",
    169,
    files=(
        File("cifar-100-python/train", "16019d7e3df5f24257cddd939b257f8d"),
        File("cifar-100-python/test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    ),
    unpacks="cifar-100-python",
)
_STL10 = Download(
    "stl10_binary.tar.gz",
    ("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
    "91f7769df0f17e558f3565bffb0c7dfb",
    2640,
    files=(
        File("stl10_binary/train_X.bin", "918c2871b30a85fa023e0c44e0bee87f"),
        File("stl10_binary/train_y.bin", "5a34089d4802c674881badbb80307741"),
        File("stl10_binary/test_X.bin", "7f263ba9f9e0b06b93213547f721ac82"),
        File("stl10_binary/test_y.bin", "36f9794fa4beb8a2c72628de14fa638e"),
        File("stl10_binary/unlabeled_X.bin", "5242ba1fed5e4be9e1e742405eb56ca4"),
    ),
    unpacks="stl10_binary",
)

SOURCES = {
    source.name: source
    for source in (
        Source("mnist", "60,000 + 10,000 digits, 28×28", "LeCun, Cortes, Burges; CC BY-SA 3.0", tuple(_MNIST)),
        Source("fashionmnist", "60,000 + 10,000 garments, 28×28", "Zalando Research; MIT", tuple(_FASHION)),
        Source(
            "omniglot",
            "19,280 + 13,180 characters, 105×105",
            "Lake et al. 2015; MIT",
            (
                _omniglot("background", "68d2efa1b9178cc56df9314c21c6e718", 9),
                _omniglot("evaluation", "6b91aef0f799c5bb55b94e3f2daec811", 6),
            ),
        ),
        Source("cifar10", "50,000 + 10,000 photographs, 32×32", "Krizhevsky 2009; none stated", (_CIFAR10,)),
        Source("cifar100", "50,000 + 10,000 photographs, 32×32", "Krizhevsky 2009; none stated", (_CIFAR100,)),
        Source(
            "svhn",
            "73,257 + 26,032 house numbers, 32×32",
            "Netzer et al. 2011; non-commercial",
            (
                _svhn("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182),
                _svhn("test", "eb5a983be6a315427106f1b164d9cef3", 64),
            ),
        ),
        Source(
            "svhn-extra",
            "531,131 more house numbers, 32×32",
            "Netzer et al. 2011; non-commercial",
            (_svhn("extra", "a93ce644f1a588dc4d68dda5feec44a7", 1329),),
        ),
        Source(
            "stl10",
            "5,000 + 8,000 + 100,000 photographs, 96×96",
            "Coates et al. 2011; non-commercial",
            (_STL10,),
        ),
    )
}
