"""Text in images, where a package for text recognition is installed: rapidocr, or pytesseract with its program."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from treadle.errors import UnreadableFile, UnsupportedFile
from treadle.retrieval.extract.blocks import Block, Paragraph
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.faults import damaged

if TYPE_CHECKING:
    from PIL.Image import Image

EXTRA = "ocr"
_MAX_PIXELS = 50_000_000
_SECONDS = 60
"""For one image, by the program; documents have a bound of their own."""


def read(document: Document) -> Iterator[Block]:
    if not is_available():
        raise UnsupportedFile(
            "Images cannot be read: text recognition is not installed on this server "
            f"(extra `{EXTRA}`: pip install 'treadle[{EXTRA}]')."
        )
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # checked here, with an error of ours
    try:
        with Image.open(document.path) as picture:
            if picture.width * picture.height > _MAX_PIXELS:
                raise UnreadableFile(f"The image has more than {_MAX_PIXELS:,} pixels.")
            text = recognised(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as fault:
        raise damaged("image") from fault
    yield Paragraph(text)


@cache
def is_available() -> bool:
    if importlib.util.find_spec("PIL") is None:
        return False
    return importlib.util.find_spec("rapidocr") is not None or (
        importlib.util.find_spec("pytesseract") is not None and shutil.which("tesseract") is not None
    )


def recognised(picture: Image) -> str:
    """The text in the picture, line by line."""
    if importlib.util.find_spec("rapidocr") is not None:
        import numpy as np

        lines = _engine()(np.asarray(picture)).txts
        return "\n".join(lines or ())
    return str(importlib.import_module("pytesseract").image_to_string(picture, timeout=_SECONDS))


@cache
def _engine() -> Any:
    # By name, because it carries no types.
    rapidocr = importlib.import_module("rapidocr")
    return rapidocr.RapidOCR(params={"Global.log_level": "error", "EngineConfig.onnxruntime.intra_op_num_threads": 1})
