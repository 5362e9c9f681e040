"""The kinds of processor that an int8 file can be written for, and the kind of this machine."""

import functools
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

# With dot products of int8, `vnni` and `arm64`, a processor adds four products without overflow. Without, `avx2`, sums
# of two products saturate at 16 bits, so that weights must stay within 7 bits. What is right there is right everywhere.
Target = Literal["vnni", "avx2", "arm64"]
TARGETS: tuple[Target, ...] = get_args(Target)
ANY = "avx2"
_DOT_PRODUCTS = {"vnni", "arm64"}
_VNNI = {"avx512_vnni", "avx512vnni", "avx_vnni", "avx512_clx", "avx512_icl"}


@functools.cache
def this_target() -> str:
    """Returns the target of this machine; `avx2` for a processor whose features are unknown."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "arm64"
    return "vnni" if _VNNI & _features() else ANY


def runs(target: str, device: str) -> bool:
    """Returns whether a file written for `target` gives right answers on a device of the target `device`."""
    return target == ANY or device in _DOT_PRODUCTS


def weight_bits(target: str) -> int:
    """Returns how many bits of an int8 weight may be used."""
    return 8 if target in _DOT_PRODUCTS else 7


def _features() -> set[str]:
    """Returns the instruction sets of an x86 processor, in lower case."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        flags = (line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("flags"))
        return set(next(flags, "").partition(":")[2].split())
    return {name.lower() for name in _numpy_features()}


def _numpy_features() -> Sequence[str]:
    """Returns the instruction sets that numpy found, where Linux does not list them."""
    import numpy as np

    simd = np.show_config(mode="dicts").get("SIMD Extensions", {})  # type: ignore[union-attr]
    return [*simd.get("baseline", ()), *simd.get("found", ())]
