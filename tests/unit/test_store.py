from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from timm.utils import ModelEmaV3
from torch import nn

from glocal import LIFE, ContextBroadcast, GlocalError, LocalFFN, create_model, enhance, export, fold, load, save
from tests.contract.cases import HOSTS, lively

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
NAME = "vit_tiny_patch16_224"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_a_saved_model_may_be_read_by_whoever_may_read_its_neighbours(path: Path) -> None:
    (path.parent / "notes.txt").touch()
    save(create_model(NAME, **TINY), path)
    assert path.stat().st_mode == (path.parent / "notes.txt").stat().st_mode


def test_a_created_model_comes_back_by_itself(path: Path) -> None:
    model = lively(create_model(NAME, LIFE(layers="upper"), LocalFFN(), **TINY)).eval()
    model = lively(enhance(model, ContextBroadcast(scaled=True), preserve=True)).eval()
    save(model, path)
    again, x = load(path), torch.randn(2, 3, 32, 32)
    assert torch.equal(again(x), model(x))
    assert [g.path for g in again.glocal.grafts] == [g.path for g in model.glocal.grafts]
    assert again.glocal.name == NAME


def test_a_model_begun_from_a_checkpoint_comes_back_without_it(path: Path, tmp_path: Path) -> None:
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2, "num_classes": 3}
    first = create_model("vit_tiny_patch16_224", **shape)
    torch.save(first.state_dict(), tmp_path / "mine.pth")
    save(create_model("vit_tiny_patch16_224", checkpoint_path=str(tmp_path / "mine.pth"), **shape), path)
    (tmp_path / "mine.pth").unlink()
    assert torch.equal(load(path).state_dict()["head.weight"], first.state_dict()["head.weight"])


@pytest.mark.parametrize("file", ["gone.pth", "gone.safetensors"])
def test_pretrained_weights_of_a_file_that_is_gone_are_told(file: str, tmp_path: Path) -> None:
    with pytest.raises(GlocalError, match="cannot be had: FileNotFoundError"):
        create_model("vit_tiny_patch16_224", pretrained=True, pretrained_cfg_overlay={"file": str(tmp_path / file)})


def test_what_was_changed_after_building_comes_back_too(path: Path) -> None:
    model = create_model(NAME, LIFE(), **TINY).eval()
    model.reset_classifier(3)
    model.set_input_size((32, 64))
    save(model, path)
    x = torch.randn(1, 3, 32, 64)
    assert torch.equal(load(path)(x), model(x))


def test_a_resized_swin_comes_back(path: Path) -> None:
    tiny = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4)}
    model = create_model("swin_tiny_patch4_window7_224", LIFE(), **tiny).eval()
    model.set_input_size((64, 32), window_size=(8, 4))
    save(model, path)
    x = torch.randn(1, 3, 64, 32)
    assert torch.equal(load(path)(x), model(x))


def test_a_host_made_elsewhere_must_be_handed_over(path: Path) -> None:
    model = enhance(HOSTS["vit"].build(), LIFE())
    save(model, path)
    with pytest.raises(GlocalError, match=r"load\(path, host=\.\.\.\)"):
        load(path)
    with pytest.raises(GlocalError, match="the host given is a SwinTransformer"):
        load(path, host=HOSTS["swin"].build())
    given = HOSTS["vit"].build()
    assert load(path, host=given) is not given


def test_wrong_files_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(GlocalError, match="is not a file"):
        load(tmp_path / "nowhere.safetensors")
    path.write_text("hello")
    with pytest.raises(GlocalError, match="not a whole safetensors file"):
        load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(GlocalError, match="no record of host"):
        load(path)
    model = create_model(NAME, **TINY)
    save(model, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(GlocalError, match="not a whole safetensors file"):
        load(path)
    with pytest.raises(GlocalError, match="is a folder"):
        save(model, tmp_path)


def test_a_failed_save_leaves_the_old_file_and_no_scrap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model(NAME, **TINY)
    save(model, path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("glocal.store.save_file", full)
    with pytest.raises(GlocalError, match="cannot write .*no space"):
        save(create_model(NAME, LIFE(), **TINY), path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_no_pickle_is_involved(path: Path) -> None:
    save(create_model(NAME, **TINY), path)
    assert b"pickle" not in path.read_bytes()[:2000]


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("deit_tiny_patch16_24", {}, "Did you mean 'deit_tiny_patch16_224'"),
        (NAME, {"img_size": 225}, "image height 225 is not a multiple of the patch height 16. Use 224 or 240."),
        (NAME, {"img_size": (224, 230)}, "image width 230"),
        (NAME, {"img_size": 99999984}, "does not fit into memory"),
        ("local-dir:/none", {}, "local-dir:/none cannot be opened: Config file not found"),
        ("nowhere:model", {}, "nowhere:model cannot be opened: Unknown model source"),
    ],
)
def test_impossible_models_are_refused(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(GlocalError) as caught:
        create_model(name, **arguments)
    assert message in str(caught.value)


def test_weights_that_are_nowhere_are_missed_by_name() -> None:
    with pytest.raises(GlocalError, match="pretrained weights of lit_tiny cannot be had.*load_released"):
        create_model("lit_tiny", pretrained=True)


def test_features_are_extracted_after_grafting() -> None:
    extractor = create_model(NAME, LIFE(), features_only=True, out_indices=(0, 1), **TINY)
    features = extractor(torch.randn(1, 3, 32, 32))
    assert [tuple(each.shape) for each in features] == [(1, 24, 4, 4)] * 2
    assert any("inner.pointwise" in name for name, _ in extractor.named_parameters())


def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    model = create_model(NAME, **TINY)
    for write in (save, export):
        with pytest.raises(GlocalError, match="is a device or a pipe"):
            write(model, pipe)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("place", ["file/model.safetensors", "/proc/none/model.safetensors", "/proc/model.safetensors"])
def test_a_place_that_cannot_be_written_is_told(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(GlocalError, match="cannot write .*model.safetensors"):
        save(create_model(NAME, **TINY), tmp_path / place)


def test_a_folded_copy_is_not_saved_as_what_could_not_be_loaded(path: Path) -> None:
    model = create_model(NAME, LocalFFN(), **TINY).eval()
    for folded in (fold(model), fold(fold(model)), copy.deepcopy(fold(model))):
        with pytest.raises(GlocalError, match="Save the model it was made from"):
            save(folded, path)
    save(model, path)
    save(fold(create_model(NAME, LIFE(), **TINY)), path)  # nothing to merge, so it is the same model
    load(path)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, ModelEmaV3])
def test_a_wrapped_model_is_saved_as_the_model_itself(path: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, x = lively(create_model(NAME, LIFE(), **TINY)).eval(), torch.randn(1, 3, 32, 32)
    save(wrap(model), path)
    assert torch.equal(load(path)(x), model(x))
