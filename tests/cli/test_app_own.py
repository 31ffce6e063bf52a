"""The commands for one's own model, as a user and as an attacker calls them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

import hidden_uncertainty
from hidden_uncertainty import LatentDensity
from hidden_uncertainty.cli.app import app
from hidden_uncertainty.cli.data import read
from hidden_uncertainty.cli.given import Given
from pages import FENCE, NUMBER

from .shapes import CLASSES, PAGE, draw, make, save

NET = ["--model", "net.py:network", "--weights", "net.pt"]
SCORE = ["score", *NET, "--detector", "detector.safetensors"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    make(folder)
    return folder


@pytest.fixture
def place(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if not Path("detector.safetensors").exists():
        how = ["--size", "16", "16", "--out", "detector.safetensors"]
        assert call(*fit("photos/train", "photos/unseen"), *how).exit_code == 0
    return made


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def warned(*arguments: str) -> tuple[str, Result]:
    """The one warning of a command that does what it should, and its result."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = call(*arguments)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    return line, result


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def error(*arguments: str) -> str:
    """The one line of a command that fails with exit code 1, and prints and writes nothing."""
    before = sorted(Path().iterdir())
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert sorted(Path().iterdir()) == before
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert line.startswith("error: ")
    return line


def test_the_page(place: Path) -> None:
    shown: list[tuple[list[str], str]] = []
    for fence in FENCE.finditer(PAGE.read_text(encoding="utf-8")):
        language, _, body = fence.groups()
        if language == "sh":
            shown.append((body.replace("\\\n", "").splitlines(), ""))
        elif not language and shown and not shown[-1][1]:
            shown[-1] = (shown[-1][0], body)
    assert len(shown) == 7
    for commands, expected in shown:
        found = ""
        for command in commands:
            if command.startswith("hidden-uncertainty"):
                arguments, _, otherwise = command.partition(" || ")
                result = call(*shlex.split(arguments)[1:])
                found += result.stdout
                assert bool(result.exit_code) == bool(otherwise), result.output
                found += f"exit code {result.exit_code}\n" if otherwise else ""
            else:
                found += subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
        assert not expected or NUMBER.sub("#", found).split() == NUMBER.sub("#", expected).split(), found
    look = (place / "look.txt").read_text(encoding="utf-8").split()
    assert sum(int(name[:4]) % 4 == 3 for name in look) >= 45  # of the 50 with stripes
    assert len(look) < 75


