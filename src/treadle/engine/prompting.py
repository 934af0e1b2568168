"""Stored prompts in a turn: values put in the place of `{{ name }}`, pictures and files beside the text.

Nothing is evaluated or looked up: a placeholder is two braces, one word, two braces, and everything else is text. All
are replaced in one pass, and what is put in is never read again, so neither a prompt nor a value can reach anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from treadle.engine.inputs import check_part
from treadle.engine.media import Place
from treadle.errors import InvalidRequest, NotFound
from treadle.ids import plausible
from treadle.ports import PromptRow, Prompts
from treadle.scope import Scope
from treadle.wire.base import MAX_STRING, decode
from treadle.wire.content import InputFile, InputImage, InputText, MessagePart
from treadle.wire.items import Message, tidied
from treadle.wire.responses import PromptRef, PromptValue, UsedPrompt

MAX_VERSION = 2**31 - 1
AT = "prompt.variables"

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_NUMBER = re.compile(r"[0-9]{1,20}")
_value: msgspec.json.Decoder[PromptValue] = msgspec.json.Decoder(PromptValue)


def check_placeholders(text: str, variables: list[str]) -> None:
    """InvalidRequest (`param="variables"`) for variables that are no names or come twice, and for placeholders in
    `text` that are not among them."""
    for index, name in enumerate(variables):
        at = f"variables[{index}]"
        if not re.fullmatch(r"\w+", name):
            raise InvalidRequest(f"Invalid value for '{at}': a name has letters, digits and '_' only.", param=at)
        if name in variables[:index]:
            raise InvalidRequest(f"Invalid value for '{at}': the name comes twice.", param=at)
    declared = frozenset(variables)
    if undeclared := [name for name in placeholders(text) if name not in declared]:
        names = ", ".join(name[:64] for name in undeclared[:10])
        raise InvalidRequest(f"The prompt contains undeclared variables: {names}.", param="variables")


def placeholders(text: str) -> list[str]:
    """The names in `text`, each once."""
    return [*dict.fromkeys(_PLACEHOLDER.findall(text))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt with its values: `text`, and the pictures and files in the order in which the prompt declares them."""

    used: UsedPrompt
    text: str
    media: Mapping[str, InputImage | InputFile]

    def placed(self, instructions: str | None, *, alone: bool) -> PlacedPrompt:
        """Its place before a turn with `instructions`. `alone`: there is nothing else to answer, so it is the input."""
        if alone:
            message, places = self._message([InputText(self.text)])
            return PlacedPrompt(self.used, instructions, given=[(message, "prompt")], places=places)
        leading = "\n\n".join([self.text, *([instructions] if instructions else [])])
        if not self.media:
            return PlacedPrompt(self.used, leading)
        message, places = self._message([])
        return PlacedPrompt(self.used, leading, leading=[(message, "prompt")], places=places)

    def _message(self, parts: list[MessagePart]) -> tuple[Message, dict[Place, str]]:
        """The user's message of these parts and the media, each under its name, and where those are in the request."""
        where: dict[int, str] = {}
        for name, part in self.media.items():
            parts.append(InputText(_note(name, part)))
            where[len(parts)] = f"{AT}.{name}"
            parts.append(part)
        message = Message(role="user", content=parts)
        tidied(message)
        return message, {(message.id or "", index): at for index, at in where.items()}


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """Where a prompt stands in a turn: in the `instructions`, in messages before the history, or as the input."""

    used: UsedPrompt | None
    instructions: str | None
    given: list[tuple[Message, str]] = field(default_factory=list)
    leading: list[tuple[Message, str]] = field(default_factory=list)
    places: Mapping[Place, str] = field(default_factory=dict)
    """The paths of pictures and files."""


async def render_prompt(scope: Scope, given: PromptRef | None, prompts: Prompts | None) -> RenderedPrompt | None:
    """The prompt that a request names, if any. NotFound for an unknown prompt or version; InvalidRequest for a value
    that is missing, not declared or not valid, and for a text that becomes too long."""
    if given is None:
        return None
    row = await _find(scope, given, prompts)
    values = _values(row, given.variables or {})
    text = _filled(row.text, {name: _words(name, value) for name, value in values.items()})
    found = ((name, values.get(name)) for name in row.variables)
    media = {name: value for name, value in found if isinstance(value, InputImage | InputFile)}
    used = UsedPrompt(id=row.id, version=str(row.version), variables=values or None)
    return RenderedPrompt(used=used, text=text, media=media)


async def _find(scope: Scope, given: PromptRef, prompts: Prompts | None) -> PromptRow:
    if prompts is None:
        raise InvalidRequest("There are no stored prompts here.", param="prompt")
    version = None if given.version is None else str(given.version)
    if version is not None and not _NUMBER.fullmatch(version):
        raise InvalidRequest("'prompt.version' must be a whole number.", param="prompt.version")
    if plausible(given.id):
        number = None if version is None else int(version)
        found = await prompts.get(scope, given.id, number) if number is None or number <= MAX_VERSION else None
        if found is not None:
            return found
        if version is not None and await prompts.get(scope, given.id, None) is not None:
            raise NotFound(f"Version {version} of prompt '{given.id}' not found.", param="prompt.version")
    raise NotFound(f"Prompt '{given.id[:128]}' not found.", param="prompt.id")


def _values(row: PromptRow, given: Mapping[str, Raw]) -> dict[str, PromptValue]:
    found: dict[str, PromptValue] = {}
    for name, raw in given.items():
        at = f"{AT}.{name[:64]}"
        if name not in row.variables:
            raise InvalidRequest(
                f"Invalid value for '{at}': version {row.version} of the prompt has no such variable.", param=at
            )
        value = decode(_value, raw, at)
        if not isinstance(value, str):
            check_part(value, at)
        if isinstance(value, InputImage):
            value.detail = value.detail or "auto"
        found[name] = value
    for name in placeholders(row.text):
        if name not in found:
            at = f"{AT}.{name}"
            raise InvalidRequest(f"Missing required parameter: '{at}'.", param=at, code="missing_required_parameter")
    return found


def _words(name: str, value: PromptValue) -> str:
    if isinstance(value, str):
        return value
    return value.text if isinstance(value, InputText) else _note(name, value)


def _note(name: str, part: InputImage | InputFile) -> str:
    """Stands in the text for what the text cannot hold, and names it where it follows."""
    return f"[{'Image' if isinstance(part, InputImage) else 'File'}: {name}]"


def _filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with its placeholders replaced; all of them are in `values`. Its length is known before it is made: a few
    long values in many places would fill the memory."""
    length = len(text) + sum(len(values[found[1]]) - len(found[0]) for found in _PLACEHOLDER.finditer(text))
    if length > MAX_STRING:
        raise InvalidRequest(
            f"The prompt becomes {length} characters long with these values; at most {MAX_STRING} are allowed.",
            param=AT,
            code="string_above_max_length",
        )
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)
