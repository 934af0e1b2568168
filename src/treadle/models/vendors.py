"""The vendor table: where each vendor is, how it takes its key, and what it does differently. One row each.

A vendor here is anyone whose server speaks a dialect we know. Adding one is adding a row. What a row says is
about the server; what a single model can do may be overridden per provider in the configuration.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.ports import Capabilities


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one vendor's server."""

    name: str
    title: str
    kind: str = "openai_chat"
    """The dialect it speaks."""
    url: str = ""
    """Base of its API. `{NAME}` stands for an environment variable; empty: every user has an address of their own."""
    path: str = ""
    """What follows the host when an address from the environment gives only the host."""
    key_variable: str = ""
    key_required: bool = False
    url_variable: str = ""
    host_variable: str = ""
    """The vendor's own variable for its address, which may lack scheme, host or port. `url_variable` goes first."""
    key_header: Literal["authorization", "api-key"] = "authorization"
    """`authorization` sends `Authorization: Bearer <key>`; `api-key` sends `api-key: <key>`."""
    capabilities: Capabilities = Capabilities()
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    drops: frozenset[str] = frozenset()
    """Parameters that the server refuses and that are therefore not sent (bug case 22)."""
    closed_list: bool = False
    """GET /models names everything it serves, so that a name which is missing there cannot work."""
    notes: str = ""


GENERIC = "openai_chat"
"""The row for a server about which nothing is known but that it speaks chat completions."""

EMBEDDED = "local"
"""The row of the model that runs inside the process."""

_OPENAI_ONLY = frozenset({"prompt_cache_key", "safety_identifier", "verbosity", "service_tier", "store", "metadata"})
"""What few vendors but OpenAI know and servers with a strict schema answer with 400 or 422."""

_OPENAI = Capabilities(developer_role=True, system_anywhere=True, schema_with_tools=True)
_NO_FILES = Capabilities(files=False)

