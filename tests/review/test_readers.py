"""Readers of files that others wrote."""

import io
import os
import subprocess
import sys

import numpy as np
from scipy.io import savemat

from found import found

READ = """
import sys
try:
    from hidden_uncertainty.datasets.images import svhn
except ImportError:
    from reproduction.datasets.images import svhn
try:
    svhn("test", root=sys.argv[1])
except ValueError:
    pass
"""


@found(
    "B27",
    "one flipped bit in the size of an array, in an uncompressed `.mat` file of SVHN",
    "the interpreter dies of a segmentation fault",
    "an error that names the file",
)
def test_a_flipped_bit_in_a_mat_file(tmp_path):
    file = io.BytesIO()
    savemat(file, {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": np.ones((3, 1), np.uint8)})
    content = bytearray(file.getvalue())
    content[-8] ^= 64  # in the tag of y's values
    (tmp_path / "test_32x32.mat").write_bytes(content)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONFAULTHANDLER": ""}
    read = subprocess.run([sys.executable, "-c", READ, str(tmp_path)], env=environment, check=False)
    assert read.returncode == 0
