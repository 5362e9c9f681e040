"""The student without attention: a BiLSTM over the teacher's word pieces."""

from typing import Any, Literal

import torch
from pydantic import PositiveInt, SkipValidation
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from distill.core.contracts import Task
from distill.core.errors import UserError
from distill.core.options import Dropout, check_options
from distill.models.architectures.modeling_bilstm import BilstmConfig
from distill.models.forward import model_class
from distill.models.surgery.copies import Copies, copy_labels

# Root mean square of the initial embeddings. Those of a transformer are ten times smaller, because it normalizes them.
EMBEDDING_RMS = 0.3


@check_options("student")
def from_teacher(
    teacher: PreTrainedModel,
    *,
    task: SkipValidation[Task],
    embedding_dim: PositiveInt | None = 300,
    hidden_dim: PositiveInt = 150,
    layers: PositiveInt = 1,
    classifier_dim: PositiveInt = 200,
    dropout: Dropout = 0.1,
    pooling: Literal["last", "max", "mean"] = "last",
    init: Literal["teacher", "random"] = "teacher",
    tokenizer: str | None = None,
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
        tokenizer: one of its own, a directory or `pieces`, whose pieces the `teacher` here then has embeddings of.

    Raises:
        UserError: if a size is below 1, a name is unknown, no BiLSTM has the task's head, or the task is for pairs and
            the teacher has no separator.
    """
    student_class = find_class(task, BilstmConfig, "bilstm")
    vocabulary, width = get_embeddings(teacher).shape
    config = BilstmConfig(
        vocab_size=vocabulary, embedding_dim=min(embedding_dim or width, width), hidden_dim=hidden_dim,
        num_hidden_layers=layers, classifier_dim=classifier_dim, dropout=dropout, pooling=pooling,
        **describe_texts(teacher, task),
    )  # fmt: skip
    return start_embeddings(student_class(config), teacher, init)


def describe_texts(teacher: PreTrainedModel, task: Task) -> dict[str, Any]:
    """Returns the entries of a student's configuration that its teacher's tokens and the task determine.

    Raises:
        UserError: for a task on pairs and a teacher whose tokenizer has no separator.
    """
    config = teacher.config
    separator = getattr(config, "sep_token_id", None)
    if task.info.pair and separator is None:
        raise UserError(f"the tokenizer of {type(teacher).__name__} has no separator between two texts to tell them by")
    return {
        "pair": task.info.pair, "sep_token_id": separator, "pad_token_id": config.pad_token_id, **copy_labels(config),
    }  # fmt: skip


def find_class(task: Task, config_class: type[PreTrainedConfig], student: str, reason: str = "") -> Any:
    """Returns the class with the task's head; raises UserError if there is none, perhaps for a reason."""
    found = model_class(task.info.auto_class, config_class)
    if found is None:
        raise UserError(
            f"student {student} has no head for task {task.info.name} ({task.info.kind}){reason}: take "
            "+student=distilbert"
        )
    return found


def get_embeddings(teacher: PreTrainedModel) -> Tensor:
    """Returns the word-piece embeddings `[V, H]`."""
    embeddings = teacher.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding)
    return embeddings.weight


def start_embeddings(student: PreTrainedModel, teacher: PreTrainedModel, init: str) -> PreTrainedModel:
    """Returns the student in training mode, with the teacher's embeddings if `init` says so."""
    copies, embeddings = Copies(teacher, student), get_embeddings(teacher)
    if init == "teacher":
        copies.copy(get_embeddings(student), embeddings, project_embeddings(embeddings, student.config.embedding_dim))
    student.inherited = copies.names  # type: ignore[assignment]
    return student.float().train()


def project_embeddings(embeddings: Tensor, width: int) -> Tensor:
    """Projects `embeddings [V, H]` to `[V, width]`, with a root mean square of `EMBEDDING_RMS`.

    The projection is onto the first principal directions, which preserve most. The same width needs no projection.
    """
    table = embeddings.detach().float()
    if width < table.shape[1]:
        _, directions = torch.linalg.eigh(table.T @ table)  # Ascending.
        table = table @ directions[:, -width:]
    return table * (EMBEDDING_RMS / table.square().mean().sqrt().clamp(min=1e-12))
