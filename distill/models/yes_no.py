"""A language model that judges by the next token, a yes or a no, as a model with one score.

Qwen3-Reranker (arXiv 2506.05176, section 2) scores a document by the softmax of the logits of two tokens behind a
prompt. Its log-odds, those of a yes minus those of a no, order documents alike and are linear in the last hidden state.
The model is thus an ordinary sequence classifier whose head is the difference of two rows of the output embeddings.
"""

from pathlib import Path

import torch
from tokenizers import normalizers, processors
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from distill.core.errors import UserError, first_line
from distill.models.forward import model_class
from distill.models.loading import OF_TEXTS, Start, check_tokenizer
from distill.models.sentence_files import load_tokenizer

FIRST, SECOND = "{query}", "{document}"  # The places of both texts in a prompt.


def load_yes_no(
    directory: Path, answers: tuple[str, str], prompt: str, label: str, *, trust_remote_code: bool = False
) -> Start:
    """Loads a language model as one with a score for a pair of texts.

    Args:
        answers: the tokens of a yes and a no.
        prompt: has `{query}` and `{document}`, in this order.
        label: the name of the score.

    Raises:
        UserError: for a model that cannot be loaded, and answers that are not one token each.
    """
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
        tokenizer, notices = load_tokenizer(directory, trust_remote_code=trust_remote_code)
        language_model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"{directory} cannot be loaded as a language model: {first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    check_tokenizer(tokenizer, directory)
    yes, no = (_find_token(tokenizer, answer) for answer in answers)
    create = model_class(OF_TEXTS, type(config))
    if create is None:
        raise UserError(f"{directory} has a {type(language_model).__name__}, and there is no classifier of its type")
    config.num_labels, config.id2label, config.label2id = 1, {0: label}, {label: 0}
    config.pad_token_id, config.problem_type = tokenizer.pad_token_id, "regression"
    model: PreTrainedModel = create(config)
    model.base_model.load_state_dict(language_model.base_model.state_dict())
    table, head = language_model.get_output_embeddings(), getattr(model, "score", None)
    if not isinstance(head, nn.Linear):
        raise UserError(f"{directory}: the head of a {type(model).__name__} is not one linear layer")
    with torch.no_grad():
        head.weight[0] = table.weight[yes] - table.weight[no]
    _write_prompt(tokenizer, prompt)
    return Start(model.eval(), tokenizer, fits=True, notices=notices)


def _find_token(tokenizer: PreTrainedTokenizerBase, answer: str) -> int:
    ids: list[int] = tokenizer.encode(answer, add_special_tokens=False)
    if len(ids) != 1:
        raise UserError(f"teacher.answers: {answer!r} is {len(ids)} tokens of this model, expected one")
    return ids[0]


def _write_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> None:
    """Makes the tokenizer put the prompt around the texts of a pair, each with a space before it if the prompt has one.

    Raises:
        UserError: for a prompt without the places of both texts.
    """
    parts = prompt.replace(SECOND, FIRST).split(FIRST)
    if len(parts) != 3 or prompt.index(FIRST) > prompt.index(SECOND):
        raise UserError(f"teacher.prompt={prompt!r} needs {FIRST} and then {SECOND}, once each")
    spaced = all(part.endswith(" ") for part in parts[:2])
    words = [part.rstrip(" ") if spaced and part is not parts[2] else part for part in parts]
    ids = [tokenizer.encode(part, add_special_tokens=False) for part in words]
    backend = tokenizer.backend_tokenizer
    if spaced:
        first = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([*first, normalizers.Prepend(" ")])  # type: ignore[assignment]
    names = [f"<prompt{number}>" for number in range(3)]
    special = [
        {"id": name, "ids": of_part, "tokens": tokenizer.convert_ids_to_tokens(of_part)}
        for name, of_part in zip(names, ids, strict=True)
        if of_part
    ]
    given = [name if of_part else "" for name, of_part in zip(names, ids, strict=True)]
    pair = " ".join(filter(None, [given[0], "$A", given[1], "$B", given[2]]))
    single = " ".join(filter(None, [given[0], "$A", given[2]]))
    backend.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=single, pair=pair, special_tokens=special
    )
