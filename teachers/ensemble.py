"""Several pre-trained models as one teacher."""

from collections.abc import Sequence

from distill.core.errors import OptionError

from .pretrained import Pretrained


class Ensemble:
    """The weights of several teachers, each of which is loaded and fine-tuned on its own.

    Args:
        name: name of the teacher in records and directories.
        paths: directories of models with one vocabulary.
        weights: of each teacher's predictions in their mean; None for equal ones.
        precision: precision of the forward passes, `float32`, `bfloat16` or `auto`.
        trust_remote_code: whether to run Python code that comes with the weights.
    """

    def __init__(
        self,
        *,
        name: str,
        paths: Sequence[str],
        weights: Sequence[float] | None = None,
        precision: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        if isinstance(paths, str):
            raise OptionError("teacher.paths", paths, "a list of directories, as in teacher.paths=[one,other]")
        self.members = [
            Pretrained(name=name, path=path, precision=precision, trust_remote_code=trust_remote_code) for path in paths
        ]
        self.weights = weights
