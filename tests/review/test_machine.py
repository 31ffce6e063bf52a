"""Commands and machines of all kinds."""

from typer.testing import CliRunner

from found import found

try:
    from hidden_uncertainty.cli.app import app
except ImportError:
    from hidden_uncertainty.cli import app


@found(
    "C35",
    "`hidden-uncertainty demo --seed` with a number of 30 digits",
    "a traceback",
    "an error of one line with the largest seed; also for folders of unknown users",
)
def test_a_huge_seed(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--quick", "--seed", str(10**30), "--out", str(tmp_path)])
    assert result.exit_code == 2
