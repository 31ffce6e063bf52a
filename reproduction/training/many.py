"""Training many classifiers at once, with separate early stopping; finished networks are loaded."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from hidden_uncertainty import io
from hidden_uncertainty.progress import bars, progress_bar

from ..nets.regularised import Regularised
from .fcnet_lane import Stacked, StackLane, stackable
from .lane import Data, Lane, Recipe
from .module_lane import ModuleLane
from .watch import CRITERIA, Criterion, Keep

_AT_ONCE = 10  # networks side by side that are not stacked: residual ones take 0.32 ms per step each, alone 0.71 (H200)


@dataclass(frozen=True, eq=False)
class Group:
    """Networks of one architecture that share their data and recipe.

    Args:
        name: of the group, in the names of its files.
        networks: untrained, each with its own `seed`.
        data: for training and early stopping.
        recipe: how.
        criteria: of early stopping, all in one training.
        about: what else must be equal for finished networks to be loaded, such as a digest of the data.
    """

    name: str
    networks: Sequence[nn.Module]
    data: Data
    recipe: Recipe = field(default_factory=Recipe)
    criteria: Sequence[Criterion] = CRITERIA
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of a group: every network's weights, by criterion, of its best and of its last epoch.

    Args:
        group: what was trained.
        states: of each network, by criterion and kind of epoch.
        epochs: of each network, by criterion.
    """

    group: Group
    states: Sequence[Mapping[tuple[Criterion, Keep], Mapping[str, Tensor]]]
    epochs: Sequence[Mapping[Criterion, int]]

    def networks(
        self, criterion: Criterion = "loss", keep: Keep = "best", device: torch.device | str = "cpu"
    ) -> list[Any]:
        """Modules in evaluation mode.

        Args:
            criterion: of early stopping.
            keep: weights of the best epoch, or of the last one, `patience` epochs later.
            device: where data go.
        """
        found = []
        for network, states in zip(self.group.networks, self.states, strict=True):
            if (criterion, keep) not in states:
                raise ValueError(f"there are no weights by {criterion!r}; criteria were {self.group.criteria}.")
            module = copy.deepcopy(network)
            module.load_state_dict(states[criterion, keep])
            found.append(module.to(device).eval())
        return found


