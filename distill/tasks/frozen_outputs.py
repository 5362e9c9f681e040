"""Outputs of a frozen model that is not the teacher, of which train has targets: computed once and cached."""

from pathlib import Path

import numpy as np
import torch

from distill.console import print_line
from distill.data import token_cache
from distill.data.batching import TokenizedExamples, scoring_steps
from distill.data.tables import Split
from distill.errors import UserError
from distill.models.checks import longest
from distill.models.forward import count_outputs, run_model, to_device
from distill.models.loading import Start
from distill.models.pooling import vector_settings
from distill.storage.cache import entry_key, has_entry, new_entry
from distill.storage.files import hash_file

FILE = "outputs.npy"
FORMAT = 1


def cached_outputs(
    start: Start, source: Path, texts: Split, max_length: int, cache_dir: Path | None, name: str
) -> np.ndarray:
    """Returns the logits or vectors of texts of train by a model that was loaded from `source`, `[N, C]`.

    They are computed once, in inference mode. Without `cache_dir` they are not cached.

    Args:
        max_length: tokens that a text is cut to, if the model can read as many.
        name: of the model in messages.

    Raises:
        UserError: if one is not finite.
    """
    length = min(max_length, longest(start.model, start.tokenizer))
    tokens = token_cache.tokenize_split(texts, start.tokenizer, length, cache_dir)
    examples = TokenizedExamples(tokens, start.tokenizer)
    if cache_dir is None:
        return _compute_outputs(start, examples, name)
    files = {path.name: hash_file(path) for path in sorted(source.glob("*.safetensors"))}
    config = hash_file(source / "config.json")
    key = entry_key("frozen_outputs", FORMAT, tokens.digest, files, config, vector_settings(start.model.config))
    directory = cache_dir / "frozen_outputs" / key[:20]
    if not has_entry(directory):
        print_line(f"{name}: reads {len(examples):,} examples of train once, for {directory}")
        outputs = _compute_outputs(start, examples, name)
        with new_entry(directory) as temporary:
            np.save(temporary / FILE, outputs)
    return np.asarray(np.load(directory / FILE))


@torch.inference_mode()
def _compute_outputs(start: Start, examples: TokenizedExamples, name: str) -> np.ndarray:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = start.model.to(device).eval()
    outputs = np.empty((len(examples), count_outputs(model)), dtype=np.float32)
    for chosen in scoring_steps(examples.lengths):
        outputs[chosen] = run_model(model, to_device(examples[chosen], device)).logits.float().cpu().numpy()
    if not np.isfinite(outputs).all():
        raise UserError(f"the {name.lower()} gives numbers that are not finite: check its weights")
    return outputs