def test_scores_are_those_of_the_library(place: Path) -> None:
    names = {path.suffix: path for path in map(Path, ("s.csv", "s.jsonl", "s.parquet"))}
    for path in names.values():
        result = call(*SCORE, "--data", "photos/new", "--out", str(path), "--batch", "7")
        assert result.exit_code == 0, result.output
        assert result.stdout == f"written: {path}\n"
    files = sorted(Path("photos/new").iterdir())
    x = np.stack([np.array(Image.open(file), dtype=np.float32)[None] for file in files]) / 255
    scope: dict[str, object] = {}
    exec(Path("net.py").read_text(encoding="utf-8"), scope)
    model: nn.Module = scope["network"]()  # type: ignore[operator]
    model.load_state_dict(torch.load("net.pt"))
    u = LatentDensity.load("detector.safetensors", model)((x - 0.5) / 0.5)
    frame = pandas.read_csv("s.csv")
    assert list(frame) == ["input", "prediction", "class", "epistemic", "aleatoric", "p_value", "surprising"]
    assert list(frame["input"]) == [file.name for file in files]
    assert list(frame["class"]) == [CLASSES[k] for k in u.prediction.tolist()]
    for name in ("prediction", "epistemic", "aleatoric", "p_value", "surprising"):
        np.testing.assert_allclose(frame[name], u.numpy()[name], rtol=2e-4, atol=1e-4)
    pandas.testing.assert_frame_equal(pandas.read_parquet("s.parquet"), frame, check_dtype=False)
    lines = [json.loads(line) for line in Path("s.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == frame.to_dict("records")
    alarms = [
        sum(row["surprising"] == "True" for row in table(call(*SCORE, "--data", "photos/new", *more).stdout))
        for more in ([], ["--false-alarm", "0.3"])
    ]
    assert alarms[0] == int(u.surprising.sum()) < alarms[1]


def test_tables_arrays_and_loaders_agree(place: Path) -> None:
    random = np.random.default_rng(0)
    centres = np.eye(3, 4) * 6
    y = np.arange(600) % 3
    x = random.normal(size=(600, 4)) + centres[y]
    words = np.array(["mid", "old", "new"])  # the network's order, which is not that of the alphabet
    Path("lines.py").write_text(
        "import numpy as np, torch\nfrom torch import nn\n"
        "class Net(nn.Linear):\n    def __init__(self): super().__init__(4, 3)\n"
        "def loader():\n    file = np.load('x.npz')\n"
        "    yield from zip(np.split(file['x'], 6), np.split(file['y'], 6))\n"
        "def shuffled():\n    return torch.utils.data.DataLoader(torch.zeros(9, 4), shuffle=True)\n",
        encoding="utf-8",
    )
    save_file({"weight": torch.tensor(np.eye(3, 4)).float(), "bias": torch.zeros(3)}, "lines.safetensors")
    np.savez("x.npz", x=x, y=y)
    with open("x.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([["ä", "b", "c", "d", "kind"], *([*row, words[k]] for row, k in zip(x, y, strict=True))])
    net = ["--model", "lines:Net", "--weights", "lines.safetensors"]  # from the current folder
    order = ["--label", "kind", "--classes", ",".join(words)]
    for data, more in {"x.npz": [], "x.csv": order, "lines.py:loader": []}.items():
        result = call("fit", *net, "--data", data, "--unseen", data, *more, "--out", f"{data[-3:]}.safetensors")
        assert result.exit_code == 0, result.output
    Path("few.csv").write_text("b,id,ä,d,c\n0,one,6,0,0\n0,two,900,0,0\n\n,three,0,0,0\n", encoding="utf-8")
    line, result = warned("score", *net, "--detector", "csv.safetensors", "--data", "few.csv")
    assert "NaN or infinity for 1 of 3 inputs" in line
    found = table(result.stdout)
    assert [row["class"] for row in found[:2]] == ["mid", "mid"]
    assert [row["surprising"] for row in found] == ["False", "True", "True"]
    assert found[2]["epistemic"] == "inf"
    scores = [
        table(call("score", *net, "--detector", f"{end}.safetensors", "--data", data).stdout)
        for end, data in (("csv", "x.csv"), ("npz", "x.npz"), ("der", "lines.py:loader"))
    ]
    assert scores[1] == scores[2]
    for a, b in zip(scores[0], scores[1], strict=True):
        assert words[int(b["prediction"])] == a.pop("class")
        assert a == b
    assert "shuffles" in error("score", *net, "--detector", "csv.safetensors", "--data", "lines.py:shuffled")
    assert "line 2: column 'id' holds 'one', not a number. Name labels with --label" in error(
        "fit", *net, "--data", "few.csv", "--holdout", "0.5", "--out", "a"
    )
    empty = ["--columns", "ä,b,c,d", "--holdout", "0.5", "--out", "a"]
    assert "line 5: column 'b' is empty or NaN" in error("fit", *net, "--data", "few.csv", *empty)
    Path("twice.csv").write_text("a,a\n1,2\n", encoding="utf-8")
    assert "has no column a, a, or several" in error("layers", *net, "--data", "twice.csv")
    assert "has no column kind" in error("fit", *net, "--data", "few.csv", "--label", "kind", *empty)


def test_classes_in_another_order_are_noticed(place: Path) -> None:
    line, result = warned(*fit("photos/train", "photos/unseen"), "--classes", "ring,bar,disc", "--layers", "3,9")
    assert "3 classes. Pass --task to say otherwise." in result.stderr
    assert "read: 3, 9\n" in result.stdout
    assert re.search(r"right on only \d% of the unseen inputs.* ring, bar, disc.* --classes", line)


def fit(data: str, unseen: str) -> list[str]:
    how = ["--grey", "--mean", "0.5", "--std", "0.5", "--out", "other.safetensors"]
    return ["fit", *NET, "--data", data, "--unseen", unseen, *how]


def test_images_that_are_not_as_expected(place: Path) -> None:
    random = np.random.default_rng(1)
    odd = Path("odd")
    for name in ('ü/子,"1".png', "2.png"):
        save(draw("disc", random), odd / name)
    (odd / "notes.txt").touch()
    rows = table(call(*SCORE, "--data", "odd").stdout)
    assert [row["input"] for row in rows] == ["2.png", 'ü/子,"1".png']
    assert "'odd' has inputs of 'no class'" in error(*fit("odd", "photos/unseen"))
    assert "is no size of an image" in error(*SCORE, "--data", "odd", "--size", "10000000", "10000000")
    (odd / "3.png").write_bytes((odd / "2.png").read_bytes()[:90])
    assert "3.png' cannot be read" in error(*SCORE, "--data", "odd", "--out", "never.csv")
    line, result = warned(*SCORE, "--data", "odd", "--skip-broken")
    assert "1 of 3 files cannot be read and are left out: 3.png" in line
    assert len(table(result.stdout)) == 2
    (odd / "3.png").unlink()
    Image.new("I;16", (16, 16)).save(odd / "4.png")
    assert "more than 8 bits" in error(*SCORE, "--data", "odd")
    (odd / "4.png").unlink()
    save(np.zeros((20, 16), np.uint8), odd / "5.png")
    assert len(table(call(*SCORE, "--data", "odd").stdout)) == 3  # the detector remembers the size
    assert "'odd' have several sizes" in error("layers", *NET, "--data", "odd", "--grey")
    Path("empty").mkdir()
    assert "there is no image in 'empty'" in error(*SCORE, "--data", "empty")
    assert "inputs of shape (2, 3, 16, 16)" in error(*SCORE, "--data", "odd", "--rgb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        assert "decompression bomb" in error(*SCORE, "--data", "odd/5.png")


def test_links_to_folders_are_read_once(place: Path) -> None:
    Path("links").mkdir()
    inside = {"bar": "../photos/train/bar", "disc": "../photos/train/disc", "loop": ".", "twice": "bar"}
    for name, target in inside.items():
        Path("links", name).symlink_to(target, target_is_directory=True)
    os.link("photos/new/0000.png", b"links/\xff.png")
    assert call(*SCORE, "--data", "links", "--out", "links.parquet").exit_code == 0
    found = [name.partition("/")[0] for name in pandas.read_parquet("links.parquet")["input"]]
    assert {name: found.count(name) for name in found} == {"bar": 120, "disc": 120, "?.png": 1}


def test_what_is_read_is_not_replaced(place: Path) -> None:
    Path("same.pt").symlink_to("net.pt")
    before = Path("net.pt").read_bytes()
    assert "--out names the file that --weights names" in error(
        *fit("photos/train", "photos/unseen"), "--out", "same.pt"
    )
    assert Path("net.pt").read_bytes() == before


def test_what_a_network_prints_is_no_row(place: Path) -> None:
    code = "import net\ndef network():\n    print('made')\n    made = net.network()\n"
    code += "    made.register_forward_hook(lambda *_: print('loud'))\n    return made\n"
    Path("loud.py").write_text(code, encoding="utf-8")
    result = call(*SCORE, "--data", "photos/new/0000.png", "--model", "loud.py:network")
    assert len(table(result.stdout)) == 1 and "made\nloud" in result.stderr


def test_classes_may_be_called_by_numbers(place: Path) -> None:
    model, lines = nn.Linear(1, 3), [f"{i % 3},{i % 3 + 1}" for i in range(9)]
    Path("numbers.csv").write_text("\n".join(["x,y", *lines]), encoding="utf-8")
    given = Given(model="", data="", label="y", classes=["1", "2", "3"], columns=None, batch=9)
    assert next(iter(read(given, "numbers.csv", model)))[1].tolist() == [0, 1, 2] * 3


class Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("attacked",)


def test_networks_and_weights_that_are_not_as_expected(place: Path) -> None:
    Path("factories.py").write_text(
        "def fails():\n    raise OSError('no such server')\n\ndef three():\n    return 3\n", encoding="utf-8"
    )
    Path("typo.py").write_text("def (", encoding="utf-8")
    data = ["--data", "photos/new", "--grey"]
    for model, expected in {
        "factories.py:fails": "raised OSError: no such server",
        "factories:three": "gave int: expected a torch.nn.Module",
        "factories.py:four": "cannot import 'four' from 'factories.py'",
        "nowhere.py:network": "from 'nowhere.py': ModuleNotFoundError",
        "nowhere:network": "No module named 'nowhere'",
        "typo.py:network": "SyntaxError",
        "network": "names no factory",
    }.items():
        assert expected in error("layers", "--model", model, *data)
    state = torch.load("net.pt")
    torch.save({"epoch": 1, "state_dict": state}, "run.pt")
    assert call("layers", "--model", "net.py:network", "--weights", "run.pt", *data).exit_code == 0
    torch.save({"0.weight": Runs()}, "attack.pt")
    np.savez("attack.npz", x=np.array([Runs()]))
    Path("damaged.pt").write_bytes(Path("net.pt").read_bytes()[:500])
    torch.save({**state, "0.weight": torch.zeros(8, 3, 3, 3)}, "size.pt")
    torch.save({f"module.{name}": part for name, part in state.items()}, "names.pt")
    torch.save([1], "list.pt")
    for weights, expected in {
        "attack.pt": "It is not loaded, as such files can run code",
        "damaged.pt": "damaged.pt",
        "size.pt": "size mismatch for 0.weight",
        "names.pt": 'Missing key(s) in state_dict: "0.weight"',
        "list.pt": "holds list, not a state_dict",
        "nowhere.pt": "there is no file 'nowhere.pt'",
    }.items():
        assert expected in error("layers", "--model", "net.py:network", "--weights", weights, *data)
    assert "allow_pickle=False" in error("layers", *NET, "--data", "attack.npz")
    assert not Path("attacked").exists()
    for source in ("nowhere", "nowhere.csv", "net.pt"):
        assert f"{source!r} " in error("layers", *NET, "--data", source)
    assert "there is no file 'nowhere'" in error("score", *NET, "--detector", "nowhere", "--data", "photos/new")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["score", *NET], "--data"),
        ([*SCORE, "--data", "photos/new", "--out", "scores.txt"], ".jsonl"),
        ([*SCORE, "--data", "photos/new", "--mean", "1,2"], "three"),
        (["fit", *NET, "--data", "photos/train", "--out", "a"], "--holdout"),
        ([*fit("a", "b"), "--task", "guessing"], "guessing"),
    ],
)
def test_mistyped_commands(place: Path, arguments: list[str], expected: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert expected in result.output


def test_help_has_an_example_of_each_command() -> None:
    for command in ("layers", "fit", "score", "report", "export"):
        shown = re.sub(r"\s+", " ", CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"}).stdout)
        assert f"Example: hidden-uncertainty {command} --model net.py:Net" in shown


def test_report(place: Path) -> None:
    pytest.importorskip("hidden_uncertainty.reporting")
    arguments = ["--data", "photos/unseen", "--outliers", "photos/new", "--out", "report.html"]
    result = call("report", *SCORE[1:], *arguments)
    assert result.exit_code == 0, result.output
    page = Path("report.html").read_text(encoding="utf-8")
    assert {*re.findall(r"(?:predicted|label): (\w+)", page)} <= {*CLASSES}
    rows = csv.DictReader(call(*SCORE, "--data", "photos/new").stdout.splitlines())
    familiar = sorted(rows, key=lambda row: float(row["epistemic"]))[:6]
    hardest = page.partition("Outliers that are hardest to notice: photos/new")[2]
    assert re.findall(r"<strong>(\d+\.png)</strong>", hardest) == [row["input"] for row in familiar]


def test_a_real_process(place: Path) -> None:
    program = [sys.executable, "-c", "from hidden_uncertainty.cli.app import app; app()"]
    command = shlex.join([*program, *SCORE, "--data", "photos/new", "--batch", "1", "--fail-on-surprising"])
    shell = f"{command} | head -n 1; echo ${{PIPESTATUS[0]}}"
    ours = {**os.environ, "PYTHONPATH": str(Path(hidden_uncertainty.__file__).parents[1])}
    found = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, env=ours)
    assert found.stdout.splitlines()[0].startswith("input,prediction")
    assert found.stdout.splitlines()[1] == "0"
    assert found.stderr == ""
    traceback = call(*SCORE, "--data", "nowhere", "--debug")
    assert isinstance(traceback.exception, FileNotFoundError)
