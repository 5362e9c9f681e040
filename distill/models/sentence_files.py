"""The tokenizer of a directory, and the files of sentence-transformers beside a model: applied, or refused."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, normalizers, processors
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distill.core.contracts import VECTOR_SETTINGS
from distill.core.errors import UserError, first_line
from distill.edge.index import DOCUMENT, QUERY
from distill.models.vectors import DENSE, JOINED, POOLING_FLAGS, POOLINGS, DenseSettings, check_dense

SETTINGS_FILE = "tokenizer_config.json"
# Attributes of a tokenizer that tokenizer.json does not have.
_ATTRIBUTES = ("padding_side", "truncation_side", "model_input_names", "model_max_length", "src_lang", "tgt_lang")
_TARGET_LANGUAGE = "set_tgt_lang_special_tokens"  # Method of the tokenizers of several languages.
_CAPITALS = 0.01  # Of the tokens. A vocabulary of lower-cased texts has none but special tokens.


def load_tokenizer(directory: Path, **options: Any) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """Loads the tokenizer, and returns notices about the case of texts.

    Classes such as BertTokenizer lower-case unless a file says otherwise. Where no file says anything, texts keep their
    case if the vocabulary has capitals, which lower-cased texts never give.
    """
    tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(directory, **options)
    if not tokenizer.is_fast or not lower_cases(tokenizer) or _reads_bytes(tokenizer):
        return tokenizer, []
    special = set(tokenizer.all_special_tokens)
    tokens = [token for token in tokenizer.get_vocab() if token not in special and not token.startswith(("[", "<"))]
    capitals = sum(token != token.lower() for token in tokens)
    if capitals < _CAPITALS * len(tokens) or not capitals:
        return tokenizer, []
    if _names_case(directory):
        return tokenizer, [
            f"the tokenizer of {directory} lower-cases, and {capitals:,} of its {len(tokens):,} tokens have capitals, "
            f"which no text gives then: check do_lower_case in its {SETTINGS_FILE}"
        ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, do_lower_case=False, **options)
    return tokenizer, [
        f"{directory} does not say whether its tokenizer lower-cases (do_lower_case in {SETTINGS_FILE}), and its "
        "vocabulary has capitals: texts keep their case"
    ]


def lower_cases(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether a fast tokenizer lower-cases texts."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A").endswith("a")


def read_vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the tokenizer's file without the settings of its last call, and the prompts that begin its texts."""
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return content | {"truncation": None, "padding": None} | ({"prompts": of} if (of := prompts_of(tokenizer)) else {})


_DOCUMENTS = (DOCUMENT, "passage", "corpus")  # Names of the prompt of documents, as sentence-transformers looks for it.
_PROMPTS = "text_prompts"  # The attribute of a tokenizer with the beginnings of texts by their names.


def prompts_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Returns the prompts of which each begins some texts, by their names; none for a tokenizer that has others."""
    prompts: dict[str, str] = getattr(tokenizer, _PROMPTS, {})
    return prompts


def role_prompts(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Returns the prompts of queries and of documents, without a role that has none."""
    prompts = prompts_of(tokenizer)
    of_documents = next((prompts[name] for name in _DOCUMENTS if name in prompts), "")
    return {role: text for role, text in ((QUERY, prompts.get(QUERY, "")), (DOCUMENT, of_documents)) if text}


def set_prompts(
    tokenizer: PreTrainedTokenizerBase, prompts: Mapping[str, str], name: str | None, source: str
) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """Gives a tokenizer prompts by their names, or the one of this `name` before every text.

    Args:
        source: of the prompts, in words.

    Returns:
        The tokenizer, and notices.

    Raises:
        UserError: for a name that is not there.
    """
    shown = ", ".join(f"{known} {prompt!r}" for known, prompt in prompts.items() if prompt)
    if name is None:
        setattr(tokenizer, _PROMPTS, dict(prompts))
        roles = " and ".join(role_prompts(tokenizer))
        begins = f"{roles} begin the texts of a retrieval set" if roles else "none is that of queries or documents"
        return tokenizer, [f"{source} has prompts ({shown}): {begins}, and others have none"] if shown else []
    if name not in prompts:
        raise UserError(f"{source} has no prompt {name}, expected one of {', '.join(prompts) or 'none'}")
    setattr(tokenizer, _PROMPTS, {})
    if not prompts[name]:
        return tokenizer, []
    notice = f"texts begin with the prompt {prompts[name]!r} of {source} ({name})"
    return with_normalizers(tokenizer, [normalizers.Prepend(prompts[name])]), [notice]


