"""The `models` section: what is filled in from the vendor table and from the environment."""

from pathlib import Path

import pytest

from treadle.models.vendors import VENDORS
from treadle.settings import Provider, load


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def providers(folder: Path, text: str, **environ: str) -> dict[str, Provider]:
    file = folder / "c.yaml"
    file.write_text(text)
    return load(file, environ=environ).require().models


def test_a_key_in_the_environment_is_enough_for_a_provider() -> None:
    loaded = load(environ={"OPENAI_API_KEY": "sk"})
    assert loaded.faults == []
    openai = loaded.settings.models["openai"]
    assert (openai.kind, openai.vendor, openai.url, openai.key) == (
        "openai_chat",
        "openai",
        "https://api.openai.com/v1",
        "sk",
    )
    assert str(loaded.origins["models.openai.key"]) == "environment OPENAI_API_KEY"
    assert str(loaded.origins["models.openai.url"]) == "vendor table openai"


def test_the_base_url_of_openai_can_be_elsewhere_and_then_needs_no_key() -> None:
    with_key = load(environ={"OPENAI_API_KEY": "sk", "OPENAI_BASE_URL": "http://box:1/v1/"}).require().models["openai"]
    assert (with_key.url, with_key.key) == ("http://box:1/v1", "sk")
    assert load(environ={"OPENAI_BASE_URL": "http://box:1/v1"}).require().models["openai"].key == ""


@pytest.mark.parametrize(
    ("name", "value", "provider", "url"),
    [
        ("OLLAMA_URL", "http://box:11434", "ollama", "http://box:11434/v1"),
        ("OLLAMA_URL", "box:11434/", "ollama", "http://box:11434/v1"),
        ("OLLAMA_HOST", "box:1234", "ollama", "http://box:1234/v1"),
        ("OLLAMA_HOST", "box", "ollama", "http://box:11434/v1"),
        ("OLLAMA_HOST", ":1234", "ollama", "http://127.0.0.1:1234/v1"),
        ("OLLAMA_HOST", "0.0.0.0", "ollama", "http://127.0.0.1:11434/v1"),
        ("OLLAMA_HOST", "[::1]", "ollama", "http://[::1]:11434/v1"),
        ("OLLAMA_HOST", "https://box.example", "ollama", "https://box.example/v1"),
        ("VLLM_URL", "http://gpu:8000/v1", "vllm", "http://gpu:8000/v1"),
        ("VLLM_URL", "https://gw.example/team/v1/", "vllm", "https://gw.example/team/v1"),
        ("VLLM_URL", "https://gw.example/team", "vllm", "https://gw.example/team/v1"),
    ],
)
def test_the_address_of_a_local_server_makes_a_provider(name: str, value: str, provider: str, url: str) -> None:
    models = load(environ={name: value}).require().models
    assert {key: value.url for key, value in models.items()} == {provider: url}


@pytest.mark.parametrize("row", [row for row in VENDORS if row.key_required], ids=lambda row: row.name)
def test_every_hosted_vendor_works_from_its_variables_alone(row: object) -> None:
    assert isinstance(row, type(VENDORS[0]))
    environ = {row.key_variable: "k", "AWS_REGION": "eu-west-1", "OCI_REGION": "eu-frankfurt-1"}
    if not row.url:
        environ[row.url_variable] = "https://mine.example"
    provider = load(environ=environ).require().models[row.name]
    assert provider.key == "k"
    assert provider.url.startswith("https://")
    assert "{" not in provider.url


def test_a_key_whose_address_cannot_be_told_makes_no_provider_and_no_fault() -> None:
    loaded = load(environ={"AWS_BEARER_TOKEN_BEDROCK": "k", "AZURE_OPENAI_API_KEY": "k"})
    assert (loaded.faults, loaded.settings.models) == ([], {})


def test_the_key_of_a_self_hosted_server_alone_makes_no_provider() -> None:
    assert load(environ={"VLLM_API_KEY": "k", "OLLAMA_API_KEY": "k"}).settings.models == {}


def test_a_vendor_that_is_configured_under_another_name_is_not_added_again(tmp_path: Path) -> None:
    models = providers(tmp_path, "models: {work: {vendor: openai}}", OPENAI_API_KEY="sk")
    assert list(models) == ["work"]
    assert models["work"].key == "sk"


