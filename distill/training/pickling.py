"""Pickles a training for other processes, including transformers models that have run before."""

import io
import pickle
from collections import OrderedDict
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from distill.errors import UserError, first_line

_CAPTURING = "transformers.utils.output_capturing"


class _Pickler(pickle.Pickler):
    """Omits the hooks of transformers, which cannot be pickled."""

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, nn.Module):
            return NotImplemented
        make, arguments, state = cast(tuple[Any, ...], value.__reduce_ex__(pickle.HIGHEST_PROTOCOL))[:3]
        hooks = state["_forward_hooks"].items()
        picklable = {number: hook for number, hook in hooks if getattr(hook, "__module__", "") != _CAPTURING}
        state = {**state, "_forward_hooks": OrderedDict(picklable)}
        if isinstance(value, PreTrainedModel):
            state.pop("_output_capturing_hooks_installed", None)  # Installed again when hidden states are requested.
            make, arguments = _create_model, (type(value), value.config)
        return make, arguments, state


def _create_model(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """Returns a model without weights; creating one registers the outputs that transformers can capture."""
    with torch.device("meta"):
        return model_class(config)


def dumps(value: object) -> bytes:
    """Returns the pickled value.

    Raises:
        UserError: if it cannot be pickled.
    """
    pickled = io.BytesIO()
    try:
        _Pickler(pickled, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the training cannot be sent to other processes ({first_line(error)}): set trainer.devices=1"
        ) from error
    return pickled.getvalue()
