"""Speed of an exported BiLSTM relative to BERT-large in torch. The published factor is 434 (arXiv 1903.12136).

    python benchmarks/bilstm_against_bert_large.py

Both have random weights, because trained weights take the same time. The batch size is 1, the length 32, and the hidden
size 150 in each direction. The models take turns, timed by the code that times every run (distill.export.latency).
"""

import argparse
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertForSequenceClassification

from distill.edge import bundle_files
from distill.export import latency
from distill.export.bundle_writer import FILES
from distill.export.onnx import export_onnx
from distill.export.quantization import RecipeInput, write_dynamic
from distill.kinds import Classification
from distill.models.forward import input_names
from students import bilstm

BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=bundle_files.count_cores())
    parser.add_argument("--seconds", type=float, default=5.0, help="measuring time per model")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    teacher = BertForSequenceClassification(BertConfig(**BERT_LARGE)).eval()
    student = bilstm.from_teacher(teacher, task=Classification(text="sentence"), hidden_dim=150).eval()

    def run_teacher(feed: latency.Inputs) -> object:
        with torch.inference_mode():
            return teacher(**{key: torch.from_numpy(array) for key, array in feed.items()}).logits

    with tempfile.TemporaryDirectory() as directory:
        files = {name: Path(directory) / file for name, file in FILES.items()}
        export_onnx(student, files["fp32"])
        write_dynamic(RecipeInput(files["fp32"], 7), files["int8"])
        size = sum(parameter.numel() * parameter.element_size() for parameter in teacher.parameters())
        candidates = [
            latency.Candidate("BERT-large", "torch", input_names(teacher), size, run_teacher, torch.get_num_threads)
        ]
        for name, path in files.items():
            candidates.append(latency.load_candidate("BiLSTM", name, path, input_names(student), options.threads))
        rows = latency.measure_latency(
            candidates, batches=[1], lengths=[32], threads=options.threads, seconds=options.seconds,
            vocabulary=teacher.config.vocab_size,
        )  # fmt: skip
    parameters = sum(p.numel() for name, p in student.named_parameters() if not name.startswith("embeddings"))
    table = Table(title=f"Batch 1, length 32, {options.threads} thread(s)")
    for column in ("model", "format", "runs", "p50 ms", "p90 ms", "size MB", "speed-up"):
        table.add_column(column, justify="right")
    for row in rows:
        speedup = rows[0]["p50_ms"] / row["p50_ms"]
        table.add_row(
            row["model"], row["format"], str(row["runs"]), f"{row['p50_ms']:.3f}", f"{row['p90_ms']:.3f}",
            f"{row['bytes'] / 1e6:.1f}", f"{speedup:.0f}x",
        )  # fmt: skip
    Console().print(table)
    print(f"BiLSTM parameters without embeddings: {parameters / 1e6:.2f} M")


if __name__ == "__main__":
    main()
