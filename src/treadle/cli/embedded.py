"""Whether the embedded language model can run here."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.invocation import program
from treadle.settings import Settings

MODEL_ID = "local/smollm2-135m-instruct"
EMBEDDER_ID = "local/all-minilm-l6-v2"


def why_not(settings: Settings) -> str:
    """Empty if the embedded model is ready, else what is missing."""
    if not settings.local.enabled:
        return "The embedded model is switched off (local.enabled)."
    from treadle.models.weights import SMOLLM2, ModelNotInstalled, WeightStore, require_module

    own = Path(settings.local.model_path).expanduser() if settings.local.model_path else None
    try:
        require_module("xllamacpp", "local")
        WeightStore(Path(settings.data_dir)).find(SMOLLM2, own)
    except ModelNotInstalled as missing:
        # The library cannot know how its user calls us.
        return missing.message.replace("`treadle setup`", f"`{program()} setup`")
    return ""
