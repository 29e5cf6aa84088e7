"""Models of Hugging Face configurations: random weights, random inputs, nothing downloaded."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from sysbench.core.errors import ModelError, SpecError
from sysbench.core.spec.model_source import digest_of
from sysbench.core.spec.own_model import ARGUMENT, decoded_arguments, source_of
from sysbench.core.spec.spec import RunSpec
from sysbench.core.worker.workloads.factory import FactoryParts
from sysbench.core.worker.workloads.stepped_workload import (
    MarkedCache,
    marks_of,
    places_of,
    weight_dtype,
)

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables that keep these libraries offline."""

IMPLEMENTATIONS = {"naive": "eager", "sdpa": "sdpa", "flex": "flex_attention"}
"""Names of attention implementations in transformers."""

AUTO_CLASSES = (
    *("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM"),
    *("AutoModelForImageTextToText", "AutoModelForImageClassification"),
    *("AutoModelForSequenceClassification", "AutoModelForSpeechSeq2Seq", "AutoModel"),
)
"""Order of preference for a configuration that names no architecture."""

TOKENS = ("batch", "context")
FRAMES = 64
"""Default number of audio feature frames."""
SAMPLES = 16_000
"""Number of audio samples: a second of most."""


def configured_parts(spec: RunSpec) -> FactoryParts:
    """Build the configured model with random weights, and its inputs.

    Raises:
        SpecError: The model has no such argument or key.
        ModelError: transformers is missing, or the kind of inputs is unknown.
    """
    model_type, config = model_class(spec)
    if hasattr(config, "use_cache"):
        config.use_cache = spec.has_cache  # without one, as a training loop has it
    options = {}
    if not spec.attention_row.is_of_model:
        options["attn_implementation"] = IMPLEMENTATIONS[spec.attention_row.kernel]
    try:
        model = model_type._from_config(config, dtype=weight_dtype(spec), **options)
    except ValueError as error:
        if options and "attention" in str(error).lower():
            raise SpecError("attention", spec.attention, f"one this model has: {error}") from error
        raise
    if spec.checkpoint and not model.supports_gradient_checkpointing:
        raise SpecError("checkpoint", spec.checkpoint, "0: this model recomputes nothing")
    make, takes = _inputs_of(model, config, spec)
    if spec.has_cache:
        _check_cached(model, config, spec)
    return FactoryParts(
        model=model,
        batch=make,
        cache=partial(ConfiguredCache, spec) if spec.has_cache else None,
        decode=ConfiguredCache.decode,
        makes_signals=str(getattr(model, "main_input_name", "input_ids")) != "input_ids",
        takes=frozenset(takes),
        facts={
            "architecture": model_type.__name__,
            "attention": getattr(config, "_attn_implementation", None) or "of its own",
        },
    )


READ_TOKENS = 5
"""Tokens that fill a cache before it is stretched: more than the widest usual convolution."""
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Names of a model's cache in its arguments and outputs, by version of transformers."""


