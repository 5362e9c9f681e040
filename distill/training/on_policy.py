"""The texts that a student writes in training, in the place of the targets of a batch (arXiv 2306.13649)."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.contracts import IGNORED, TARGET_MASK, Batch

STUDENT_WRITES = "student_writes"  # The column `[B]` of batches whose targets the student wrote, which are no labels.


@torch.no_grad()
def write_batch(student: PreTrainedModel, batch: Batch, *, temperature: float) -> dict[str, Tensor]:
    """Returns the batch with targets that an encoder-decoder samples for its sources.

    They have at most as many tokens as the longest target of the batch. The student is as it was, in training or not.

    Args:
        batch: with `input_ids` and `attention_mask` `[B, L]`, and `labels [B, T]`.
        temperature: of the sampling, above 0.
    """
    was_training = student.training
    student.eval()
    ids = student.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], do_sample=True, num_beams=1, top_k=0,
        top_p=1.0, temperature=temperature, max_new_tokens=batch["labels"].shape[1],
    )  # fmt: skip
    student.train(was_training)
    written = ids[:, 1:]  # Without the token that a decoder starts with.
    is_written = _up_to_end(written, student.generation_config.eos_token_id)
    labels = written.masked_fill(~is_written, IGNORED).to(batch["labels"].dtype)
    marks = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    return {**batch, "labels": labels, TARGET_MASK: is_written.to(batch["attention_mask"].dtype), STUDENT_WRITES: marks}


def _up_to_end(ids: Tensor, end: int | list[int] | None) -> Tensor:
    """Returns whether each token `[B, T]` is in its text: all to the first one that ends it, this one included."""
    ends = torch.tensor([] if end is None else end, device=ids.device, dtype=ids.dtype).flatten()
    is_end = torch.isin(ids, ends)
    return is_end.cumsum(dim=1) - is_end.long() == 0
