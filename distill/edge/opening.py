"""Opens a bundle: checks the files of one of its models, and loads its tokenizer, its decoder and its model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Tokenizer

from distill.core.errors import UserError, first_line
from distill.core.files import hash_file
from distill.edge import bundle_files, decode
from distill.edge.bundle_files import ABOVE, ANY, Session
from distill.edge.decoder import POSITIONS, Decoder
from distill.edge.generation import CachedModel
from distill.edge.sampling import GenerationSettings
from distill.edge.text_decoders import FilledTargets, MaskPredictor, WholeTexts, open_model
from distill.edge.values import check_count


class ModelFiles:
    """One of the models of a bundle with its files.

    Args:
        directory: of the bundle.
        manifest: bundle.json.
        name: of the model; None for the recommended one.

    Raises:
        UserError: if the bundle lacks the model, and if a file is damaged or this processor cannot run it.
    """

    def __init__(self, directory: Path, manifest: Mapping[str, Any], name: str | None) -> None:
        self.directory, self.manifest = directory, manifest
        self.decoder = self._find_decoder()
        models: Mapping[str, str] = manifest["models"]
        chosen: str | None = manifest["recommended"] if name is None else name
        if chosen is None:
            raise UserError(
                f"{directory} recommends no model because all failed the gate: choose one of {', '.join(models)}"
            )
        if chosen not in models:
            raise UserError(f"{directory} has no model {chosen}, expected one of {', '.join(models)}")
        self.name, self.path = chosen, directory / models[chosen]
        self._check_target()
        has_thresholds = chosen in {*manifest["thresholds"], *manifest.get("escalate", {})}
        if has_thresholds and "probability" not in self.decoder.fields:
            raise self._damaged(f"the decoder {manifest['decoder']} has no thresholds")
        self.encoder = bundle_files.encoder_file(self.path) if self.decoder.targets else None
        self._check_files()

    def _damaged(self, reason: object) -> UserError:
        return UserError(f"{self.directory} is damaged: {reason}")

    def _find_decoder(self) -> type[Decoder]:
        name, labels = self.manifest["decoder"], self.manifest["labels"]
        if name not in decode.DECODERS:
            known = ", ".join(decode.DECODERS)
            raise UserError(
                f"{self.directory} needs the decoder {name}, this version of distill has {known}: update distill"
            )
        decoder = decode.DECODERS[name]
        if len(labels) not in decoder.label_counts:
            raise self._damaged(f"the decoder {name} does not fit {len(labels)} labels")
        return decoder

    def _check_target(self) -> None:
        """Raises UserError for a model that gives wrong answers on this processor, with the one to take instead."""
        targets, device = self.manifest["targets"], bundle_files.this_target()
        right = [name for name in self.manifest["models"] if bundle_files.runs(targets.get(name, ANY), device)]
        if self.name in right:
            return
        # The smallest file is named last.
        instead = f"choose {' or '.join(reversed(right))}" if right else "export it with export.target=avx2"
        raise UserError(
            f"{self.directory}: the model {self.name} is for processors of the kind {targets[self.name]}, and this "
            f"one is {device}, on which int8 sums of it overflow: {instead}"
        )

    def _check_files(self) -> None:
        """Raises UserError for a file of the model or the tokenizer that is missing or damaged."""
        checksums = self.manifest["files"]
        files = [self.path] if self.encoder is None else [self.path, self.encoder]
        data = {bundle_files.data_file(file).name for file in files}
        data |= {f"{ABOVE}{bundle_files.shared_file(file).name}" for file in files}
        for name in (*(file.name for file in files), *sorted(checksums.keys() & data), "tokenizer.json"):
            path = self.directory / name
            if name not in checksums:
                raise self._damaged(f"files has no SHA-256 of {name}")
            if not path.is_file():
                raise UserError(f"{self.directory} is incomplete: {name} is missing")
            try:
                digest = hash_file(path)
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from error
            if digest != checksums[name]:
                raise UserError(f"{path} is damaged: its SHA-256 is not the one in bundle.json")

    def _check_weights(self, model: Path) -> None:
        """Raises UserError if a model reads weights from a file that bundle.json does not list."""
        if bundle_files.needs_openvino(model):  # Its one file of weights is listed.
            return
        try:
            names = bundle_files.find_weight_files(model)
        except (OSError, ValueError) as error:
            raise UserError(f"{model} cannot be loaded by onnxruntime: {first_line(error)}") from error
        if not names:
            return
        expected, used = bundle_files.data_file(model), bundle_files.list_model_files(model)[-1]
        if strange := sorted(names - {expected.name}):
            raise UserError(f"{model} reads weights from {strange[0]!r}, expected {expected.name} as in bundle.json")
        listed = used.name if used == expected else f"{ABOVE}{used.name}"
        if used == model or listed not in self.manifest["files"]:
            raise UserError(
                f"{model} reads weights from {expected.name}, which bundle.json does not list for that directory: "
                "take the bundle from its source again"
            )

    def load_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer, which neither pads nor truncates."""
        path = self.directory / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_str(path.read_bytes().decode("utf-8"))
        except Exception as error:  # tokenizers raises no narrower class.
            raise UserError(
                f"{path} cannot be read by tokenizers {tokenizers.__version__}: {first_line(error)}"
            ) from error
        special, length = tokenizer.num_special_tokens_to_add(self.manifest["pair"]), self.manifest["max_length"]
        if length < special:
            raise self._damaged(f"max_length is {length}, less than its {special} special tokens")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def create_decoder(self, tokenizer: Tokenizer, top_k: int | None) -> Decoder:
        """Returns the decoder, which has `top_k` pieces for each mask unless that is None."""
        decoding: dict[str, Any] = dict(self.manifest["decoding"])
        if top_k is not None:
            if not self.decoder.at_positions:
                raise UserError(
                    f"got top_k={top_k}, and {self.directory} is of a {self.manifest['kind']}, which fills no masks: "
                    "leave it out"
                )
            check_count("top_k", top_k, most=tokenizer.get_vocab_size())
            decoding["top_k"] = int(top_k)
        try:
            return self.decoder(self.manifest["labels"], self.manifest["pair"], decoding, tokenizer)
        except UserError as error:
            raise self._damaged(error) from error

    def load_model(self, threads: int, decoder: Decoder, tokenizer: Tokenizer) -> Session:
        """Returns the model, whose inputs and outputs are those of bundle.json."""
        self._check_weights(self.path)
        model = open_model(self.path, threads)
        self._check_model(model, decoder, tokenizer)
        return model

    def _check_model(self, model: Session, decoder: Decoder, tokenizer: Tokenizer) -> None:
        """Raises UserError if inputs or outputs of the model are not those of bundle.json."""
        names = [value.name for value in model.get_inputs()]
        expected = [*self.manifest["inputs"], *decoder.list_inputs()]
        if set(names) != set(expected):
            raise UserError(f"{self.path} has the inputs {', '.join(names)}, bundle.json has {', '.join(expected)}")
        for value in model.get_inputs():
            if value.name != POSITIONS and len(value.shape) != decoder.input_axes:
                raise UserError(
                    f"{self.path} has {value.name} {value.shape}, expected {decoder.input_axes} axes for the decoder "
                    f"{self.manifest['decoder']}"
                )
        shapes = {value.name: value.shape for value in model.get_outputs()}
        shape, axes = shapes.get("logits", []), decoder.axes
        at_tokens = decoder.at_positions or decoder.generates
        has_labels = not decoder.encodes and not at_tokens
        is_known = shape and isinstance(shape[-1], int) and has_labels
        labels = len(self.manifest["labels"])
        if len(shape) != axes or (is_known and shape[-1] != labels):
            raise UserError(
                f"{self.path} has logits {shape}, expected {axes} axes and {labels} classes as in bundle.json"
            )
        tokens = tokenizer.get_vocab_size()
        if at_tokens and isinstance(shape[-1], int) and shape[-1] < tokens:
            raise UserError(
                f"{self.path} has logits {shape}, expected one for each of the {tokens} tokens of the tokenizer"
            )

    def load_writer(self, model: Session) -> tuple[CachedModel, GenerationSettings]:
        """Returns the model that writes text, and how its texts begin and end."""
        try:
            settings = GenerationSettings.read(self.manifest.get("generation"))
            if not isinstance(model, WholeTexts):
                raise UserError(f"{self.path.name} has no caches of keys and values")
            if self.encoder is None:
                return CachedModel(model.decoder), settings
            if settings.start is None:
                raise UserError("generation has start null, expected the token that the decoder begins with")
            self._check_weights(self.encoder)
            return CachedModel(model.decoder, model.encoder, settings.start), settings
        except UserError as error:
            raise self._damaged(error) from error

    def load_filler(self, model: Session, decoder: FilledTargets) -> MaskPredictor:
        """Returns the model that fills the masks of targets."""
        if not isinstance(model, WholeTexts) or model.encoder is None or self.encoder is None:
            raise self._damaged(f"{self.path.name} has no encoder")
        self._check_weights(self.encoder)
        return MaskPredictor(model.encoder, model.decoder, decoder.frame, decoder.size)
