from __future__ import annotations

import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from glocal.kernels import naming


def _name(folder: Path) -> str:
    spec = spec_from_file_location("copy_of_naming", folder / "naming.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.operator_name("mean_token")


def test_an_operators_name_changes_with_the_code_of_the_kernels_alone(tmp_path: Path) -> None:
    folder = shutil.copytree(Path(naming.__file__).parent, tmp_path / "kernels", ignore=lambda *_: ["__pycache__"])
    assert _name(folder) == naming.operator_name("mean_token")
    knobs = folder / "mean_triton.py"
    knobs.write_text(knobs.read_text().replace("FEW = 32", "FEW = 31"))
    assert _name(folder) != naming.operator_name("mean_token")
