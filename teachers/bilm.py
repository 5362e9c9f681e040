"""A bidirectional language model of one-way LSTMs, with random weights and a new vocabulary or a trained one."""

import inspect

from pydantic import PositiveInt

from distill.core.errors import OptionError
from distill.core.options import Dropout, check_options
from distill.models.architectures.modeling_bilm import BilmConfig

from .new import NewModel
from .pretrained import Pretrained


@check_options("teacher")
def choose_weights(
    *,
    name: str = "bilm",
    path: str | None = None,
    layers: PositiveInt = 2,
    hidden_dim: PositiveInt = 256,
    vocabulary: PositiveInt = 8000,
    tokenizer: str | None = None,
    dropout: Dropout = 0.1,
    precision: str = "float32",
    trust_remote_code: bool = False,
    seed: int = 0,
) -> NewModel | Pretrained:
    """Returns the trained model in the directory `path`, or without one a new one.

    Args:
        hidden_dim: width of the embeddings and of each direction.
        layers, vocabulary, tokenizer, dropout, precision, seed: of a new model, as in `NewModel`.

    Raises:
        OptionError: for a size of a trained model, or one that is out of range.
    """
    sizes = {
        "layers": layers, "hidden_dim": hidden_dim, "vocabulary": vocabulary, "tokenizer": tokenizer,
        "dropout": dropout, "seed": seed,
    }  # fmt: skip
    if path is None:
        return NewModel(
            name=name, family=BilmConfig.model_type, layers=layers, hidden_size=None, heads=None, positions=None,
            sizes={"hidden_dim": hidden_dim}, dropout=dropout, vocabulary=vocabulary, tokenizer=tokenizer,
            precision=precision, seed=seed,
        )  # fmt: skip
    parameters = inspect.signature(choose_weights).parameters
    for option, value in sizes.items():
        default = parameters[option].default
        if value != default:
            expected = f"{default}, the default, because teacher.path has a trained model with sizes of its own"
            raise OptionError(f"teacher.{option}", str(value), expected)
    return Pretrained(name=name, path=path, precision=precision, trust_remote_code=trust_remote_code)
