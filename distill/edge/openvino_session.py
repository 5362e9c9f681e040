"""Sessions of OpenVINO files, with the package openvino, which few devices have."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.errors import UserError

# Matrix products are computed in bf16 where the processor has it, else in float32. Threads may change their core,
# because another process may keep the one that they would be pinned to busy.
OPTIONS: Mapping[str, Any] = {
    "INFERENCE_PRECISION_HINT": "bf16", "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False,
}  # fmt: skip
TELEMETRY = "openvino_telemetry"


@dataclass(frozen=True)
class Value:
    """An input or an output of a model; an axis of any size is None in `shape`."""

    name: str
    shape: list[int | None]


class OpenVinoSession:
    """A model that OpenVINO runs on the CPU, with the methods of `onnxruntime.InferenceSession` that a bundle calls.

    Args:
        path: of the `.xml` file, beside which is the `.bin` file with the weights.
        threads: at most; the attribute `threads` has those that openvino computes with.

    Raises:
        UserError: if openvino is not installed.
        RuntimeError: if openvino cannot load the model.
    """

    def __init__(self, path: Path, threads: int) -> None:
        core = import_openvino(path).Core()
        options = {**OPTIONS, "INFERENCE_NUM_THREADS": threads}
        with _shorten_errors():
            model = core.compile_model(core.read_model(str(path)), "CPU", options)
            self._request = model.create_infer_request()
            self.threads = int(model.get_property("INFERENCE_NUM_THREADS"))
        self._lock = threading.Lock()  # A request is for one thread at a time.

    def get_inputs(self) -> list[Value]:
        """Returns the inputs."""
        return _list_values(self._request.model_inputs)

    def get_outputs(self) -> list[Value]:
        """Returns the outputs."""
        return _list_values(self._request.model_outputs)

    def run(self, names: Sequence[str], inputs: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.floating]]:
        """Returns the outputs of these names; raises RuntimeError if openvino cannot compute them."""
        with self._lock, _shorten_errors():
            self._request.infer(dict(inputs))
            return [np.array(self._request.get_tensor(name).data) for name in names]


def import_openvino(path: Path) -> Any:
    """Returns the package openvino.

    Args:
        path: of a file that needs it.

    Raises:
        UserError: if it is not installed.
    """
    try:
        with without_telemetry():
            import openvino
    except ImportError as error:
        raise UserError(
            f"{path} needs openvino, which is not installed: pip install openvino, or choose a model in ONNX such as "
            "fp32"
        ) from error
    return openvino


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Hides the telemetry of OpenVINO's packages, which send a message when they are imported unless it is missing."""
    known = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # So that an import of it fails.
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if known is not None:
            sys.modules[TELEMETRY] = known


@contextmanager
def _shorten_errors() -> Iterator[None]:
    """Raises the errors of openvino with the last line of their text, because those before it name its sources."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error


def _list_values(ports: Sequence[Any]) -> list[Value]:
    """Returns each input or output under all of its names."""
    return [
        Value(name, [axis.get_length() if axis.is_static else None for axis in port.partial_shape])
        for port in ports
        for name in sorted(port.names)
    ]