VENDORS: tuple[Vendor, ...] = (
    Vendor(
        name="openai",
        title="OpenAI",
        url="https://api.openai.com/v1",
        key_variable="OPENAI_API_KEY",
        key_required=True,
        url_variable="OPENAI_BASE_URL",
        capabilities=_OPENAI,
        max_tokens_field="max_completion_tokens",
        closed_list=True,
        notes="OPENAI_BASE_URL points it at any other server that speaks the same API.",
    ),
    Vendor(
        name="azure",
        title="Azure OpenAI",
        path="/openai/v1",
        key_variable="AZURE_OPENAI_API_KEY",
        key_required=True,
        url_variable="AZURE_OPENAI_ENDPOINT",
        key_header="api-key",
        capabilities=_OPENAI,
        max_tokens_field="max_completion_tokens",
        notes="Model names are your deployment names. Its model list shows base models, not deployments, so list "
        "yours under `models`. `api_version` is only needed for addresses other than /openai/v1.",
    ),
    Vendor(
        name="ollama",
        title="Ollama",
        url="http://127.0.0.1:11434/v1",
        path="/v1",
        key_variable="OLLAMA_API_KEY",
        url_variable="OLLAMA_URL",
        host_variable="OLLAMA_HOST",
        capabilities=Capabilities(files=False, reasoning_back="reasoning"),
        drops=frozenset({"strict"}),
        notes="Ollama's own OLLAMA_HOST is read too. `llama3.2` also works where the list says `llama3.2:latest`. Its "
        "default context is short; raise it on the Ollama side (OLLAMA_CONTEXT_LENGTH).",
    ),
    Vendor(
        name="vllm",
        title="vLLM",
        url="http://127.0.0.1:8000/v1",
        path="/v1",
        key_variable="VLLM_API_KEY",
        url_variable="VLLM_URL",
        capabilities=Capabilities(files=False, reasoning_back="reasoning"),
        closed_list=True,
        notes="Tool calls need --enable-auto-tool-choice and --tool-call-parser on the server, reasoning needs "
        "--reasoning-parser.",
    ),
    Vendor(
        name="sglang",
        title="SGLang",
        url="http://127.0.0.1:30000/v1",
        path="/v1",
        key_variable="SGLANG_API_KEY",
        url_variable="SGLANG_URL",
        capabilities=Capabilities(files=False, reasoning_back="reasoning_content"),
        closed_list=True,
        notes="Tool calls need --tool-call-parser on the server, reasoning needs --reasoning-parser.",
    ),
    Vendor(
        name="llamacpp",
        title="llama.cpp",
        url="http://127.0.0.1:8080/v1",
        path="/v1",
        key_variable="LLAMACPP_API_KEY",
        url_variable="LLAMACPP_URL",
        capabilities=Capabilities(files=False, reasoning_back="reasoning_content"),
        notes="Tool calls need --jinja on older builds. It answers to any model name with the model it has loaded.",
    ),
    Vendor(
        name="lmstudio",
        title="LM Studio",
        url="http://127.0.0.1:1234/v1",
        path="/v1",
        key_variable="LMSTUDIO_API_KEY",
        url_variable="LMSTUDIO_URL",
        capabilities=_NO_FILES,
        notes="With just-in-time loading its list names every downloaded model, else only the loaded ones.",
    ),
    Vendor(
        name="groq",
        title="Groq",
        url="https://api.groq.com/openai/v1",
        key_variable="GROQ_API_KEY",
        key_required=True,
        capabilities=_NO_FILES,
        max_tokens_field="max_completion_tokens",
        drops=frozenset({"logprobs", "prompt_cache_key", "safety_identifier", "verbosity", "store"}),
        closed_list=True,
        notes="Refuses unknown fields. Which values `reasoning_effort` may have depends on the model, and models "
        "that do not reason refuse it.",
    ),
    Vendor(
        name="together",
        title="Together AI",
        url="https://api.together.xyz/v1",
        key_variable="TOGETHER_API_KEY",
        key_required=True,
        capabilities=_NO_FILES,
        drops=frozenset({"prompt_cache_key", "safety_identifier", "verbosity", "store", "metadata", "service_tier"}),
        notes="Its model list is a bare JSON array, without the usual envelope.",
    ),
    Vendor(
        name="fireworks",
        title="Fireworks AI",
        url="https://api.fireworks.ai/inference/v1",
        key_variable="FIREWORKS_API_KEY",
        key_required=True,
        capabilities=Capabilities(files=False, reasoning_back="reasoning_content"),
        drops=frozenset({"safety_identifier", "verbosity", "store"}),
        notes="Model names look like accounts/fireworks/models/<name>; the list shows only some of them.",
    ),
    Vendor(
        name="cerebras",
        title="Cerebras",
        url="https://api.cerebras.ai/v1",
        key_variable="CEREBRAS_API_KEY",
        key_required=True,
        capabilities=Capabilities(files=False, images=False),
        max_tokens_field="max_completion_tokens",
        drops=_OPENAI_ONLY | {"presence_penalty", "frequency_penalty"},
        closed_list=True,
        notes="Answers 422 to fields it does not know.",
    ),
    Vendor(
        name="deepseek",
        title="DeepSeek",
        url="https://api.deepseek.com/v1",
        key_variable="DEEPSEEK_API_KEY",
        key_required=True,
        capabilities=Capabilities(images=False, files=False, parallel_flag=False, reasoning_back="reasoning_content"),
        drops=_OPENAI_ONLY | {"parallel_tool_calls", "strict"},
        closed_list=True,
        notes="With thinking on (the default), the reasoning of a turn that called tools must be sent back, else it "
        "answers 400. It takes json_object, not json_schema. `strict` tools exist on its beta address only.",
    ),
    Vendor(
        name="mistral",
        title="Mistral AI",
        url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        key_required=True,
        drops=frozenset({"stream_options", "service_tier", "safety_identifier", "verbosity", "logprobs", "store"}),
        closed_list=True,
        notes="Answers 422 to fields it does not know. Usage comes with the last chunk without being asked for.",
    ),
    Vendor(
        name="gemini",
        title="Google Gemini",
        url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variable="GEMINI_API_KEY",
        key_required=True,
        drops=_OPENAI_ONLY | {"parallel_tool_calls", "strict", "logprobs", "presence_penalty", "frequency_penalty"},
        capabilities=Capabilities(parallel_flag=False),
        notes="Its list writes models/<name>; the bare name works too. Parallel calls may come without `index`.",
    ),
    Vendor(
        name="anthropic",
        title="Anthropic (OpenAI-compatible endpoint)",
        url="https://api.anthropic.com/v1",
        key_variable="ANTHROPIC_API_KEY",
        key_required=True,
        drops=_OPENAI_ONLY | {"strict", "logprobs", "presence_penalty", "frequency_penalty"},
        notes="Ignores `strict` and returns no reasoning text; system messages are joined at the front. Temperature "
        "stops at 1.",
    ),
    Vendor(
        name="nvidia",
        title="NVIDIA NIM",
        url="https://integrate.api.nvidia.com/v1",
        key_variable="NVIDIA_API_KEY",
        key_required=True,
        capabilities=Capabilities(files=False, parallel_flag=False),
        drops=_OPENAI_ONLY | {"parallel_tool_calls", "strict"},
        notes="Each model has a request schema of its own.",
    ),
    Vendor(
        name="openrouter",
        title="OpenRouter",
        url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        key_required=True,
        capabilities=Capabilities(reasoning_back="reasoning"),
        drops=frozenset({"safety_identifier"}),
        notes="Variants such as <model>:free work although the list leaves them out.",
    ),
    Vendor(
        name="bedrock",
        title="Amazon Bedrock",
        url="https://bedrock-runtime.{AWS_REGION}.amazonaws.com/openai/v1",
        key_variable="AWS_BEARER_TOKEN_BEDROCK",
        key_required=True,
        url_variable="AWS_BEDROCK_BASE_URL",
        capabilities=_NO_FILES,
        max_tokens_field="max_completion_tokens",
        drops=_OPENAI_ONLY,
        notes="Needs a Bedrock API key (request signing is not supported). The runtime endpoint has no model list: "
        "name yours under `models`. https://bedrock-mantle.<region>.api.aws/v1 has one.",
    ),
    Vendor(
        name="watsonx",
        title="IBM watsonx.ai (model gateway)",
        path="/ml/gateway/v1",
        key_variable="WATSONX_TOKEN",
        key_required=True,
        url_variable="WATSONX_URL",
        capabilities=_NO_FILES,
        drops=_OPENAI_ONLY,
        closed_list=True,
        notes="Takes an IAM bearer token, which expires after an hour.",
    ),
    Vendor(
        name="oci",
        title="Oracle OCI Generative AI",
        url="https://inference.generativeai.{OCI_REGION}.oci.oraclecloud.com/openai/v1",
        key_variable="OCI_GENAI_API_KEY",
        key_required=True,
        capabilities=_NO_FILES,
        max_tokens_field="max_completion_tokens",
        drops=_OPENAI_ONLY,
        notes="Needs a Generative AI API key (request signing is not supported).",
    ),
    Vendor(
        name=EMBEDDED,
        title="Embedded model",
        kind="local",
        capabilities=Capabilities(
            tools=False, images=False, files=False, parallel_flag=False, reasoning_effort=False, context_window=8192
        ),
        closed_list=True,
        notes="A very small model inside the process, for trying things out. It cannot choose tools.",
    ),
    Vendor(
        name=GENERIC,
        title="Any other server that speaks chat completions",
        capabilities=_NO_FILES,  # few such servers take files, and their text every one
        notes="Give its `url`. Used for every section whose name is not in this table.",
    ),
)


def find_vendor(name: str) -> Vendor | None:
    """The row called `name`, or None."""
    return next((vendor for vendor in VENDORS if vendor.name == name), None)


def vendor(name: str) -> Vendor:
    """The row called `name`. LookupError if there is none; names from outside go through `find_vendor`."""
    found = find_vendor(name)
    if found is None:
        raise LookupError(f"no vendor is called {name!r}")
    return found
