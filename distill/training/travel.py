"""A training as it travels to other processes: pickled, models of transformers too."""

import io
import pickle
from collections import OrderedDict
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from distill.errors import UserError

_CAPTURING = "transformers.utils.output_capturing"


class _Pickler(pickle.Pickler):
    """Pickles models of transformers too, which leave things behind where they are made and where they run."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, nn.Module):
            return NotImplemented
        make, arguments, state = cast(tuple[Any, ...], thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL))[:3]
        hooks = state["_forward_hooks"].items()
        kept = {number: hook for number, hook in hooks if getattr(hook, "__module__", "") != _CAPTURING}
        state = {**state, "_forward_hooks": OrderedDict(kept)}
        if isinstance(thing, PreTrainedModel):
            state.pop("_output_capturing_hooks_installed", None)  # Hidden states' hooks, which are made when asked for.
            make, arguments = _model, (type(thing), thing.config)
        return make, arguments, state


def _model(kind: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """A model without weights: making one tells transformers what the class can do."""
    with torch.device("meta"):
        return kind(config)


def packed(work: Any) -> bytes:
    """A function and its arguments as they travel.

    Raises:
        UserError: for what cannot be pickled.
    """
    packed = io.BytesIO()
    try:
        _Pickler(packed, protocol=pickle.HIGHEST_PROTOCOL).dump(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the training cannot be sent to other processes ({str(error).splitlines()[0]}): set trainer.devices=1"
        ) from error
    return packed.getvalue()
