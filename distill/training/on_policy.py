"""The texts that a student writes in training, in the place of those of a batch (arXiv 2306.13649)."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from distill.contracts import IGNORED, PROMPT_TOKENS, TARGET_MASK, Batch
from distill.models.continuation import continue_prompts, up_to_end
from distill.models.decoding import choose_tokens

STUDENT_WRITES = "student_writes"  # The column `[B]` of batches whose texts the student wrote, which are no labels.


@torch.no_grad()
def write_batch(student: PreTrainedModel, batch: Batch, *, temperature: float) -> dict[str, Tensor]:
    """Returns the batch with texts that the student samples: targets for its sources, or continuations of its prompts.

    A target has at most as many tokens as the longest one of the batch, and a text that is continued at most as many as
    it had. The student is as it was, in training or not.

    Args:
        batch: with `input_ids` and `attention_mask` `[B, L]`, for an encoder-decoder `labels [B, T]`, and for a decoder
            `prompt_tokens [B]`.
        temperature: of the sampling, above 0.
    """
    was_training = student.training
    student.eval()
    write = _write_targets if student.config.is_encoder_decoder else _continue_texts
    written = write(student, batch, temperature)
    student.train(was_training)
    marks = torch.ones(len(batch["input_ids"]), dtype=torch.bool, device=batch["input_ids"].device)
    return {**batch, **written, STUDENT_WRITES: marks}


def _write_targets(student: PreTrainedModel, batch: Batch, temperature: float) -> dict[str, Tensor]:
    ids = student.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=1,
        num_return_sequences=1, max_new_tokens=batch["labels"].shape[1], **choose_tokens(temperature),
    )  # fmt: skip
    written = ids[:, 1:]  # Without the token that a decoder starts with.
    is_written = up_to_end(written, student.generation_config.eos_token_id)
    labels = written.masked_fill(~is_written, IGNORED).to(batch["labels"].dtype)
    return {"labels": labels, TARGET_MASK: is_written.to(batch["attention_mask"].dtype)}


def _continue_texts(student: PreTrainedModel, batch: Batch, temperature: float) -> dict[str, Tensor]:
    """Returns the texts, each padded behind its tokens, which those before it do not see."""
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    texts = [row[kept] for row, kept in zip(ids, mask, strict=True)]
    sizes = batch[PROMPT_TOKENS].tolist()
    prompts = [text[:size] for text, size in zip(texts, sizes, strict=True)]
    room = [len(text) - size for text, size in zip(texts, sizes, strict=True)]
    written = continue_prompts(student, [prompt.tolist() for prompt in prompts], room, temperature=temperature)
    rows = [torch.cat([prompt, prompt.new_tensor(own)]) for prompt, [own] in zip(prompts, written, strict=True)]
    input_ids = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows], device=ids.device)
    places = torch.arange(input_ids.shape[1], device=ids.device)
    return {"input_ids": input_ids, "attention_mask": (places < lengths[:, None]).to(batch["attention_mask"].dtype)}
