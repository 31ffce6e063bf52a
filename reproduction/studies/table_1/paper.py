"""The numbers of the paper's tables: table 1 with deviations, as in its appendix, and segmentation."""

from __future__ import annotations

from typing import NamedTuple


class Number(NamedTuple):
    """A mean over five trainings, and its deviation."""

    mean: float
    std: float


Cells = dict[tuple[str, str, str], Number]  # by training set, unknown set and method

_FCNET = """
MNIST        FashionMNIST  0.975 0.001  0.922 0.013  0.855 0.032  0.811 0.035  0.896 0.018
MNIST        OMNIGLOT      0.972 0.002  0.937 0.006  0.892 0.006  0.893 0.011  0.979 0.001
MNIST        noise         1.000 0.000  0.972 0.005  0.903 0.005  0.841 0.010  0.785 0.005
MNIST        rotated       0.978 0.001  0.976 0.004  0.950 0.005  0.935 0.006  0.965 0.002
MNIST        hflip         0.902 0.002  0.907 0.005  0.883 0.007  0.864 0.007  0.905 0.001
MNIST        vflip         0.887 0.001  0.868 0.002  0.851 0.004  0.830 0.012  0.881 0.002
FashionMNIST MNIST         0.985 0.001  0.991 0.003  0.975 0.004  0.978 0.005  0.962 0.004
FashionMNIST OMNIGLOT      0.971 0.001  0.987 0.002  0.960 0.012  0.967 0.008  0.960 0.003
FashionMNIST noise         1.000 0.000  0.985 0.002  0.971 0.006  0.930 0.013  0.840 0.004
FashionMNIST rotated       0.884 0.002  0.780 0.045  0.804 0.030  0.835 0.013  0.670 0.013
FashionMNIST hflip         0.719 0.003  0.696 0.007  0.701 0.010  0.693 0.008  0.657 0.010
FashionMNIST vflip         0.898 0.006  0.891 0.014  0.891 0.006  0.901 0.013  0.845 0.014
"""
_RESNET = """
SVHN    CIFAR10  0.991 0.001  0.974 0.004  0.934 0.008  0.907 0.003  0.976 0.002
SVHN    STL10    0.999 0.000  0.991 0.002  0.951 0.009  0.912 0.003  0.982 0.002
SVHN    noise    1.000 0.000  1.000 0.000  0.986 0.011  0.903 0.016  0.992 0.002
SVHN    rotated  0.615 0.001  0.646 0.010  0.689 0.024  0.918 0.002  0.957 0.002
SVHN    hflip    0.500 0.000  0.503 0.005  0.495 0.010  0.500 0.002  0.501 0.002
SVHN    vflip    0.506 0.000  0.520 0.004  0.551 0.010  0.708 0.006  0.736 0.001
CIFAR10 SVHN     0.042 0.001  0.029 0.004  0.091 0.016  0.736 0.055  0.723 0.048
CIFAR10 STL10    0.790 0.010  0.871 0.019  0.821 0.038  0.651 0.008  0.806 0.004
CIFAR10 noise    1.000 0.000  1.000 0.000  1.000 0.000  0.681 0.057  0.999 0.002
CIFAR10 rotated  0.553 0.003  0.517 0.020  0.543 0.005  0.757 0.001  0.824 0.003
CIFAR10 hflip    0.500 0.000  0.500 0.000  0.499 0.001  0.500 0.002  0.501 0.001
CIFAR10 vflip    0.519 0.003  0.513 0.006  0.537 0.006  0.714 0.001  0.789 0.004
"""


def _read(table: str, methods: tuple[str, ...]) -> Cells:
    cells = {}
    for line in table.strip().splitlines():
        train, ood, *numbers = line.split()
        values = [float(number) for number in numbers]
        for method, mean, std in zip(methods, values[::2], values[1::2], strict=True):
            cells[train, ood, method] = Number(mean, std)
    return cells


FCNET = _read(_FCNET, ("layer-1", "layer-4", "layer-7", "layer-10", "ensemble"))
RESNET = _read(_RESNET, ("layer-1", "layer-9", "layer-19", "layer-34", "ensemble"))

# AUROC of misclassified pixels; average precision and FPR95 of unknown objects. The paper
# calls epistemic uncertainty "joint likelihood" and aleatoric uncertainty "conditional entropy".
_SEGMENTATION = """
softmax-entropy  0.94  0.029  0.45
mc-dropout       -     0.098  0.38
epistemic        0.70  0.031  0.24
aleatoric        0.92  0.008  1.00
"""


def _read_segmentation(table: str, metrics: tuple[str, ...]) -> dict[tuple[str, str], float]:
    cells: dict[tuple[str, str], float] = {}
    for line in table.strip().splitlines():
        method, *numbers = line.split()
        cells |= {
            (method, metric): float(number) for metric, number in zip(metrics, numbers, strict=True) if number != "-"
        }
    return cells


SEGMENTATION = _read_segmentation(_SEGMENTATION, ("misclassification auroc", "ap", "fpr95"))  # by method and metric