def test_an_empty_section_is_completed_from_table_and_environment(tmp_path: Path) -> None:
    models = providers(tmp_path, "models:\n  groq:\n  ollama: {}\n", GROQ_API_KEY="g")
    assert (models["groq"].url, models["groq"].key) == ("https://api.groq.com/openai/v1", "g")
    assert models["ollama"].url == "http://127.0.0.1:11434/v1"


def test_what_the_file_says_is_not_replaced_by_a_vendors_variable(tmp_path: Path) -> None:
    text = "models: {ollama: {url: 'http://file:1/v1', key: fromfile}}"
    ollama = providers(tmp_path, text, OLLAMA_URL="http://env:2", OLLAMA_API_KEY="fromenv")["ollama"]
    assert (ollama.url, ollama.key) == ("http://file:1/v1", "fromfile")


def test_a_key_does_not_follow_a_section_to_an_address_that_is_not_its_vendors(tmp_path: Path) -> None:
    text = "models: {openai: {url: 'http://elsewhere.example/v1'}}"
    assert providers(tmp_path, text, OPENAI_API_KEY="sk")["openai"].key == ""
    own = "models: {openai: {url: 'https://api.openai.com/v1/'}}"
    assert providers(tmp_path, own, OPENAI_API_KEY="sk")["openai"].key == "sk"
    azure = "models: {azure: {url: 'https://mine.openai.azure.com'}}"
    assert providers(tmp_path, azure, AZURE_OPENAI_API_KEY="az")["azure"].key == "az"


def test_a_host_alone_gets_the_path_of_its_vendor_and_a_chosen_path_stays(tmp_path: Path) -> None:
    text = (
        "models:\n  ollama: {url: 'http://box:11434'}\n  azure: {url: 'https://a.example', key: k}\n"
        "  vllm: {url: 'https://gw.example/custom'}\n"
    )
    models = providers(tmp_path, text)
    assert models["ollama"].url == "http://box:11434/v1"
    assert models["azure"].url == "https://a.example/openai/v1"
    assert models["vllm"].url == "https://gw.example/custom"


def test_a_section_with_any_other_name_is_a_generic_server(tmp_path: Path) -> None:
    models = providers(tmp_path, "models: {local: {kind: openai_chat, url: 'http://vllm:8000/v1'}}")
    assert (models["local"].vendor, models["local"].url) == ("openai_chat", "http://vllm:8000/v1")


def test_servers_that_were_found_fill_in_but_do_not_override(tmp_path: Path) -> None:
    found = {"ollama": "http://127.0.0.1:11434/v1", "vllm": "http://127.0.0.1:8000/v1"}
    loaded = load(environ={"VLLM_URL": "http://gpu:1/v1"}, found=found)
    assert {name: one.url for name, one in loaded.settings.models.items()} == {
        "ollama": "http://127.0.0.1:11434/v1",
        "vllm": "http://gpu:1/v1",
    }
    assert str(loaded.origins["models.ollama.url"]) == "found"


@pytest.mark.parametrize(
    ("section", "path", "says"),
    [
        ("openai: {}", "models.openai.key", "OPENAI_API_KEY"),
        ("mine: {}", "models.mine.url", "is needed"),
        ("grok: {}", "models.grok.url", "did you mean `groq`?"),
        ("bedrock: {key: k}", "models.bedrock.url", "AWS_REGION"),
        ("azure: {key: k}", "models.azure.url", "AZURE_OPENAI_ENDPOINT"),
        ("mine: {vendor: olama}", "models.mine.vendor", "did you mean `ollama`?"),
        ("mine: {url: 'http://h/v1', kind: openai_chta}", "models.mine.kind", "did you mean `openai_chat`?"),
        ("mine: {url: 'box:8000/v1'}", "models.mine.url", "http://"),
        ("mine: {url: 'http://me:hush@h/v1'}", "models.mine.url", "must not contain a user or password"),
        ("mine: {url: 'ftp://me:hush@h/v1'}", "models.mine.url", "http://"),
        ("a/b: {url: 'http://h/v1'}", "models.a/b", "without `/`"),
        ("local: {}", "models.local", "under `local`"),
        ("mine: 5", "models.mine", "group of settings"),
    ],
)
def test_a_provider_that_cannot_work_is_a_fault(tmp_path: Path, section: str, path: str, says: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"models:\n  {section}\n")
    faults = load(file, environ={}).faults
    assert [fault.path for fault in faults] == [path]
    assert says in str(faults[0])
    assert "hush" not in str(faults[0])
