"""How much is trained: what a processor can do in an hour, or, on a GPU, almost what the authors trained."""

from __future__ import annotations

from dataclasses import dataclass

from ...rivals import Schedule


@dataclass(frozen=True)
class Effort:
    """Sizes of trainings; networks of different ones are not put together.

    Args:
        name: `"CPU"` or `"GPU"`.
        images: of each training set, at most.
        schedule: of all networks but DUQ.
        duq: of DUQ: as published, but for its 30 epochs.
        vib: of the check "VIB".
        cnn: of the check "DUQ CNN", which sees all training images.
        channels: of its network; the published ones are 64, 128 and 128.
        every: whether that check is run for every seed.
        timed: what seconds are.
    """

    name: str
    images: int
    schedule: Schedule
    duq: Schedule
    vib: Schedule
    cnn: Schedule
    channels: tuple[int, int, int]
    every: bool
    timed: str


CPU = Effort(
    "CPU",
    30_000,
    Schedule(epochs=12),
    Schedule(12, 128, 0.05, momentum=0.9, milestones=(4, 8)),
    Schedule(8, 100, 1e-3, 0.0, milestones=(4, 6)),
    Schedule(20, 128, 0.05, momentum=0.9, milestones=(7, 13)),
    (16, 32, 32),  # those published take half a second per step on one core
    every=False,
    timed="of the processor, with one thread",
)
GPU = Effort(
    "GPU",
    60_000,
    Schedule(epochs=20),
    Schedule(20, 128, 0.05, momentum=0.9, milestones=(7, 13)),
    # The authors' 200 epochs lower the rate by as much in all: 0.97 after every second one.
    Schedule(60, 100, 1e-4, 0.0, milestones=tuple(range(2, 60, 2)), decay=0.9, beta=0.5),
    Schedule(30, 128, 0.05, momentum=0.9, milestones=(10, 20)),
    (64, 128, 128),
    every=True,
    timed="of the clock, on a GPU",
)
EFFORTS = {each.name: each for each in (CPU, GPU)}


def describe(effort: Effort) -> dict[str, str]:
    """The settings of every check, in words."""
    cnn, vib = effort.cnn, effort.vib
    whole = effort.channels == (64, 128, 128)
    channels = "their channels" if whole else "a quarter of their channels"
    epochs = f"{cnn.epochs} epochs" + " instead of 30" * (cnn.epochs != 30) + " of all images"
    of_all = "" if effort.images == 60_000 else " of all"
    return {
        "DUQ two moons": "the authors' notebook: 3 layers of 20, 10 per embedding, σ 0.3, γ 0.99, λ 1, SGD, 30 epochs",
        "SNGP two moons": "the authors' tutorial: 6 layers of 128, bound 0.9, 1024 features scaled by √(2/1024), ℓ 1, "
        "λ π/8, Adam 1e-4, batches of 128, 100 epochs; without their dropout, and with a first layer that is trained",
        "DUQ CNN": f"the authors' settings; {channels}, {epochs}",
        "VIB": f"2 layers of 1024, K 256, β 1e-3, Adam {vib.learning_rate:g}, batches of 100, {vib.epochs} epochs of "
        f"{effort.images:,} images, not 200{of_all}",
        "DDU ambiguous": "10,000 digits and about as many means of two digits with either label, not a VAE's",
    }
