"""A pre-trained model for each of several tasks, each the teacher of its own task."""

from collections.abc import Mapping

from distill.core.errors import OptionError

from .pretrained import Pretrained


class ByTask:
    """The weights of the teachers of several tasks, each of which is loaded and fine-tuned on its own task.

    Args:
        name: name of the teachers in records and directories.
        paths: the directory of a model for each task, by the task's name. All models have one vocabulary.
        precision: precision of the forward passes, `float32`, `bfloat16` or `auto`.
        trust_remote_code: whether to run Python code that comes with the weights.
    """

    def __init__(
        self, *, name: str, paths: Mapping[str, str], precision: str = "float32", trust_remote_code: bool = False
    ) -> None:
        if not isinstance(paths, Mapping):
            raise OptionError("teacher.paths", str(paths), "a directory for each task, as in {sst2:one,mrpc:other}")
        self.members = {
            task: Pretrained(name=name, path=path, precision=precision, trust_remote_code=trust_remote_code)
            for task, path in paths.items()
        }
        self.weights = None
