"""Two processes fit what one would, to the bit the same in both; and what goes wrong in one, all are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import multiprocessing

import shards
from hidden_uncertainty.team import Team, together
from ties import near_ties


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two processes said."""
    folder, context = tmp_path_factory.mktemp("processes"), multiprocessing.get_context("spawn")
    processes = [context.Process(target=shards.run, args=(rank, str(folder))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    found = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for rank, own in enumerate(found):
        assert "traceback" not in own, f"process {rank}: {own['traceback']}"
    return found


@pytest.mark.parametrize("name", [*shards.SAME, "a group", "alone"])
def test_as_in_one_process(name: str, said: list[dict[str, Any]]) -> None:
    build = shards.latent("1", shards.GaussianMixture(1))
    one = shards.SAME.get(name, lambda rank: shards.fitted(build, "uneven", rank))(-1)
    expected, mine = shards.report(one), said[0][name]
    tolerance = 1e-2 if name == "mixtures" else 1e-4 if name in ("sketched", "numbers") else 1e-5
    for key, values in expected["said"].items():
        if values is None:
            assert mine["said"][key] is None
            continue
        if key == "p_value":
            assert one.head is not None and one.head.calibration is not None
            near = near_ties(expected["said"]["epistemic"], one.head.calibration, tolerance, tolerance, mine["margin"])
            ranks = (mine["said"][key] - values).abs() * (len(one.head.calibration.scores) + 1)
            assert (ranks <= near + 1e-6).all()
        else:
            torch.testing.assert_close(mine["said"][key], values, rtol=tolerance, atol=tolerance, equal_nan=True)
    if name != "alone":
        other = said[1][name]
        assert mine["repr"] == other["repr"] and mine["state"].keys() == other["state"].keys()
        assert all(torch.equal(tensor, other["state"][key]) for key, tensor in mine["state"].items())


def test_a_sampler_that_repeats_inputs_is_noticed(said: list[dict[str, Any]]) -> None:
    (text, again, later), others = said[0]["padded"], said[1]["padded"]  # of a fit, its calibration, and another
    assert text.startswith("102 inputs come of 101: DistributedSampler repeats some") and others == []
    assert again == later == text
    assert "Subset(dataset, range(rank, len(dataset), processes))" in text


def test_what_goes_wrong_in_one_is_told_to_all(said: list[dict[str, Any]]) -> None:
    first, second = said
    assert first["a loader raises"] == "RuntimeError: process 1 of 2 failed: OSError: the disk of this shard is gone"
    assert second["a loader raises"] == "OSError: the disk of this shard is gone"
    assert "process 1 of 2 failed: ValueError" in first["NaN"] and "NaN or infinite" in first["NaN"]
    assert first["a warning that is an error"].startswith("UserWarning: 102 inputs come")
    assert "process 0 of 2 failed: UserWarning: 102 inputs come" in second["a warning that is an error"]
    for found in (first, second):
        assert "whether calibration= or holdout= was given, of process 1" in found["calibration in one"]
        assert "process 1 has another model than process 0" in found["another model"]
        assert "the detector of process 1 is LatentDensity of ['1'] given the prediction" in found["another density"]
        assert "the detector of process 1 is LatentDensity of ['1'] given the label" in found["another condition"]
        assert "all shards are empty" in found["no inputs at all"]
        assert "nothing to calibrate with" in found["too few to calibrate"]
        assert "GaussianProcess cannot be fitted by several processes" in found["a process that cannot"]


def test_a_killed_process_ends_the_other(said: list[dict[str, Any]]) -> None:
    first, second = said
    assert "another process of the group has ended" in first["killed"] and "killed" not in second
    assert first["seconds"] < 60
    assert first["never called"].startswith("process [1] of 2 did not call the same method within 3 s.")
    assert "process_group=False" in first["never called"]


def test_alone() -> None:
    with together() as crew, together() as inner:
        assert inner is crew and type(crew) is Team
        assert float(crew.sum(torch.ones(()))) == 1 and crew.first(2) == 2 and crew.to_first(3) == [3]
    with pytest.raises(RuntimeError, match="is not in use"), together("some group"):
        pass
