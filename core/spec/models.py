"""Models that ship: sizes of the built-in transformer, and configurations of published models."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from sysbench.core.errors import SpecError
from sysbench.core.formatting import did_you_mean


class Dimensions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape of the model.

    Attributes:
        vocab: Rows of the token embedding and of the (untied) output head.
        d_model: Width of the residual stream.
        d_ff: Inner width of the SwiGLU feed-forward.
        heads: Attention heads per block; divides ``d_model``.
    """

    vocab: int
    d_model: int
    d_ff: int
    layers: int
    heads: int

    @property
    def head_dimension(self) -> int:
        return self.d_model // self.heads

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: q, k, v, out; w1, w2, w3; two RMSNorm gains."""
        return 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + 2 * self.d_model

    @property
    def parameters(self) -> int:
        """N = L(4d² + 3df + 2d) + d + 2Vd, exact."""
        return self.layers * self.block_parameters + self.d_model + 2 * self.vocab * self.d_model


CUSTOM = "custom"
"""Name of a model whose dimensions were set one by one."""


class ModelPreset(msgspec.Struct, frozen=True, kw_only=True):
    """A named model size.

    Attributes:
        name: Full name, ``family/size``; just the name for a family of one size.
        note: Remark for users, or empty.
    """

    name: str
    dimensions: Dimensions
    note: str = ""


@cache
def model_presets() -> dict[str, ModelPreset]:
    """Return all shipped presets by full name, smallest first within each family."""
    folder = resources.files("sysbench.profiles") / "models"
    presets: dict[str, ModelPreset] = {}
    for entry in sorted(folder.iterdir(), key=lambda item: (item.name != "tiny.toml", item.name)):
        if not entry.name.endswith(".toml"):
            continue
        family = entry.name.removesuffix(".toml")
        for size, table in tomllib.loads(entry.read_text("utf-8")).items():
            name = size if size == family else f"{family}/{size}"
            note = table.pop("note", "")
            dimensions = msgspec.convert(table, Dimensions)
            presets[name] = ModelPreset(name=name, dimensions=dimensions, note=note)
    return presets


class PublishedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that transformers builds from a shipped configuration, with random weights.

    Attributes:
        source: Repository on huggingface.co that has the configuration.
        parameters: Published count, shared weights once.
        note: What distinguishes the architecture.
    """

    source: str
    parameters: int
    note: str


@cache
def published_models() -> dict[str, PublishedModel]:
    text = (_configurations() / "published.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, PublishedModel])


def configuration_path(name: str) -> Path:
    """Return the file with the configuration of a published model."""
    return _configurations() / f"{name}.json"


def _configurations() -> Path:
    # Workers read the files by path, so the package is a folder.
    return Path(str(resources.files("sysbench.profiles"))) / "configurations"


def parameters_of_models() -> dict[str, int]:
    """Return the parameter count of every shipped model by its full name."""
    sizes = {name: preset.dimensions.parameters for name, preset in model_presets().items()}
    return sizes | {name: model.parameters for name, model in published_models().items()}


def note_of(name: str) -> str:
    """Return the remark on a shipped model, or an empty text."""
    if published := published_models().get(name):
        return f"{published.note}; {published.source}, needs transformers"
    preset = model_presets().get(name)
    return preset.note if preset else ""


def find_model(name: str) -> ModelPreset:
    """Find a preset by full name, or by size if only one family has it; raises SpecError."""
    presets = model_presets()
    if name in presets:
        return presets[name]
    matches = [full for full in presets if full.rpartition("/")[2].lower() == name.lower()]
    if len(matches) == 1:
        return presets[matches[0]]
    if matches:
        choices = " or ".join(
            f"{full} ({presets[full].dimensions.parameters:,} parameters)" for full in matches
        )
        raise SpecError("model", name, f"ambiguous, did you mean {choices}?")
    sizes = [full.rpartition("/")[2] for full in presets]
    known = list(parameters_of_models())
    hint = did_you_mean(name.lower(), [*known, *sizes])
    raise SpecError("model", name, f"no such preset; {hint}known: {', '.join(known)}")
