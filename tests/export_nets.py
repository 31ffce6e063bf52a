"""Small networks with their detectors, as graphs are compared for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, JointMixture, LatentDensity, Pixels, Reduce
from pixel_nets import Net, images

PAPER = GaussianMixture(5, shrinkage=None, min_samples=5)


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None


class Convolutions(nn.Module):
    """With a rectifier in place right after a layer that is read, and a mode that changes what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.two = nn.Conv2d(6, 8, 3, stride=2)
        self.act = nn.ReLU(inplace=True)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(72, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.act(self.two(self.one(x))).flatten(1)))


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Output:
        hidden = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return Output(3 * self.head(hidden[:, 0]))


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 8), nn.Tanh())
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


def pictures(n: int, seed: int) -> Tensor:
    return images(n, (8, 8), seed, channels=1)


def texts(n: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 30, (n, 9), generator=generator)
    mask = (torch.arange(9) < torch.randint(3, 10, (n, 1), generator=generator)).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def numbers(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return x, x.sum(1) + torch.randn(n, generator=generator)


def build(kind: str, setting: str) -> tuple[LatentDensity, Any]:
    """A fitted detector, and what draws its inputs."""
    paper = setting == "paper"
    torch.manual_seed(0)
    if kind == "convolutions":
        net, draw, options = Convolutions(), pictures, {}
        with torch.no_grad():  # random logits hardly differ: each class is to be told now and then
            logits = net.eval()(draw(200, 9))
            net.out.weight.div_(logits.std(0)[:, None])
            net.out.bias.sub_(logits.mean(0)).div_(logits.std(0))
        net.train()
        if paper:
            options = {"layers": "two", "density": PAPER, "reduce": Reduce("flatten", max_dim=6), "combine": "last"}
    elif kind == "texts":
        net, draw, options = Texts(), texts, {"output": "logits"}
        if paper:
            reduce = Reduce("tokens", max_dim=6)
            options |= {"layers": "encoder.layers.0", "density": PAPER, "reduce": reduce, "combine": "last"}
    elif kind == "numbers":
        net, draw, options = Numbers(), numbers, {"task": "regression", "condition": "label"}
        if paper:
            density = JointMixture(5, shrinkage=None)
            options |= {
                "layers": "body.2",
                "density": density,
                "reduce": Reduce("flatten", max_dim=5),
                "marginal": "gaussian",
            }
    else:
        net, draw = Net(), lambda n, seed: images(n, (12, 16), seed)
        options = {
            "layers": "third" if paper else "second",
            "pixels": Pixels("latent" if paper else "output", per_class=400),
        }
        if paper:
            options |= {"density": PAPER, "reduce": Reduce("channels", max_dim=4)}
    n = 900 if kind != "pixels" else 400 if paper else 60
    detector = LatentDensity(net, progress=False, **options)
    detector.fit([draw(n, 1)], calibration=[draw(n // 2, 2)]).threshold(0.05)
    return detector, draw