class ConfiguredCache(MarkedCache):
    """The cache that the model makes itself, of transformers' classes.

    In decode it holds all but the last token of each sequence: the model reads a few, and what grew
    with each is drawn at its full length, since a step takes as long whatever the contents.
    """

    def __init__(self, spec: RunSpec, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__(spec.batch)
        self._arguments: dict[str, Any] = {}
        # Read once: it takes as long as some of a step's kernels.
        accepted = inspect.signature(model.forward).parameters
        self._last_logits = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        if spec.step == "decode":
            vocabulary = _text_config(model.config).vocab_size
            few = min(READ_TOKENS, spec.context - 1)
            for length in (few - 1, 1) if few > 1 else (few,):
                marks = [value for *_, value in marks_of(self.held)]
                ids = torch.randint(vocabulary, (spec.batch, length))
                self.decode(model, {"input_ids": ids}, self)
            if spec.context - 1 > few:
                self._stretch(marks, spec.context - 1)
            self.mark()

    def _stretch(self, before: Sequence[Any], length: int) -> None:
        """Draw what one more token changed at ``length`` tokens, or as many as a window keeps."""
        for old, (places, key, value) in zip(before, list(places_of(self.held)), strict=True):
            if not isinstance(value, Tensor):
                places[key] = length if type(value) is int and value - old == 1 else value
                continue
            window = places.get("sliding_window")
            kept = min(length, window - 1) if window else length
            sizes = zip(value.shape, getattr(old, "shape", old), strict=True)
            shape = [kept if size != shorter else size for size, shorter in sizes]
            if shape != [*value.shape]:
                places[key] = torch.randn(shape, dtype=value.dtype)

    @staticmethod
    def decode(model: nn.Module, batch: Mapping[str, Any], cache: ConfiguredCache) -> Any:
        """Run the model on the next tokens, and keep the cache that it returns."""
        output = model(**batch, **cache._arguments, **cache._last_logits, use_cache=True)
        name = next((one for one in CACHE_NAMES if output.get(one) is not None), "")
        if not name:
            raise ModelError(f"{type(model).__name__} returns no cache: step = inference")
        cache.held = output[name]
        cache._arguments = {name: cache.held}
        return output

    @property
    def words(self) -> str:
        kinds = Counter(type(layer).__name__ for layer in getattr(self.held, "layers", ()))
        layers = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        after = "rewound before each step" if self._marks else "made by each step"
        return f"{type(self.held).__name__} of {layers or 'its own'}; {after}"

    def rewind(self) -> None:
        if not self._marks:
            self.held, self._arguments = None, {}
        super().rewind()


def _check_cached(model: nn.Module, config: Any, spec: RunSpec) -> None:
    """Reject models without a cache for each next token."""
    if getattr(config, "is_encoder_decoder", False) or not hasattr(
        model, "prepare_inputs_for_generation"
    ):
        raise SpecError("step", spec.step, "inference: the model generates no tokens one by one")
    if spec.step == "decode" and spec.context < 2:
        raise SpecError("context", spec.context, "at least 2 for step = decode")


def _text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def model_class(spec: RunSpec) -> tuple[Any, Any]:
    """Import the model's class; also return its configuration with the spec's arguments.

    Raises:
        SpecError: The configuration has no such argument, or remote code is not allowed.
        ModelError: transformers is missing or does not support the configuration.
    """
    path = Path(spec.model_file)
    if digest_of(source_of(spec.model), path) != spec.model_source:
        raise ModelError(f"{path} was changed since the run began: run it again")
    transformers = _transformers()
    config = _configuration(transformers, path, spec)
    package = importlib.import_module(type(config).__module__.rpartition(".")[0] or "transformers")
    for name in getattr(config, "architectures", None) or ():
        for place in (package, transformers):
            if hasattr(place, name):
                return getattr(place, name), config
    if spec.trust_code:
        for name in AUTO_CLASSES:
            if name in (getattr(config, "auto_map", None) or {}):
                return _remote_class(config.auto_map[name], path), config
    for name in AUTO_CLASSES:
        mapping = getattr(transformers, name)._model_mapping
        if (found := mapping.get(type(config), None)) is not None:
            return (found[0] if isinstance(found, tuple) else found), config
    raise ModelError(f"transformers {transformers.__version__} has no model for {path}")


def _transformers() -> Any:
    for variable in OFFLINE:
        os.environ[variable] = "1"
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ModelError(
            f"hf: needs transformers, which cannot be imported here ({error}): "
            f"{sys.executable} -m pip install transformers"
        ) from error


def _remote_class(reference: str, path: Path) -> Any:
    module = importlib.import_module("transformers.dynamic_module_utils")
    return module.get_class_from_dynamic_module(reference, str(path.parent))


def _configuration(transformers: Any, path: Path, spec: RunSpec) -> Any:
    # transformers' own reader: an infinite number is an object there.
    values = transformers.PreTrainedConfig.get_config_dict(str(path))[0]
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ModelError(f"{path} has no model_type: it is not a model configuration")
    kind, known = values["model_type"], transformers.CONFIG_MAPPING
    arguments = decoded_arguments(spec.model_args)
    if kind in known:
        config_class = known[kind]
    elif "auto_map" not in values:
        raise ModelError(f"transformers {transformers.__version__} does not know model_type {kind}")
    elif not spec.trust_code:
        raise SpecError(
            "trust_code",
            False,
            f"true, to run the code next to {path}: {kind} is not in transformers",
        )
    else:
        config_class = _remote_class(values["auto_map"]["AutoConfig"], path)
    names = {*values, *vars(config_class())}
    for key, value in arguments.items():
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SpecError(ARGUMENT + key, value, f"a key of {kind}'s configuration{hint}")
    config = config_class.from_dict(values | arguments)
    if not hasattr(config, "architectures") or not config.architectures:
        config.architectures = values.get("architectures")
    return config


def _inputs_of(
    model: nn.Module, config: Any, spec: RunSpec
) -> tuple[Callable[[], Mapping[str, Any]], tuple[str, ...]]:
    """Return a maker of inputs (with labels if there is a backward), and the sizes it uses."""
    main = str(getattr(model, "main_input_name", "input_ids"))
    accepted = inspect.signature(model.forward).parameters
    text = _text_config(config)
    if main == "input_ids":
        names = ["input_ids"]
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
            names.append("decoder_input_ids")
        if "labels" in accepted and spec.has_backward:
            names.append("labels")
        classes = _classes(model, config)

        def tokens() -> Mapping[str, Any]:
            shape = (spec.batch, spec.new_tokens)
            made = {name: torch.randint(text.vocab_size, shape) for name in names}
            if "labels" in made and classes:
                made["labels"] = torch.randint(classes, (spec.batch,))
            return made

        return tokens, TOKENS
    if main not in SHAPES:
        raise ModelError(f"its main input is {main}: return it from batch() of a factory instead")
    takes = TOKENS if "decoder_input_ids" in accepted else TOKENS[:1]
    shapes = [(spec.batch, *sizes) for sizes in SHAPES[main](config)]
    signal = shapes[0] if len(shapes) == 1 else _accepted(model, config, main, shapes)

    def signals() -> Mapping[str, Any]:
        made = {main: torch.randn(signal)}
        if "decoder_input_ids" in accepted:
            shape = (spec.batch, spec.context)
            made["decoder_input_ids"] = torch.randint(text.vocab_size, shape)
        elif "labels" in accepted and spec.has_backward and _classes(model, config):
            made["labels"] = torch.randint(_classes(model, config), (spec.batch,))
        return made

    return signals, takes


def _accepted(
    model: nn.Module, config: Any, main: str, shapes: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """The first shape with which a forward runs on meta tensors; the first of all if none does.

    A name such as ``input_features`` does not tell the order of its dimensions.
    """
    accepts = inspect.signature(model.forward).parameters
    with _disable_current_modes(), torch.device("meta"), torch.no_grad():
        trial = type(model)._from_config(config).eval()  # type: ignore[attr-defined]
        for shape in shapes:
            made = {main: torch.randn(shape)}
            if "decoder_input_ids" in accepts:
                made["decoder_input_ids"] = torch.zeros((shape[0], 2), dtype=torch.long)
            try:
                trial(**made)
            except Exception:  # any: the code of a model may fail as it likes
                continue
            return shape
    return shapes[0]


def _classes(model: nn.Module, config: Any) -> int:
    """Number of classes of a classifier; 0 for other models."""
    return int(config.num_labels) if "Classification" in type(model).__name__ else 0


def _field(config: Any, *names: str) -> Any:
    """Value of a field by the first of these names, of the configuration or one in it."""
    inner = [value for value in vars(config).values() if hasattr(value, "model_type")]
    for name in names:
        for place in (config, *inner):
            value = getattr(place, name, None)
            if isinstance(value, (int, list, tuple)) and value:
                return value
    return None


def _pixels(config: Any) -> list[tuple[int, ...]]:
    size = _field(config, "image_size", "crop_size") or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    channels = _field(config, "num_channels", "in_chans", "in_channels") or 3
    frames = _field(config, "num_frames", "frames_per_clip")
    image = (channels, height, width)
    if frames is None:
        return [image]
    return [(frames, *image), (channels, frames, height, width), image]


def _features(config: Any) -> list[tuple[int, ...]]:
    bins = _field(config, "num_mel_bins", "input_feat_per_channel", "feature_size") or 80
    positions = _field(config, "max_source_positions")
    frames = 2 * positions if positions else FRAMES
    return [(bins, frames), (frames, bins), (1, bins, frames), (1, frames, bins)]


def _samples(config: Any) -> list[tuple[int, ...]]:
    spectrum = (_field(config, "max_length") or FRAMES, _field(config, "num_mel_bins") or 80)
    return [(SAMPLES,), (1, SAMPLES), spectrum]


SHAPES: Mapping[str, Callable[[Any], list[tuple[int, ...]]]] = {
    "pixel_values": _pixels,
    "pixel_values_videos": _pixels,
    "input_features": _features,
    "input_values": _samples,
}
"""Shapes that inputs other than token ids can have, without the batch, by name; the likeliest
first."""
