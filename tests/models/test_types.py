"""Tests of every model type of transformers with a text head as a teacher: it teaches, or the reason is named.

A type is one line of `TYPES`. The default part loads it, builds the student of `+student=distilbert`, checks both and
runs a training step. pytest -m slow -n 0 tests/models/test_types.py runs the whole chain of each type.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distill.builtin.students import distilbert, layers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distill.chain.plan import default_objective
from distill.core.errors import UserError
from distill.kinds import Classification
from distill.models import compatibility
from distill.models.forward import model_class, run_model
from distill.models.loading import load_directory
from distill.models.sentence_files import adopt_special_tokens
from distill.models.surgery.long_texts import check_exportable
from tests.conftest import LABELS, LOOSE_OPTIONS, sentences
from tests.jobs.runs import read_record, run_command

HEAD = "AutoModelForSequenceClassification"
LONGEST = 80
WIDE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": LONGEST,
}  # fmt: skip
COUNTED = WIDE | {"max_position_embeddings": LONGEST + 2, "pad_token_id": 1}  # Positions behind that of the padding.
GROUPED = WIDE | {"num_key_value_heads": 2, "head_dim": 8}
GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": LONGEST}
XLM: dict[str, Any] = {"emb_dim": 32, "n_layers": 4, "n_heads": 4, "max_position_embeddings": LONGEST}
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 4, "num_decoder_layers": 4, "num_heads": 4}
BART: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": LONGEST,
}  # fmt: skip
RELATIVE: dict[str, Any] = {
    "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False, "type_vocab_size": 0,
}  # fmt: skip
MIXED: dict[str, Any] = {
    "num_experts": 2,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
}
# Attention from a latent of the keys and values, and some layers of experts.
LATENT = WIDE | MIXED | {
    "num_key_value_heads": 4, "n_routed_experts": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "qk_head_dim": 16, "v_head_dim": 8, "head_dim": 8,
}  # fmt: skip
NO_HEAD = "transformers has no AutoModelForSequenceClassification for a model of type"
BY_VALUES = "cannot be exported to ONNX, because its attention depends on values of the text"
BY_STATES = "cannot be exported to ONNX, because its linear attention changes a state once for each token"
NO_FILE = "cannot be exported to ONNX"
NO_TABLE = "which has no table of token embeddings"
JOINED = "which joins several models .*: save its part that reads texts"
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
BY_TURNS = GROUPED | {
    "layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_value_heads": 2, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
WINDOWED = {"sliding_window": 16, "query_pre_attn_scalar": 8}


@dataclass(frozen=True)
class Type:
    """A model type: its configuration at toy size, and what becomes of it as a teacher.

    Attributes:
        refused: the reason before anything is trained, as a regular expression; empty for a type that teaches.
        unexported: the reason why its student cannot be exported; empty for one that is.
    """

    sizes: dict[str, Any] = field(default_factory=lambda: WIDE)
    refused: str = ""
    unexported: str = ""


TYPES: dict[str, Type] = {
    "albert": Type(WIDE | {"embedding_size": 16}, "they share one set of weights.*: take \\+student=albert"),
    "arcee": Type(GROUPED),
    "axk1": Type(LATENT, unexported=NO_FILE),
    "axk2": Type(LATENT, unexported=NO_FILE),
    "bart": Type(BART),
    "bert": Type(),
    "big_bird": Type(),
    "bigbird_pegasus": Type(BART),
    "biogpt": Type(),
    "blenderbot": Type(BART, NO_HEAD),
    "bloom": Type({"hidden_size": 32, "n_layer": 4, "n_head": 4}),
    "camembert": Type(COUNTED),
    "canine": Type(WIDE, NO_TABLE),
    "convbert": Type(WIDE | {"embedding_size": 16, "head_ratio": 2, "num_groups": 1, "conv_kernel_size": 3}),
    "ctrl": Type(GPT | {"dff": 64}),
    "data2vec-text": Type(COUNTED),
    "deberta": Type(WIDE | RELATIVE | {"max_relative_positions": -1}),
    "deberta-v2": Type(WIDE | RELATIVE | {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True}),
    "deepseek_v2": Type(LATENT, unexported=NO_FILE),
    "deepseek_v3": Type(LATENT, unexported=NO_FILE),
    "diffllama": Type(GROUPED),
    "distilbert": Type({"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": LONGEST}),
    "doge": Type(GROUPED),
    "electra": Type(WIDE | {"embedding_size": 16}),
    "ernie": Type(),
    "esm": Type(COUNTED | {"mask_token_id": 4, "position_embedding_type": "absolute"}),
    "esmc": Type(),
    "eurobert": Type(GROUPED),
    "exaone4": Type(GROUPED),
    "falcon": Type(WIDE | {"new_decoder_architecture": False, "num_kv_heads": 4, "ffn_hidden_size": 64}),
    "flaubert": Type(XLM),
    "fnet": Type(WIDE | {"tpu_short_seq_length": LONGEST}),
    "funnel": Type(
        {"block_sizes": [2, 2], "block_repeats": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
        "has no list of 4 layers, from which a distilbert student would choose: take \\+student=bilstm",
    ),
    "gemma": Type(GROUPED),
    "gemma2": Type(GROUPED | WINDOWED),
    "gemma3": Type({"text_config": GROUPED, "vision_config": VISION}, JOINED),
    "gemma3_text": Type(GROUPED | WINDOWED | {"use_bidirectional_attention": True}),
    "glm": Type(GROUPED),
    "glm4": Type(GROUPED),
    "gpt-sw3": Type(GPT),
    "gpt2": Type(GPT),
    "gpt_bigcode": Type(GPT),
    "gpt_neo": Type({
        "hidden_size": 32, "num_layers": 4, "num_heads": 4, "attention_types": [[["global", "local"], 2]],
        "window_size": 8, "max_position_embeddings": LONGEST, "intermediate_size": 64,
    }),
    "gpt_neox": Type(),
    "gpt_oss": Type(GROUPED | MIXED, unexported=NO_FILE),
    "gptj": Type(GPT | {"rotary_dim": 8}),
    "gte": Type(GROUPED),
    "hunyuan_v1_dense": Type(GROUPED),
    "hunyuan_v1_moe": Type(GROUPED | MIXED, unexported=NO_FILE),
    "ibert": Type(COUNTED),
    "jamba": Type(GROUPED | {
        "mamba_d_state": 4, "mamba_dt_rank": 4, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
    }, unexported=NO_FILE),
    "jetmoe": Type(GROUPED | MIXED),
    "jina_embeddings_v3": Type(GROUPED),
    "layoutlm": Type(),
    "layoutlmv3": Type(COUNTED | {
        "coordinate_size": 4, "shape_size": 8, "has_relative_attention_bias": False,
        "has_spatial_attention_bias": False,
        "visual_embed": False,
    }),
    "led": Type(BART, NO_HEAD),
    "lilt": Type(COUNTED | {
        "hidden_size": 48, "intermediate_size": 96, "max_2d_position_embeddings": 64, "channel_shrink_ratio": 4,
    }),
    "llama": Type(GROUPED),
    "longformer": Type(COUNTED | {"attention_window": 8}, BY_VALUES),
    "luke": Type(COUNTED),
    "m2m_100": Type(BART, NO_HEAD),
    "mamba": Type({"hidden_size": 32, "num_hidden_layers": 4, "state_size": 4}, NO_HEAD),
    "marian": Type(BART, NO_HEAD),
    "markuplm": Type(GROUPED),
    "mbart": Type(BART, unexported=NO_FILE),
    "megatron-bert": Type(),
    "minicpm3": Type(LATENT),
    "minimax": Type(GROUPED | MIXED, unexported=NO_FILE),
    "ministral": Type(GROUPED),
    "ministral3": Type(GROUPED),
    "mistral": Type(GROUPED | {"sliding_window": 16}),
    "mixtral": Type(GROUPED | MIXED, unexported=NO_FILE),
    "mobilebert": Type(WIDE | {
        "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16, "num_feedforward_networks": 2,
    }),
    "modernbert": Type(WIDE | {"global_attn_every_n_layers": 3, "local_attention": 8}),
    "modernbert-decoder": Type(GROUPED),
    "modernvbert": Type({"text_config": WIDE, "vision_config": VISION}, JOINED),
    "mpnet": Type(COUNTED),
    "mpt": Type({"d_model": 32, "n_layers": 4, "n_heads": 4, "max_seq_len": LONGEST, "expansion_ratio": 2}),
    "mra": Type(WIDE | {"max_position_embeddings": 130}),
    "mt5": Type(T5),
    "mvp": Type(BART),
    "nemotron": Type(GROUPED),
    "nomic_bert": Type(GROUPED),
    "nystromformer": Type(WIDE | {"num_landmarks": 64, "segment_means_seq_len": 64}),
    "olmo": Type(GROUPED),
    "olmo2": Type(GROUPED),
    "olmo3": Type(GROUPED),
    "openai-gpt": Type(GPT),
    "opt": Type(WIDE | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "pegasus": Type(BART, NO_HEAD),
    "perceiver": Type({
        "num_latents": 8, "d_latents": 32, "d_model": 32, "num_blocks": 1, "num_self_attends_per_block": 4,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "max_position_embeddings": LONGEST,
    }, f"{NO_TABLE}|has hidden_size=None, expected the size of the hidden states"),
    "persimmon": Type(),
    "phi": Type(),
    "phi3": Type(GROUPED),
    "phimoe": Type(GROUPED | MIXED, unexported=NO_FILE),
    "plbart": Type(BART, unexported=NO_FILE),
    "qwen2": Type(GROUPED),
    "qwen2_moe": Type(GROUPED | MIXED | {"shared_expert_intermediate_size": 16}, unexported=NO_FILE),
    "qwen3": Type(GROUPED),
    "qwen3_moe": Type(GROUPED | MIXED | {"shared_expert_intermediate_size": 16}, unexported=NO_FILE),
    "qwen3_5": Type(
        {"text_config": BY_TURNS, "vision_config": {"depth": 1, "hidden_size": 16, "num_heads": 2}}, JOINED
    ),
    "qwen3_5_text": Type(BY_TURNS, BY_STATES),
    "qwen3_next": Type(BY_TURNS | LATENT | {"shared_expert_intermediate_size": 16}, BY_STATES),
    "reformer": Type({
        "hidden_size": 32, "attention_head_size": 8, "num_attention_heads": 4, "feed_forward_size": 64,
        "attn_layers": ["local", "lsh"] * 2, "axial_pos_shape": [8, 10], "axial_pos_embds_dim": [16, 16],
        "max_position_embeddings": LONGEST, "is_decoder": False, "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8, "num_buckets": 2,
    }, "cannot be run on a sample of 4 tokens .*axial_pos_shape"),
    "rembert": Type(WIDE | {"input_embedding_size": 16, "output_embedding_size": 16}),
    "roberta": Type(COUNTED | {"type_vocab_size": 1}),
    "roberta-prelayernorm": Type(COUNTED),
    "roc_bert": Type(COUNTED),
    "roformer": Type(WIDE | {"embedding_size": 16}),
    "rwkv": Type({"hidden_size": 32, "num_hidden_layers": 4, "context_length": LONGEST}, NO_HEAD),
    "seed_oss": Type(GROUPED),
    "smollm3": Type(GROUPED),
    "splinter": Type(WIDE, NO_HEAD),
    "squeezebert": Type(WIDE | {"embedding_size": 32}),
    "stablelm": Type(GROUPED),
    "starcoder2": Type(GROUPED),
    "t5": Type(T5),
    "t5gemma": Type({"encoder": GROUPED, "decoder": GROUPED}, JOINED),
    "t5gemma2": Type({"encoder": {"text_config": GROUPED, "vision_config": VISION}, "decoder": GROUPED}, JOINED),
    "tapas": Type(GROUPED),
    "ultrabert": Type(GROUPED),
    "umt5": Type(T5),
    "xlm": Type(XLM),
    "xlm-roberta": Type(COUNTED),
    "xlm-roberta-xl": Type(COUNTED),
    "xlnet": Type({"d_model": 32, "n_layer": 4, "n_head": 4, "d_inner": 64}, unexported=NO_FILE),
    "xmod": Type(COUNTED | {"languages": ["en_XX"], "default_language": "en_XX"}),
    "yoso": Type(WIDE | {"max_position_embeddings": LONGEST + 2}),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return create_tokenizer()


def create_tokenizer() -> PreTrainedTokenizerBase:
    """Returns a WordPiece tokenizer with every special token that a model type names."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    backend.train_from_iterator([text for text, _ in sentences(64)], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", bos_token="[CLS]", eos_token="[SEP]", model_max_length=LONGEST,
    )  # fmt: skip


