"""Tokens per second of an exported model that writes text, compared with `generate` of transformers.

    python benchmarks/generation.py
    python benchmarks/generation.py --models gpt2 --tokens 128 --turns 5

GPT-2 of 6 layers of 768 with 50,257 tokens, and T5 and BART of 6 and 6 layers of 512 with 32,128, all with random
weights, which take the same time as trained ones. No end token is known, so that every text has `--tokens` new tokens.
The variants take turns: torch in float32, and `distill.edge` with the float32 and the int8 file, one text at a time,
greedily and with four beams. A call includes the tokenizer. *First token* is that of a prompt of 512 tokens.
`--size tiny` shows in a minute that the script runs.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from machine import describe_machine
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from distill.core.files import hash_file, write_json
from distill.edge import Bundle
from distill.edge.bundle_files import count_bytes, this_target, weight_bits
from distill.export.onnx import describe_generation, export_generator
from distill.export.quantization import RecipeInput, write_dynamic, write_with_encoder

Write = Callable[[str, int, int], int]  # Writes after a prompt with a number of tokens and of beams, returns how many.
TORCH = "torch"
START = 0


def create_model(name: str, *, is_tiny: bool) -> PreTrainedModel:
    """Returns a model with random weights and without an end token."""
    layers, width, size = (2, 64, 500) if is_tiny else (6, 512, 32_128)
    ends: dict[str, Any] = {"eos_token_id": None, "forced_eos_token_id": None, "pad_token_id": 1}
    torch.manual_seed(0)
    if name == "gpt2":
        layout = (2, 64, 500) if is_tiny else (6, 768, 50_257)
        sizes: dict[str, Any] = dict(zip(("n_layer", "n_embd", "vocab_size"), layout, strict=True))
        model: PreTrainedModel = GPT2LMHeadModel(GPT2Config(n_head=layout[1] // 64, bos_token_id=START, **sizes | ends))
    elif name == "t5":
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=size, d_model=width, d_ff=4 * width, num_layers=layers, num_heads=width // 64,
                decoder_start_token_id=START, **ends,
            )
        )  # fmt: skip
    else:
        sides = {
            f"{side}_{key}": value
            for side in ("encoder", "decoder")
            for key, value in {"layers": layers, "attention_heads": width // 64, "ffn_dim": 4 * width}.items()
        }
        model = BartForConditionalGeneration(
            BartConfig(vocab_size=size, d_model=width, decoder_start_token_id=START, bos_token_id=None, **sides, **ends)
        )
    return model.eval()


def write_bundle(model: PreTrainedModel, directory: Path) -> None:
    """Writes the bundle of a model in float32 and int8, with a tokenizer of one token for each word."""
    fp32, int8 = directory / "model.fp32.onnx", directory / "model.int8.onnx"
    export_generator(model, fp32)
    is_causal = not model.config.is_encoder_decoder
    write_with_encoder(write_dynamic, RecipeInput(fp32, weight_bits(this_target()), ties=is_causal), int8)
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(model.config.vocab_size)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    names = ["input_ids", "attention_mask"]
    write_json(directory / "bundle.json", {
        "format": 1, "kind": "causal_lm" if is_causal else "seq2seq",
        "decoder": "continuation" if is_causal else "seq2seq", "decoding": {}, "labels": [], "pair": False,
        "max_length": 1024, "truncation_side": "right", "doc_stride": None, "inputs": names,
        "padding": dict.fromkeys(names, 0), "padding_side": "right", "models": {"fp32": fp32.name, "int8": int8.name},
        "recommended": "int8", "metrics": {}, "gates": {}, "thresholds": {}, "targets": {}, "batch_sizes": {},
        "generation": describe_generation(model, tokenizer),
        "files": {path.name: hash_file(path) for path in directory.iterdir()},
    })  # fmt: skip


def write_with_torch(model: PreTrainedModel, tokenizer: Tokenizer, prompt: str, tokens: int, beams: int) -> int:
    """Writes text with `generate` and returns the number of new tokens."""
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=beams, max_new_tokens=tokens
    )
    new = output[0, 1 if model.config.is_encoder_decoder else ids.shape[1] :].tolist()
    tokenizer.decode(new)
    return len(new)


def load_variants(name: str, directory: Path, *, is_tiny: bool, threads: int) -> dict[str, Write]:
    """Returns a function for each variant of a model; the ratios of the table are to the first one."""
    model = create_model(name, is_tiny=is_tiny)
    write_bundle(model, directory)
    bundles = {kind: Bundle(directory, model=kind, threads=threads) for kind in ("fp32", "int8")}

    def write(bundle: Bundle) -> Write:
        return lambda prompt, tokens, beams: len(
            bundle.generate_all([prompt], max_new_tokens=tokens, beams=beams)[0]["tokens"]
        )

    tokenizer = bundles["fp32"].tokenizer
    variants: dict[str, Write] = {
        TORCH: lambda prompt, tokens, beams: write_with_torch(model, tokenizer, prompt, tokens, beams)
    }
    return variants | {kind: write(bundle) for kind, bundle in bundles.items()}


def measure(variants: dict[str, Write], prompt: str, *, tokens: int, beams: int, turns: int) -> dict[str, float]:
    """Returns the median seconds of each variant; raises RuntimeError if one writes another number of tokens."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(turns + 1):
        for name, write in variants.items():
            start = time.perf_counter()
            written = write(prompt, tokens, beams)
            if turn:  # The first turn warms up.
                seconds[name].append(time.perf_counter() - start)
            if written != tokens:
                raise RuntimeError(f"{name} wrote {written} tokens, expected {tokens}")
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("gpt2", "t5", "bart"), default=("gpt2", "t5", "bart"))
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--prompt", type=int, default=40, help="tokens of a prompt or a source")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    is_tiny, random = options.size == "tiny", np.random.default_rng(0)
    table = Table("model", "task", *(f"{name}, tokens/s" for name in (TORCH, "fp32", "int8")), "fp32", "int8", "MB")
    for name in options.models:
        with TemporaryDirectory() as folder:
            directory = Path(folder)
            variants = load_variants(name, directory, is_tiny=is_tiny, threads=options.threads)
            files = [directory / f"model.{kind}.onnx" for kind in ("fp32", "int8")]
            sizes = " / ".join(f"{count_bytes(file) / 1e6:.0f}" for file in files)
            tasks = {"greedy": (options.prompt, options.tokens, 1), "4 beams": (options.prompt, options.tokens, 4)}
            if name == "gpt2":
                tasks["first token of 512"] = (512, 1, 1)
            for task, (length, tokens, beams) in tasks.items():
                prompt = " ".join(f"w{token}" for token in random.integers(10, 500, length))
                seconds = measure(variants, prompt, tokens=tokens, beams=beams, turns=options.turns)
                rates = {kind: tokens / value for kind, value in seconds.items()}
                ratios = (f"{rates[kind] / rates[TORCH]:.2f}x" for kind in ("fp32", "int8"))
                table.add_row(name, task, *(f"{rate:,.1f}" for rate in rates.values()), *ratios, sizes)
    console = Console()
    console.print(table)
    console.print(f"{options.threads} threads, medians of {options.turns} turns, {describe_machine()}")


if __name__ == "__main__":
    main()