def read_attributes(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the settings of a tokenizer that its file does not have, by name."""
    return {name: getattr(tokenizer, name) for name in _ATTRIBUTES if hasattr(tokenizer, name)}


def adopt_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the tokenizer's special tokens to the model's configuration, from which students read them."""
    model.config.cls_token_id = tokenizer.cls_token_id
    model.config.sep_token_id = tokenizer.sep_token_id
    if getattr(model.config, "pad_token_id", None) is None:  # An existing one determines where positions begin.
        model.config.pad_token_id = tokenizer.pad_token_id


def for_targets(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Returns the tokenizer for texts that are written.

    That of several languages, such as NLLB's, puts the token of `tgt_lang` beside them, without one that of `src_lang`.
    """
    if not hasattr(tokenizer, _TARGET_LANGUAGE):
        return tokenizer
    changed = copy.deepcopy(tokenizer)
    changed.src_lang = tokenizer.tgt_lang or tokenizer.src_lang  # Each call goes back to the language of sources.
    return changed


def adopt_language(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Makes a model that writes several languages begin with the token that its targets begin with.

    Returns:
        A notice if the tokenizer names no language of targets, else none.
    """
    if not hasattr(tokenizer, _TARGET_LANGUAGE):
        return []
    own = tokenizer.tgt_lang or tokenizer.src_lang
    language, first = tokenizer.convert_tokens_to_ids(own), for_targets(tokenizer)("a")["input_ids"][0]
    settings = model.generation_config
    if settings is not None and settings.forced_bos_token_id is None and first == language:
        settings.forced_bos_token_id = language
    if tokenizer.tgt_lang is not None:
        return []
    return [
        f"the tokenizer names no language of targets (tgt_lang), which are taken to be in {own}: for another one load "
        "it with AutoTokenizer.from_pretrained(DIR, src_lang=..., tgt_lang=...), and save it there again"
    ]


def separate_texts(tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes a tokenizer without special tokens, such as GPT-2's, put the end of a text before each text.

    The two texts of a pair are then apart, and an empty text has a token. Another tokenizer stays as it is.
    """
    separator, backend = tokenizer.eos_token, tokenizer.backend_tokenizer
    if separator is None or any(backend.num_special_tokens_to_add(is_pair) for is_pair in (False, True)):
        return
    template = processors.TemplateProcessing(
        single=f"{separator} $A", pair=f"{separator} $A {separator} $B",
        special_tokens=[(separator, tokenizer.eos_token_id)],
    )  # fmt: skip
    own = backend.post_processor
    backend.post_processor = template if own is None else processors.Sequence([own, template])


def _reads_bytes(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Returns whether the tokens are of bytes, some of which are written as capitals."""
    backend = tokenizer.backend_tokenizer
    return "ByteLevel" in f"{backend.normalizer} {backend.pre_tokenizer}"


def _names_case(directory: Path) -> bool:
    """Returns whether a file says how the tokenizer treats capitals."""
    if (directory / "tokenizer.json").is_file():
        return True
    path = directory / SETTINGS_FILE
    return path.is_file() and "do_lower_case" in json.loads(path.read_text(encoding="utf-8"))


MODULES_FILE = "modules.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_LENGTH_FILES = "sentence_*_config.json"  # Old versions wrote sentence_roberta_config.json and others.
_READ = ("Transformer", "Pooling", DENSE, "Normalize")
_WITHOUT_EFFECT = ("Dropout",)  # At inference.
CROSS_ENCODER = "CrossEncoder"  # The `model_type` of a model of pairs.


@dataclass(frozen=True)
class SentenceFiles:
    """The steps from a text to its vector, as sentence-transformers takes them.

    Args:
        pooling: that of the hidden states, several with `+` between them; None if the directory has no modules.
        dense: the layers behind the pooling.
        dimensions: number of first numbers that are the vector; None for all.
        lower_case: whether texts are lower-cased before the tokenizer.
        max_length: the most tokens of a text; None for those of the tokenizer.
        prompts: beginnings of texts by their names.
        prompt_name: the name of the one that begins every text, None without one.
        notices: messages to print.
    """

    pooling: str | None = None
    dense: Sequence[DenseSettings] = ()
    dimensions: int | None = None
    lower_case: bool = False
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt_name: str | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def prompt(self) -> str:
        """Begins every text, empty for none."""
        return self.prompts.get(self.prompt_name or "", "")


def read_sentence_files(directory: Path) -> SentenceFiles:
    """Reads the files in a directory of sentence-transformers. Another directory has none, and nothing is set.

    Raises:
        UserError: for a file that is damaged, and for a step that cannot be computed here.
    """
    modules = [] if _is_cross_encoder(directory) else _read_modules(directory)
    folders, pooling, dense = dict(modules), None, list[DenseSettings]()
    if modules:
        _check_modules(modules, directory)
        path = directory / folders["Pooling"] / "config.json"
        if not path.is_file():
            raise UserError(f"{path} is missing, which {MODULES_FILE} names")
        pooling = _read_object(path)
        dense = _read_dense([folder for name, folder in modules if name == DENSE], pooling, directory)
    limits: dict[str, Any] = {}
    for path in sorted(directory.glob(_LENGTH_FILES)):
        if path.name != _PROMPTS_FILE:
            limits |= _read_object(path)
    prompts = _read_object(directory / _PROMPTS_FILE)
    named, name = prompts.get("prompts") or {}, _default_name(prompts, directory)
    if (
        (prompt := next(filter(None, named.values()), ""))
        and pooling is not None
        and pooling.get("include_prompt") is False
    ):
        raise UserError(
            f"{directory} leaves its prompt {prompt!r} out of the pooling (include_prompt in 1_Pooling/config.json), "
            "which cannot be computed here: take another model"
        )
    notices = list[str]()
    similarity = prompts.get("similarity_fn_name") or "cosine"
    if modules and similarity != "cosine" and not (similarity == "dot" and "Normalize" in folders):
        notices.append(
            f"{directory} compares vectors by {similarity} (similarity_fn_name), and cosines are compared here"
        )
    return SentenceFiles(
        pooling=None if pooling is None else _pooling_name(pooling, directory), dense=dense,
        dimensions=None if pooling is None else prompts.get("truncate_dim"),
        lower_case=bool(limits.get("do_lower_case")), max_length=limits.get("max_seq_length"),
        prompts=named, prompt_name=name, notices=notices,
    )  # fmt: skip


def adopt_sentence_files(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, directory: Path, *, encodes: bool
) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """Writes the pooling beside an encoder to its configuration, and the treatment of texts to its tokenizer.

    The prompt and the lower case become a part of the tokenizer, which the student and its bundle share.

    Args:
        encodes: whether the model is to encode texts. Of a model with a head only the files of a cross-encoder count.

    Returns:
        The tokenizer, and notices.

    Raises:
        UserError: as `read_sentence_files` does, and for a cross-encoder with a prompt.
    """
    if not encodes and not _is_cross_encoder(directory):
        return tokenizer, []
    files = read_sentence_files(directory)
    notices = list(files.notices)
    if files.prompt and not encodes:
        raise UserError(
            f"{directory} begins the first text of a pair with the prompt {files.prompt!r}, which is not added here: "
            f"set default_prompt_name to null in its {_PROMPTS_FILE}, and begin the texts of your data with the prompt"
        )
    if files.pooling is not None:
        further: dict[str, Any] = {} if files.dimensions is None else {"dimensions": files.dimensions}
        if files.dense:
            further["dense"] = list(files.dense)
        setattr(config, VECTOR_SETTINGS, {"pooling": files.pooling, "normalize": False, **further})
    if files.max_length is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, files.max_length)
    if files.lower_case and not lower_cases(tokenizer):
        tokenizer = with_normalizers(tokenizer, [normalizers.Lowercase()])
        notices.append(f"texts are lower-cased as by {directory} (do_lower_case)")
    if encodes and files.prompts:  # A prompt is lower-cased too.
        tokenizer, more = set_prompts(tokenizer, files.prompts, files.prompt_name, str(directory))
        notices += more
    return tokenizer, notices


def keep_prompts(tokenizer: PreTrainedTokenizerBase, directory: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer with the prompts in a directory of this program, which its own files do not have."""
    setattr(tokenizer, _PROMPTS, _read_object(directory / _PROMPTS_FILE).get("prompts") or {})
    return tokenizer


def head_activation(config: PreTrainedConfig, directory: Path) -> str | None:
    """Returns the function that a cross-encoder of sentence-transformers applies to its logits, such as `Sigmoid`.

    None stands for a model that no such file describes. Without a name in them it is the sigmoid of a single logit.
    """
    files = _read_object(directory / _PROMPTS_FILE)
    named = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    named = named or getattr(config, "sbert_ce_default_activation_function", None) or files.get("activation_fn")
    if named is not None:
        return str(named).rpartition(".")[2]
    if _is_cross_encoder(directory) or hasattr(config, "sentence_transformers"):
        return "Sigmoid" if config.num_labels == 1 else "Identity"
    return None


def with_normalizers(
    tokenizer: PreTrainedTokenizerBase, first: Sequence[normalizers.Normalizer]
) -> PreTrainedTokenizerBase:
    """Returns a tokenizer that applies the normalizers to a text before its own one.

    It is of the class that reads its file as it is. Others such as BertTokenizer lose the normalizer when they load it.
    """
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own = backend.normalizer
    backend.normalizer = normalizers.Sequence([*first, *([] if own is None else [own])])  # type: ignore[assignment]
    attributes = {**read_attributes(tokenizer), **tokenizer.special_tokens_map}
    changed = PreTrainedTokenizerFast(tokenizer_object=backend, **attributes)
    setattr(changed, _PROMPTS, prompts_of(tokenizer))
    return changed


def _is_cross_encoder(directory: Path) -> bool:
    return _read_object(directory / _PROMPTS_FILE).get("model_type") == CROSS_ENCODER


def _read_object(path: Path) -> dict[str, Any]:
    """Returns the content of a file, an empty object without it; raises UserError if it is damaged."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds a {type(content).__name__}, expected an object")
    return content


def _read_modules(directory: Path) -> list[tuple[str, str]]:
    """Returns the name and the folder of each module in order. Without modules.json the folders name them."""
    path = directory / MODULES_FILE
    if not path.is_file():
        folders = [entry.name for entry in directory.iterdir() if re.fullmatch(r"\d+_[A-Z]\w*", entry.name)]
        numbered = sorted(folders, key=lambda name: int(name.partition("_")[0]))
        modules = [(name.partition("_")[2], name) for name in numbered if (directory / name / "config.json").is_file()]
        return [("Transformer", ""), *modules] if modules else []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        named = [(str(module["type"]), str(module["path"])) for module in content]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged: {first_line(error)}") from error
    # The name of a class of another package stays whole.
    own = "sentence_transformers."
    return [(kind.rpartition(".")[2] if kind.startswith(own) else kind, folder) for kind, folder in named]


def _check_modules(modules: Sequence[tuple[str, str]], directory: Path) -> None:
    """Raises UserError for modules that are not an encoder with a pooling, and maybe the length 1."""
    for name, folder in modules:
        if name not in (*_READ, *_WITHOUT_EFFECT):
            raise UserError(
                f"{directory} computes its vectors by {folder or name} ({name}), which cannot be computed "
                "here: take a model whose modules are Transformer, Pooling, Dense and Normalize. To train its encoder "
                "anew without that module, copy config.json, the weights and the tokenizer to another directory"
            )
    names = [name for name, _ in modules if name in _READ]
    if names[:2] != list(_READ[:2]) or sorted(names, key=_READ.index) != names or names.count(_READ[3]) > 1:
        raise UserError(
            f"{directory} has the modules {', '.join(names)} in {MODULES_FILE}, expected {', '.join(_READ[:2])}, and "
            f"maybe {_READ[2]} and {_READ[3]}"
        )
    if folder := dict(modules)["Transformer"]:
        raise UserError(
            f"{directory} keeps its model in {folder}, as old versions of sentence-transformers did: load it with a "
            "newer one, save it again with its method save, and give that directory"
        )


def _pooling_name(content: Mapping[str, Any], directory: Path) -> str:
    """Returns the pooling; raises UserError for one that cannot be computed here, and for several together."""
    chosen = content.get("pooling_mode")  # Files of newer versions have no flags.
    if chosen is None:
        flags = [name for name, value in content.items() if name.startswith("pooling_mode_") and value is True]
        known = [pooling for flag, pooling in POOLING_FLAGS.items() if flag in flags]
        chosen = [*known, *(name.removeprefix("pooling_mode_") for name in flags if name not in POOLING_FLAGS)]
        chosen = chosen or ["mean"]
    names = [chosen] if isinstance(chosen, str) else list(map(str, chosen))
    if names and set(names) <= set(POOLINGS):
        return JOINED.join(names)
    raise UserError(
        f"{directory} was trained with {JOINED.join(names)} pooling (1_Pooling/config.json), expected "
        f"{', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}: take another model"
    )


def _read_dense(folders: Sequence[str], pooling: Mapping[str, Any], directory: Path) -> list[DenseSettings]:
    """Returns the layers behind the pooling, of which each reads what the one before gives."""
    sizes = (pooling.get(name) for name in ("embedding_dimension", "word_embedding_dimension"))
    hidden = next((size for size in sizes if isinstance(size, int)), None)
    width = None if hidden is None else hidden * len(_pooling_name(pooling, directory).split(JOINED))
    layers: list[DenseSettings] = []
    for folder in folders:
        layers.append(check_dense(_read_object(directory / folder / "config.json"), folder, directory, width))
        width = layers[-1]["out_features"]
    return layers


def _default_name(content: Mapping[str, Any], directory: Path) -> str | None:
    """Returns the name of the prompt that begins every text, None without one."""
    name: str | None = content.get("default_prompt_name")
    if name is not None and name not in (prompts := content.get("prompts") or {}):
        raise UserError(f"{directory / _PROMPTS_FILE} names the prompt {name}, and has {', '.join(prompts) or 'none'}")
    return name
