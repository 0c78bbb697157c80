"""The released models: which of ours each one is, and what its names and shapes cannot show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glocal.released import families
from glocal.released.families import Family


@dataclass(frozen=True)
class Release:
    """One released model: our name for it, and the family that its tensors are named after."""

    family: Family
    model: str
    mechanisms: str = ""
    """Grafted onto the model, as `glocal.named` reads them."""
    classes: int = 1000
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


# The released LIFE repeats scale 1 in the class token's key; `_eq6key` is the same weights read as Eq. 6 has them.
_AS_RELEASED = "life(aux_key=first)"


def _life(host: str) -> dict[str, Release]:
    return {
        f"life_{host}": Release(families.LIFE_DEIT, host, _AS_RELEASED, 100),
        f"life_{host}_eq6key": Release(families.LIFE_DEIT, f"{host}_life", "", 100),
    }


_SIZES = ("tiny", "small", "base")
RELEASES: dict[str, Release] = {
    **{name: Release(families.PLAIN, name) for name in (f"deit_{size}_patch16_224" for size in _SIZES)},
    **{name: Release(families.PLAIN, name) for name in (f"deit_{size}_distilled_patch16_224" for size in _SIZES)},
    "life_deit_tiny_patch4_32_base": Release(families.PLAIN, "deit_tiny_patch4_32", "", 100),
    **_life("deit_tiny_patch16_224"),
    **_life("deit_small_patch16_224"),
    **_life("deit_tiny_patch4_32"),
    **_life("deit_small_patch4_32"),
    "swinv2_tiny_window8_256_base": Release(families.SWIN, "swinv2_tiny_window8_256", "", 100),
    "life_swinv2_tiny_window8_256": Release(families.LIFE_SWIN, "swinv2_tiny_window8_256_life", "", 100),
    "life_swinv2_tiny_window8_32_patch1": Release(families.LIFE_SWIN, "swinv2_tiny_window8_32_patch1_life", "", 100),
    "localvit_tiny_mlp4_act3_r192": Release(families.LOCAL_DEIT, "localvit_tiny"),
    "localvit_tiny_mlp4_act3_r4": Release(families.LOCAL_DEIT, "localvit_tiny_se4"),
    "localvit_tiny_mlp6_act1": Release(families.LOCAL_DEIT_BARE, "localvit_tiny_mlp6_relu6"),
    "localvit_small_mlp4_act3_r384": Release(families.LOCAL_DEIT, "localvit_small"),
    "localvit_swin_tiny": Release(families.LOCAL_SWIN, "localvit_swin_tiny"),
    "localvit_t2t_7": Release(families.LOCAL_T2T, "localvit_t2t_7"),
    "localvit_tnt_t": Release(families.LOCAL_TNT, "localvit_tnt_tiny"),
    "swin_tiny_localvit_repo": Release(families.SWIN, "swin_tiny_patch4_window7_224"),
    "swin_small_patch4_window7_224": Release(families.SWIN, "swin_small_patch4_window7_224"),
    "swin_base_patch4_window7_224": Release(families.SWIN, "swin_base_patch4_window7_224"),
    "tnt_t_localvit_repo": Release(families.TNT_FIRST, "tnt_tiny_patch16_224"),
    "lit_ti": Release(families.LIT_ABSOLUTE, "lit_tiny"),
    "lit_ti_star": Release(families.LIT_ABSOLUTE_STAR, "lit_tiny_star"),
    "lit_s": Release(families.LIT_RELATIVE, "lit_small"),
    "lit_s_star": Release(families.LIT_RELATIVE_STAR, "lit_small_star"),
    "lit_m": Release(families.LIT_RELATIVE, "lit_medium"),
    "lit_b": Release(families.LIT_RELATIVE, "lit_base"),
    **{name: Release(families.PVT, name) for name in ("pvt_tiny", "pvt_small", "pvt_medium", "pvt_large")},
    "localvit_pvt_tiny": Release(families.LOCAL_PVT, "localvit_pvt_tiny"),
    **{f"t2t_vit_{depth}": Release(families.T2T, f"t2t_vit_{depth}") for depth in (7, 10, 12, 14, 19, 24)},
    **{f"t2t_vit_t_{depth}": Release(families.T2T_T, f"t2t_vit_t_{depth}") for depth in (14, 19, 24)},
    "tnt_s": Release(families.TNT, "tnt_small_patch16_224"),
    "tnt_b": Release(families.TNT, "tnt_base_patch16_224"),
}
