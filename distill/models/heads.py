"""Several models as one: a student with an encoder that its heads share, teachers of several tasks, or a pair.

The pair is a discriminator and its generator.
"""

from collections.abc import Mapping

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from distill.errors import UserError


class SeveralHeads(PreTrainedModel):
    """Models by name, such as those of several tasks, each a complete model of transformers with its own head.

    `config` is that of the first one. What the models share is one module with one set of weights.
    """

    config_class = PreTrainedConfig
    base_model_prefix = "encoder"
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, heads: Mapping[str, PreTrainedModel]) -> None:
        super().__init__(next(iter(heads.values())).config)
        self.heads = nn.ModuleDict(heads)

    def head(self, name: str) -> PreTrainedModel:
        """Returns the model with this name, that of a task for example."""
        model = self.heads[name]
        assert isinstance(model, PreTrainedModel)
        return model

    def set_attn_implementation(self, attn_implementation: str | dict[str, str], **options: bool) -> None:
        """Sets the attention of every model."""
        for name in self.heads:
            self.head(name).set_attn_implementation(attn_implementation, **options)


def share_encoder(models: Mapping[str, PreTrainedModel], *, name: str) -> SeveralHeads:
    """Returns the models with the encoder of the first one in the place of their own.

    Its `inherited` has the tensors of the first model and those of the others' heads.

    Args:
        name: of the student.

    Raises:
        UserError: for a model whose encoder is no module of its own, or has other tensors than the first one's.
    """
    (first_name, first), *others = models.items()
    check_encoder(first, name)
    inherited = {f"heads.{first_name}.{key}": value for key, value in getattr(first, "inherited", {}).items()}
    for task, model in others:
        if _shapes(model.base_model) != _shapes(first.base_model):
            raise UserError(
                f"student {name} has another encoder for task {task} ({type(model.base_model).__name__}) than for task "
                f"{first_name} ({type(first.base_model).__name__}): give teachers with encoders of one kind and size"
            )
        setattr(model, model.base_model_prefix, first.base_model)
        encoder = f"{model.base_model_prefix}."
        own = {key: value for key, value in getattr(model, "inherited", {}).items() if not key.startswith(encoder)}
        inherited |= {f"heads.{task}.{key}": value for key, value in own.items()}
    student = SeveralHeads(models)
    student.encoder = first.base_model
    if all(hasattr(model, "inherited") for model in models.values()):
        student.inherited = inherited  # type: ignore[assignment]
    return student


def check_encoder(model: PreTrainedModel, name: str) -> None:
    """Raises UserError for a model of the student `name` whose encoder is not a module of its own."""
    if model.base_model is model:
        raise UserError(
            f"student {name} ({type(model).__name__}) has no encoder apart from its head, which several tasks could "
            "share: take +student=distilbert"
        )


def heads_of(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """Returns the models that this one stands for by name, and another model under the empty name."""
    return {name: model.head(name) for name in model.heads} if isinstance(model, SeveralHeads) else {"": model}


def _shapes(encoder: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}


def find_table(student: PreTrainedModel) -> nn.Module | None:
    """Returns the embeddings of the pieces, which the models of several tasks share; None for a model without them."""
    try:
        table: nn.Module | None = next(iter(heads_of(student).values())).get_input_embeddings()
    except NotImplementedError:  # Of a model of transformers without a table.
        return None
    return table
