"""The threads that each runtime of a benchmark computes with, which are to be equal."""

from collections.abc import Iterable

import onnxruntime

from distill.edge.model_files import Session
from distill.edge.openvino_session import OpenVinoSession
from distill.edge.whole_texts import WholeTexts
from distill.errors import UserError


def count_threads(session: Session) -> int:
    """Returns the threads that a session computes with, as its runtime says."""
    if isinstance(session, WholeTexts):
        return count_threads(session.decoder)
    if isinstance(session, OpenVinoSession):
        return session.threads
    assert isinstance(session, onnxruntime.InferenceSession)
    return int(session.get_session_options().intra_op_num_threads)


def runtime_of(timed_name: str) -> str:
    """Returns the runtime of a timed model by its name: `onnxruntime`, `openvino` or `torch`."""
    name = timed_name.partition("-")[0]
    return "onnxruntime" if name == "onnx" else name


def check_threads(runtimes: Iterable[tuple[str, int]], threads: int) -> str:
    """Returns the budget of all runtimes in words.

    Args:
        runtimes: the name and the threads of each, once for each file.

    Raises:
        UserError: for a runtime that computes with other than so many threads.
    """
    found = sorted(set(runtimes))
    for name, count in found:
        if count != threads:
            raise UserError(
                f"{name} computes with {count} thread(s), expected {threads} as all others: set job.threads to at most "
                "the cores of this machine, or leave its files out with job.formats"
            )
    return f"Threads: {threads} for each of {', '.join(name for name, _ in found)}"