def train_many(
    groups: Sequence[Group],
    *,
    device: torch.device | str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> list[Trained]:
    """Train all networks of all groups, side by side.

    Perceptrons of a group, `Regularised` or not, are one stack of matrices; other networks are trained separately. On a
    GPU, a step is one recorded graph, groups and networks run on streams of their own, and data are on the device; on a
    CPU, the same steps run one after the other. A network's seed decides the order of its batches and its dropout; for
    perceptrons, the seed of the first one decides dropout. Networks that diverge raise an error once all others are
    finished.

    Args:
        groups: what to train.
        device: where; None takes a GPU if there is one.
        folder: for weights, one file per network: networks found there are loaded, not trained.

    Example:
        >>> from reproduction.nets import FCNet
        >>> images, labels = torch.rand(80, 1, 4, 4), torch.arange(80) % 2
        >>> data = Data(images[:64], labels[:64], images[64:], labels[64:])
        >>> networks = [FCNet(16, 8, 2, seed=seed) for seed in range(3)]
        >>> trained = train_many([Group("toy", networks, data, Recipe(epochs=2))], device="cpu")
        >>> len(trained[0].networks("loss", "best"))
        3
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    store = None if folder is None else Path(folder)
    for group in groups:
        _check(group)
    if store is not None:
        _check_files(groups)
    done: dict[tuple[int, int], _Finished] = {}
    waiting: list[tuple[list[tuple[int, int]], Lane]] = []
    diverged: list[str] = []
    for g, group in enumerate(groups):
        left = []
        for i, network in enumerate(group.networks):
            found = None if store is None else _load(store, group, network)
            if found is None:
                left.append((g, i))
            else:
                done[g, i] = found
        if left:
            waiting += _lanes(group, left, device)
    total = sum(len(keys) for keys, _ in waiting)
    quiet = nullcontext() if total else bars(False)
    with quiet, progress_bar(f"training {total} networks", total) as bar:
        going: list[tuple[list[tuple[int, int]], Lane]] = []
        while waiting or going:
            room = _AT_ONCE - sum(isinstance(lane, ModuleLane) for _, lane in going)
            while waiting and (room > 0 or isinstance(waiting[0][1], StackLane)):
                going.append(waiting.pop(0))
                room -= isinstance(going[-1][1], ModuleLane)
            _epoch([lane for _, lane in going])
            bar.advance(0, epoch=max(lane.epoch for _, lane in going), loss=going[0][1].loss)
            for keys, lane in going:
                if lane.done:
                    for key, finished in zip(keys, _finished(lane), strict=True):
                        group, network = groups[key[0]], groups[key[0]].networks[key[1]]
                        done[key] = finished
                        if not finished.sound:
                            diverged.append(f"{group.name}-{_own(network)}")
                        elif store is not None:
                            _save(store, group, network, finished)
                    bar.advance(len(keys))
            going = [(keys, lane) for keys, lane in going if not lane.done]
    if diverged:
        raise RuntimeError(
            f"{len(diverged)} of {total} networks diverged, with a loss or weights that are not finite: "
            f"{', '.join(diverged)}. Lower learning_rate, and check that images are finite."
        )
    return [
        Trained(
            group,
            [done[g, i].states for i in range(len(group.networks))],
            [done[g, i].epochs for i in range(len(group.networks))],
        )
        for g, group in enumerate(groups)
    ]


@dataclass(frozen=True)
class _Finished:
    states: dict[tuple[Criterion, Keep], dict[str, Tensor]]
    epochs: dict[Criterion, int]
    sound: bool = True  # whether weights and criteria are finite


def _lanes(group: Group, keys: list[tuple[int, int]], device: torch.device) -> list[tuple[list[tuple[int, int]], Lane]]:
    data = group.data.to(device)
    networks = [group.networks[i] for _, i in keys]
    if stackable(networks):
        return [(keys, StackLane(cast(list[Stacked], networks), data, group.recipe, group.criteria))]
    data = ModuleLane.channels_last(data)
    return [
        ([key], ModuleLane(network, data, group.recipe, group.criteria))
        for key, network in zip(keys, networks, strict=True)
    ]


def _epoch(lanes: Sequence[Lane]) -> None:
    """One epoch of every lane; lanes take turns by step, so that no stream waits for another's queue."""
    for lane in lanes:
        with lane.on_stream():
            lane.begin()
    for step in range(max(lane.steps for lane in lanes)):
        for lane in lanes:
            if step < lane.steps:
                with lane.on_stream():
                    lane.step()
    for lane in lanes:
        with lane.on_stream():
            lane.check()
    for lane in lanes:
        with lane.on_stream():
            lane.prepare()
    for lane in lanes:
        with lane.on_stream():
            lane.end()


def _finished(lane: Lane) -> list[_Finished]:
    states = {key: lane.states(kept) for key, kept in lane.watch.kept.items()}
    count = len(next(iter(states.values())))
    epochs = {name: values.tolist() for name, values in lane.watch.epochs.items()}
    measured = torch.stack(list(lane.watch.lowest.values())).isfinite().all(0).tolist()
    return [
        _Finished(
            {key: each[i] for key, each in states.items()},
            {name: values[i] for name, values in epochs.items()},
            measured[i] and all(bool(t.isfinite().all()) for each in states.values() for t in each[i].values()),
        )
        for i in range(count)
    ]


def _check(group: Group) -> None:
    if not group.networks:
        raise ValueError(f"group {group.name!r} has no networks: give at least one.")
    if not len(group.data.images) or not len(group.data.held_images):
        raise ValueError(
            f"group {group.name!r} has {len(group.data.images)} images to train on and {len(group.data.held_images)} "
            "for early stopping: give at least one of each."
        )
    for images, labels in ((group.data.images, group.data.labels), (group.data.held_images, group.data.held_labels)):
        if len(images) != len(labels):
            raise ValueError(f"group {group.name!r} has {len(images)} images with {len(labels)} labels: give as many.")
    if not group.criteria or not set(group.criteria) <= set(CRITERIA):
        raise ValueError(f"criteria of group {group.name!r} must be some of {CRITERIA}, got {tuple(group.criteria)}.")
    shapes = {tuple(tuple(p.shape) for p in network.parameters()) for network in group.networks}
    if len(shapes) > 1:
        raise ValueError(f"group {group.name!r} has networks of {len(shapes)} shapes: make one group per shape.")
    seeds = [getattr(network, "seed", None) for network in group.networks]
    if None in seeds or len({_own(network) for network in group.networks}) < len(seeds):
        raise ValueError(
            f"every network of group {group.name!r} needs its own `seed`, or its own weight if it is regularised, "
            f"got seeds {seeds}."
        )


def _check_files(groups: Sequence[Group]) -> None:
    names = [f"{group.name}-{_own(network)}" for group in groups for network in group.networks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two networks would have the file {twice[0]!r}: give each group its own name.")


def _own(network: nn.Module) -> str:
    """What distinguishes a network from the others of its group."""
    return f"weight-{network.weight!r}-{network.seed}" if isinstance(network, Regularised) else f"{network.seed}"


def _path(folder: Path, group: Group, network: nn.Module) -> Path:
    return folder / f"{group.name}-{_own(network)}.safetensors"


def _header(group: Group, network: nn.Module) -> dict[str, Any]:
    """What must be equal for a finished network to be loaded."""
    plain = network.network if isinstance(network, Regularised) else network
    header = {
        "network": type(plain).__name__,
        "initialisation": getattr(plain, "initialisation", None),
        "dropout": getattr(plain, "dropout", None),
        "seed": network.seed,
        "recipe": asdict(group.recipe),
        "criteria": list(group.criteria),
        "about": dict(group.about),
    }
    if isinstance(network, Regularised):
        decoder = type(network.decoder).__name__
        header["regularised"] = {"layer": network.layer, "weight": network.weight, "decoder": decoder}
    return header


def _save(folder: Path, group: Group, network: nn.Module, finished: _Finished) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{criterion}/{keep}/{name}": value
        for (criterion, keep), state in finished.states.items()
        for name, value in state.items()
    }
    io.write(_path(folder, group, network), {**_header(group, network), "epochs": finished.epochs}, tensors)


def _load(folder: Path, group: Group, network: nn.Module) -> _Finished | None:
    path = _path(folder, group, network)
    if not path.exists():
        return None
    header, tensors = io.read(path)
    epochs = header.pop("epochs", None)
    if header != _header(group, network):
        raise ValueError(
            f"{str(path)!r} holds a network trained differently ({header}): choose another folder, or remove it."
        )
    states: dict[tuple[Criterion, Keep], dict[str, Tensor]] = {}
    for key, value in tensors.items():
        criterion, keep, name = key.split("/", 2)
        states.setdefault((cast(Criterion, criterion), cast(Keep, keep)), {})[name] = value
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    if any({name: value.shape for name, value in state.items()} != shapes for state in states.values()):
        raise ValueError(f"{str(path)!r} holds a network of another shape: choose another folder, or remove it.")
    return _Finished(states, epochs)
