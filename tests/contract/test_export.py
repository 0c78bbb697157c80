"""Every mechanism leaves as ONNX and as torch.export with the numbers it had, or leaves no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import glocal
from glocal.export import export, open_model
from glocal.models.tokens_to_token import PerformerAttention

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
SWIN: dict[str, Any] = {
    "img_size": 32, "patch_size": 4, "window_size": 2, "embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2),
    "num_classes": 5,
}  # fmt: skip
VARIANTS = [
    "life",
    "life(aux_key=first)",
    "local-ffn",
    "local-ffn(gate=eca)",
    "cb",
    "cbs",
    "early-mlp@0",
    "uniform-head",
    "squeeze-context",
    "conv-stem",
]


def vit(variant: str, **arguments: Any) -> nn.Module:
    host = timm.create_model("vit_tiny_patch16_224", **{**VIT, **arguments})
    return stir(glocal.enhance(host, *glocal.named(variant)))


def stir(model: nn.Module) -> nn.Module:
    """Move every parameter and statistic off its start, where a wrong graph could hide."""
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.05)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_(std=0.2)
                module.running_var.uniform_(0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_export_keeps_every_mechanism_with_an_open_batch(variant: str, tmp_path: Path) -> None:
    if variant == "conv-stem":
        host = timm.create_model("vit_tiny_patch16_224", **{**VIT, "img_size": 64, "patch_size": 16})
        model = stir(glocal.enhance(host, *glocal.named(variant)))
    else:
        model = vit(variant)
    done = export(model, tmp_path / "model.pt2", to="torch-export", dynamic=True)
    assert done.free == (0,)
    assert [shape[0] for shape in done.shapes] == [2, 3]
    again = torch.export.load(tmp_path / "model.pt2").module()
    images = torch.randn(5, *done.shapes[0][1:])
    torch.testing.assert_close(again(images), model(images), rtol=1e-4, atol=1e-5)


def test_onnx_keeps_the_three_local_and_global_mechanisms_at_any_size_the_host_takes(tmp_path: Path) -> None:
    import onnxruntime

    model = vit("life+local-ffn+cbs", dynamic_img_size=True)
    done = export(model, tmp_path / "model.onnx", dynamic=True)
    assert done.free == (0, 2, 3)
    assert done.difference < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    images = torch.randn(4, 3, 40, 72)
    (got,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(got), model(images), rtol=1e-4, atol=1e-5)


def test_deformable_merging_leaves_as_onnx_from_opset_19(tmp_path: Path) -> None:
    model = stir(glocal.enhance(timm.create_model("swin_tiny_patch4_window7_224", **SWIN), glocal.DTM()))
    done = export(model, tmp_path / "model.onnx", dynamic=True, opset=19)
    assert [shape[0] for shape in done.shapes] == [2, 3]
    with pytest.raises(glocal.GlocalError, match="no deformable convolution in opset 18"):
        export(model, tmp_path / "old.onnx", opset=18)
    assert not (tmp_path / "old.onnx").exists()


class Fickle(nn.Module):
    """Gives other numbers when traced than when run."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        self.img_size = (8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) + (1.0 if torch.compiler.is_exporting() else 0.0)


def test_a_file_with_other_numbers_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(glocal.GlocalError, match="other numbers than PyTorch"):
        export(Fickle(), tmp_path / "model.pt2", to="torch-export")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(glocal.GlocalError, match="There are: onnx, torch-export"):
        export(Fickle(), tmp_path / "model.x", to="tflite")  # type: ignore[arg-type]


def test_a_saved_model_is_found_by_its_file_and_by_its_folder(tmp_path: Path) -> None:
    model = glocal.create_model("vit_tiny_patch16_224", glocal.LIFE(), **VIT).eval()
    glocal.save(model, tmp_path / "model.safetensors")
    images = torch.randn(1, 3, 32, 32)
    for place in (tmp_path, tmp_path / "model.safetensors"):
        torch.testing.assert_close(open_model(str(place))(images), model(images))
    with pytest.raises(glocal.GlocalError, match="neither a run folder nor a file"):
        open_model(str(tmp_path / "nothing.safetensors"))


def test_a_performer_with_sums_near_its_guard_leaves_as_onnx(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = timm.create_model("t2t_vit_7", img_size=32, num_classes=3).eval()
    for module in model.modules():
        if isinstance(module, PerformerAttention):
            module.kqv.weight.data.normal_(std=0.5)  # large queries and keys have tiny features
            image = torch.randn(1, 49, module.kqv.in_features)
            keys, queries, _ = module.kqv(image).chunk(3, dim=-1)
            assert (module.features(queries) @ module.features(keys).sum(1)[..., None]).min() < 1e-8
    assert export(model, tmp_path / "model.onnx", size=32).difference < 1e-4


def test_a_model_of_transformers_leaves_at_the_size_it_was_built_for(tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers")
    config = hf.ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, image_size=32, patch_size=8
    )
    assert export(hf.ViTModel(config), tmp_path / "model.pt2").shapes[0] == (1, 3, 32, 32)


def test_a_model_without_convolutions_is_taken_to_see_colours(tmp_path: Path) -> None:
    assert export(nn.Flatten(), tmp_path / "model.pt2", size=8).shapes[0] == (1, 3, 8, 8)
