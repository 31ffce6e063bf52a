"""A small stand-in for timm: `create_model` with timm's arguments, and networks with timm's names of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def create_model(model_name: str, pretrained: bool = False, **kwargs) -> nn.Module:
    if pretrained:
        raise RuntimeError("the stand-in has no weights: pretrained=False.")
    return (VisionTransformer if model_name.startswith("vit") else ResNet)(**kwargs)


class TimmModel(nn.Module):
    """`forward` is `forward_head` after `forward_features`, as in timm."""

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.fc if hasattr(self, "fc") else self.head


class BasicBlock(nn.Module):
    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.act1 = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.act2 = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x += shortcut
        return self.act2(x)


class SelectAdaptivePool2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.flatten(self.pool(x))


class ResNet(TimmModel):
    def __init__(self, num_classes: int = 1000, in_chans: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(in_chans, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True)
        self.maxpool = nn.MaxPool2d(3, 1, 1)
        widths = [8, 8, 16, 32, 64]
        for i in range(1, 5):
            blocks = nn.Sequential(BasicBlock(widths[i - 1], widths[i], 1 if i in (1, 4) else 2))
            self.add_module(f"layer{i}", blocks)
        self.global_pool, self.fc = SelectAdaptivePool2d(), nn.Linear(64, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.global_pool(x)
        return x if pre_logits else self.fc(x)


class PatchEmbed(nn.Module):
    def __init__(self, in_chans: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj, self.norm = nn.Conv2d(in_chans, width, patch, patch), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x).flatten(2).transpose(1, 2))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, w = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(n, t, w))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(TimmModel):
    """Classifies by the class token, timm's `global_pool="token"`."""

    def __init__(
        self, img_size: int = 224, patch_size: int = 16, in_chans: int = 3, num_classes: int = 1000, depth: int = 4
    ) -> None:
        super().__init__()
        width = 32
        self.patch_embed = PatchEmbed(in_chans, width, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (img_size // patch_size) ** 2 + 1, width))
        self.pos_drop, self.patch_drop, self.norm_pre = nn.Dropout(0.0), nn.Identity(), nn.Identity()
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.norm, self.fc_norm, self.head_drop = nn.LayerNorm(width), nn.Identity(), nn.Dropout(0.0)
        self.head = nn.Linear(width, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.norm(self.blocks(self.norm_pre(self.patch_drop(self.pos_drop(x)))))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(self.fc_norm(x[:, 0]))
        return x if pre_logits else self.head(x)
