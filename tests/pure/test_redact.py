"""What counts as a secret, and that none stays in a text while nothing else is touched."""

from pathlib import Path

import pytest

from vllm_supervisor.core.redact import (
    HIDDEN,
    by_shape,
    clean,
    is_secret,
    redactor,
    secrets_of,
    secrets_of_command,
)

CORPUS = Path(__file__).parents[1] / "corpus"


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_API_KEY",
        "api-key",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "MYSQL_PWD",
        "MYAPIKEY",
        "apiKey",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "Authorization",
    ],
)
def test_names_that_hold_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "max-num-batched-tokens",
        "tokenizer",
        "ssl-keyfile",
        "KEYBOARD",
        "PWD",
        "bos_token",
        "eos-token",
        "kv_cache_tokens",
        "HF_TOKEN_PATH",
        "MONKEY",
        "gpu-memory-utilization",
    ],
)
def test_names_that_hold_none(name):
    assert not is_secret(name)


def test_values_of_secret_names_and_credentials_in_urls_are_secrets():
    found = secrets_of(
        {
            "VLLM_API_KEY": "sesame-1",
            "api-key": ["sesame-2", "sesame-3"],
            "HTTPS_PROXY": "http://me:sesame-4@proxy:3128",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer sesame-five,x-key=sesame-six",
            "nested": {"hub-token": "sesame-7"},
            "TOKENIZERS_PARALLELISM": "false",
            "HF_TOKEN": "none",
            "SHORT_KEY": "abc",
            "HF_HOME": "/var/cache/hf",
            "RAY_AUTH_MODE": "token",
        }
    )
    wanted = {"sesame-1", "sesame-2", "sesame-3", "sesame-4", "sesame-five", "sesame-six", "sesame-7"}
    assert wanted <= set(found)
    assert not {"false", "none", "abc", "/var/cache/hf", "me", "proxy:3128", "token"} & set(found)


def test_a_command_line_tells_its_secrets():
    words = [
        "vllm",
        "serve",
        "--api-key",
        "sesame-1",
        "--hf-token=sesame-2",
        "--port",
        "8000",
        "--otlp=http://a:sesame-3@b",
    ]
    assert set(secrets_of_command(words)) == {"sesame-1", "sesame-2", "sesame-3"}


def test_known_secrets_go_wherever_they_stand_the_longest_first():
    redact = redactor(["sesame", "sesame-open", 'quo"te/d', "abc"])
    assert redact("x sesame-open y sesame z") == f"x {HIDDEN} y {HIDDEN} z"
    assert redact(r'{"k": "quo\"te/d"}') == f'{{"k": "{HIDDEN}"}}'
    assert redact("GET /?k=quo%22te%2Fd") == f"GET /?k={HIDDEN}"
    assert redact("abc") == "abc"  # too short to be one


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("fetch https://me:hunter22@host/x", "fetch https://***@host/x"),
        ("Authorization: Bearer abcDEF123456", "Authorization: Bearer ***"),
        ("authorization=bearer abcd", "authorization=bearer ***"),
        ("header basic dXNlcjpwYXNz", "header basic ***"),
        ("api_key=abcd1234 rest", "api_key=*** rest"),
        ("{'api_key': ['abcd1234'], 'port': 8000}", "{'api_key': ['***'], 'port': 8000}"),
        ('"hf_token": "abcd1234"', '"hf_token": "***"'),
        ("run --api-key abcd1234 --port 8000", "run --api-key *** --port 8000"),
        ("using hf_abcdefghijklmnopqrstuvwx now", "using *** now"),
        ("GET /v1?access_token=abcd1234&x=1", "GET /v1?access_token=***&x=1"),
        ("DB_PASSWORD=abcd1234", "DB_PASSWORD=***"),
    ],
)
def test_secrets_of_others_go_by_their_shape(text, left):
    assert by_shape(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 139964502443712",
        "itertools.groupby(weights, key=lambda x: x[0])",
        "eos_token='</s>' bos_token: '<s>'",
        "max_num_batched_tokens=8192",
        "token: None",
        "a basic understanding of bearer instruments",
        "user@host:/path and http://host:8000/health",
        "sorted(keys: list)",
    ],
)
def test_what_only_looks_like_one_stays(text):
    assert by_shape(text) == text


def test_no_line_of_the_corpus_is_changed():
    changed = [
        (line, by_shape(line))
        for path in (*CORPUS.glob("engine-logs/*.log"), *CORPUS.glob("failure-logs/*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if by_shape(line) != line
    ]
    assert list(CORPUS.glob("failure-logs/*.log"))
    assert changed == []


def test_json_is_cleaned_by_name_and_by_text():
    value = {"args": {"api-key": "short", "port": 1, "list": ["has sesame inside"]}, "env": {"HF_TOKEN": "", "A": None}}
    assert clean(value, redactor(["sesame"])) == {
        "args": {"api-key": HIDDEN, "port": 1, "list": [f"has {HIDDEN} inside"]},
        "env": {"HF_TOKEN": "", "A": None},
    }
