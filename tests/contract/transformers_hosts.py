"""Tiny hosts of transformers that take an image and give logits, as timm's do; HERE tells whether it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

HERE = find_spec("transformers") is not None
TINY: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip

if HERE:
    import transformers as hf

    class Plain:
        """One image in, logits out, at any size; recomputation by timm's name."""

        def forward(self, pixel_values: Tensor) -> Tensor:
            return super().forward(pixel_values, interpolate_pos_encoding=True).logits  # type: ignore[misc]

        def set_grad_checkpointing(self, on: bool) -> None:
            if on:
                self.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[attr-defined]
            else:
                self.gradient_checkpointing_disable()  # type: ignore[attr-defined]

    class ViT(Plain, hf.ViTForImageClassification):
        pass

    class Siglip(Plain, hf.SiglipForImageClassification):
        pass

    class DINOv3(Plain, hf.DINOv3ViTModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.classifier = nn.Linear(config.hidden_size, config.num_labels)

        def forward(self, pixel_values: Tensor) -> Tensor:
            found = hf.DINOv3ViTModel.forward(self, pixel_values).last_hidden_state
            return self.classifier(found.mean(1))


def vit() -> nn.Module:
    return ViT(hf.ViTConfig(**TINY, num_labels=5))


def siglip() -> nn.Module:
    return Siglip(hf.SiglipConfig(vision_config=TINY, num_labels=5))


def dinov3() -> nn.Module:
    # Without the random stretching of positions that training has by default.
    return DINOv3(hf.DINOv3ViTConfig(**TINY, num_register_tokens=2, num_labels=5, pos_embed_rescale=None))
