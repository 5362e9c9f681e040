"""The student without attention: a BiLSTM over the teacher's word pieces."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.models.architectures.modeling_bilstm import BilstmConfig
from distill.models.forward import model_class

POOLINGS = ("last", "max", "mean")
# Root mean square of the initial embeddings. Those of a transformer are ten times smaller, because it normalizes them.
EMBEDDING_RMS = 0.3


def from_teacher(
    teacher: PreTrainedModel,
    *,
    task: Task,
    embedding_dim: int | None = 300,
    hidden_dim: int = 150,
    layers: int = 1,
    classifier_dim: int = 200,
    dropout: float = 0.1,
    pooling: Literal["last", "max", "mean"] = "last",
    init: Literal["teacher", "random"] = "teacher",
) -> PreTrainedModel:
    """Creates a BiLSTM (arXiv 1903.12136) for the teacher's tokens, in training mode and float32.

    The paper starts from word2vec. This student starts from the teacher's word-piece embeddings, which are rescaled.
    Its `inherited` maps the names of its tensors to those of the teacher's tensors that they were made from.

    Args:
        task: its `auto_class` determines the head, and its `pair` whether a head for whole texts compares two of them.
        embedding_dim: width of the embeddings, at most the teacher's; None uses the teacher's. A smaller one starts
            from the principal components of the teacher's embeddings.
        hidden_dim: width of each direction.
        classifier_dim: width of the ReLU layer of a head for whole texts.
        pooling: of the hidden states for a head for whole texts. Vectors are pooled as the task says.
        init: initial embeddings, those of the `teacher` or `random` ones.

    Raises:
        UserError: if a size is below 1, a name is unknown, no BiLSTM has the task's head, or the task is for pairs and
            the teacher has no separator.
    """
    sizes = {
        "embedding_dim": embedding_dim, "hidden_dim": hidden_dim, "layers": layers, "classifier_dim": classifier_dim,
    }  # fmt: skip
    _check_options(sizes, dropout=dropout, pooling=pooling, init=init)
    student_class = _find_class(task)
    if task.info.pair and getattr(teacher.config, "sep_token_id", None) is None:
        raise UserError(f"the tokenizer of {type(teacher).__name__} has no separator between two texts to tell them by")
    vocabulary, width = get_embeddings(teacher).shape
    config = BilstmConfig(
        vocab_size=vocabulary, embedding_dim=min(embedding_dim or width, width), hidden_dim=hidden_dim,
        num_hidden_layers=layers, classifier_dim=classifier_dim, dropout=dropout, pooling=pooling, pair=task.info.pair,
        sep_token_id=getattr(teacher.config, "sep_token_id", None), pad_token_id=teacher.config.pad_token_id,
        id2label=dict(teacher.config.id2label),
        label2id={label: index for index, label in teacher.config.id2label.items()},
        problem_type=teacher.config.problem_type,
    )  # fmt: skip
    student = student_class(config)
    student.inherited = inherit_embeddings(student, teacher) if init == "teacher" else {}  # type: ignore[assignment]
    return student.float().train()


def _check_options(sizes: Mapping[str, int | None], *, dropout: float, pooling: str, init: str) -> None:
    """Raises UserError if a size is below 1, a share is out of range or a name is unknown."""
    for name, value in sizes.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"got student.{name}={value}, expected a whole number of at least 1")
    if not 0 <= dropout < 1:
        raise UserError(f"got student.dropout={dropout}, expected a share from 0 to below 1")
    for name, given, known in (("pooling", pooling, POOLINGS), ("init", init, ("teacher", "random"))):
        if given not in known:
            raise UserError(f"student.{name}={given} is unknown, expected one of {', '.join(known)}")


def _find_class(task: Task) -> type[PreTrainedModel]:
    """Returns the class with the task's head; raises UserError if there is none."""
    found = model_class(task.info.auto_class, BilstmConfig)
    if found is None:
        raise UserError(
            f"student bilstm has no head for task {task.info.name} ({task.info.kind}): take +student=distilbert"
        )
    return found


def get_embeddings(teacher: PreTrainedModel) -> Tensor:
    """Returns the word-piece embeddings `[V, H]`."""
    embeddings = teacher.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    return embeddings.weight


def inherit_embeddings(student: PreTrainedModel, teacher: PreTrainedModel) -> dict[str, str]:
    """Initializes the student's embeddings from the teacher's and returns the student's `inherited`."""
    embeddings = get_embeddings(teacher)
    with torch.no_grad():
        get_embeddings(student).copy_(project_embeddings(embeddings, student.config.embedding_dim))
    names = {id(parameter): name for name, parameter in teacher.named_parameters()}
    return {"embeddings.weight": names[id(embeddings)]}


def project_embeddings(embeddings: Tensor, width: int) -> Tensor:
    """Projects `embeddings [V, H]` to `[V, width]`, with a root mean square of `EMBEDDING_RMS`.

    The projection is onto the first principal directions, which preserve most. The same width needs no projection.
    """
    table = embeddings.detach().float()
    if width < table.shape[1]:
        _, directions = torch.linalg.eigh(table.T @ table)  # Ascending.
        table = table @ directions[:, -width:]
    return table * (EMBEDDING_RMS / table.square().mean().sqrt().clamp(min=1e-12))