def create_model(name: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Returns a model of the type with random weights and the head for texts, or without one where there is none."""
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    options = {"vocab_size": len(tokenizer)} | special | TYPES[name].sizes
    config = transformers.AutoConfig.for_model(name, **options)
    torch.manual_seed(0)
    create = model_class(HEAD, type(config)) or model_class("AutoModel", type(config))
    assert create is not None
    model: PreTrainedModel = create(config)
    return model


def save_teacher(name: str, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    create_model(name, tokenizer).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def train_step(directory: Path) -> PreTrainedModel:
    """Loads a teacher, checks its student as a run does, and returns it after one backward pass."""
    start = load_directory(directory, HEAD, LABELS, trust_remote_code=False)
    adopt_special_tokens(start.model, start.tokenizer)
    teacher, objective = start.model.eval(), default_objective(Classification(text="sentence"))
    student = distilbert.from_teacher(teacher)
    compatibility.check_vocabulary(teacher, student, start.tokenizer)
    compatibility.check_length(student, start.tokenizer, 40, who="student")
    compatibility.check_outputs(objective, teacher=teacher, student=student)
    compatibility.check_sizes(objective, teacher=teacher, student=student)
    compatibility.check_head(student, teacher, name="distilbert", likelihood="softmax")
    check_exportable(student, "distilbert")
    batch = start.tokenizer(
        ["a lovely film", "dull"], padding=True, return_tensors="pt", return_attention_mask=True
    )  # fmt: skip
    run_model(student, batch, objective.needs).logits.sum().backward()
    return student


# Types that this package has code for, with sizes of other names, or with each of the reasons. The others are slow.
QUICK = {
    "albert", "bart", "canine", "deberta-v2", "distilbert", "falcon", "fnet", "funnel", "gemma3_text", "gpt2",
    "jamba", "led", "llama", "longformer", "mbart", "mobilebert", "mpt", "opt", "perceiver", "reformer",
    "roberta", "squeezebert", "t5", "xlm", "xlnet",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TYPES]
)
def test_a_model_type_teaches_or_is_refused_with_its_reason(
    name: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    save_teacher(name, tokenizer, tmp_path)
    if reason := TYPES[name].refused:
        with pytest.raises(UserError) as caught:
            train_step(tmp_path)
        assert re.search(reason, str(caught.value))
        return
    student = train_step(tmp_path)
    assert 1 <= student.config.num_hidden_layers <= 2
    assert len(student.inherited) > 10  # type: ignore[arg-type]
    assert any(parameter.grad is not None for parameter in student.parameters())


def test_a_family_of_any_length_reads_as_many_tokens_as_its_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    model = transformers.XLNetModel(transformers.XLNetConfig(vocab_size=200, **TYPES["xlnet"].sizes))
    assert model.config.max_position_embeddings == -1
    assert compatibility.longest(model, tokenizer) == LONGEST
    sizes = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 16, "attention_window": 8}
    led = transformers.LEDModel(transformers.LEDConfig(vocab_size=200, **TYPES["led"].sizes | sizes))
    assert (compatibility.longest(led, tokenizer), compatibility.longest(led, tokenizer, writes=True)) == (64, 16)


@pytest.mark.parametrize(
    ("family", "sizes", "reason"),
    [("Funnel", {"block_sizes": [4], "block_repeats": [1]}, "of type funnel has no number of layers")],
)
def test_a_model_without_layers_to_choose_from_is_refused(family: str, sizes: dict[str, Any], reason: str) -> None:
    own = TYPES[family.lower()].sizes | sizes
    model = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(vocab_size=200, **own))
    with pytest.raises(UserError, match=reason):
        distilbert.from_teacher(model)


def test_the_layers_of_a_mamba_that_writes_text_are_chosen() -> None:
    config = transformers.MambaConfig(vocab_size=60, **TYPES["mamba"].sizes)
    teacher = transformers.MambaForCausalLM(config)
    student = layers.from_teacher(teacher, depth=2)
    assert student.config.layer_types == ["linear_attention"] * 2
    last = [model.get_parameter(f"backbone.layers.{layer}.mixer.D") for model, layer in ((teacher, 3), (student, 1))]
    torch.testing.assert_close(*last)


def test_an_encoder_decoder_is_refused_for_the_task_of_a_decoder(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    save_teacher("bart", tokenizer, tmp_path)
    with pytest.raises(UserError, match="of type bart, an encoder-decoder, and the task is for a decoder alone"):
        load_directory(tmp_path, "AutoModelForCausalLM", None, trust_remote_code=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_the_chain_of_a_model_type_ends_in_a_bundle_or_in_its_reason(
    name: str, tokenizer: PreTrainedTokenizerBase, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_teacher(name, tokenizer, tmp_path / "teacher")
    code = run_command(
        "+teacher=pretrained", f"teacher.path={tmp_path / 'teacher'}", "+student=distilbert", "task=sst2",
        f"task.data_dir={data_dir}", "task.max_length=40", "augment=none", "benchmark.enabled=false", "baseline=false",
        "teacher.accept_weak=true", "teacher.finetune.max_steps=2", "trainer.max_steps=2", "export.recipes=[dynamic]",
        "trainer.precision=32-true", "teacher.finetune.precision=32-true",  # In which deberta and xmod train too.
        f"output_dir={tmp_path / 'runs'}", f"cache_dir={tmp_path / 'cache'}", *LOOSE_OPTIONS,
    )  # fmt: skip
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    if reason := TYPES[name].refused or TYPES[name].unexported:
        assert (code, re.search(reason, printed) is not None) == (2, True), printed
        return
    assert code == 0, printed
    [path] = (tmp_path / "runs").rglob("run.json")
    assert read_record(path.parent)["status"] == "finished"
    assert (path.parent / "bundle" / "model.onnx").is_file()


@pytest.mark.parametrize(
    ("family", "lengthens", "advice"),
    [("bert", True, "cuts longer texts, or teacher.positions=96, which"), ("bert", False, "which cuts longer texts"),
     ("llama", True, "which cuts longer texts")],
)  # fmt: skip
def test_positions_are_advised_where_there_are_any(
    family: str, lengthens: bool, advice: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    config = transformers.AutoConfig.for_model(family, vocab_size=200, **TYPES[family].sizes)
    model = transformers.AutoModel.from_config(config)
    with pytest.raises(UserError) as caught:
        compatibility.check_length(model, tokenizer, 96, who="teacher", lengthens=lengthens)
    assert str(caught.value).startswith("task.max_length=96, but the teacher reads 80 tokens at most: set task.")
    assert advice in str(caught.value)
    assert ("positions" in str(caught.value)) == ("positions" in advice)
