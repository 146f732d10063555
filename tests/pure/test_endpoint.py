"""Where the engine is asked, what it is started with, and what it inherits (F1.3, F2.2, F9)."""

import pytest

from vllm_supervisor.core.endpoint import DROPPED, argument, child_environment, command_line, endpoint

TLS = {"ssl-keyfile": "/k.pem", "ssl-certfile": "/c.pem"}


def at(host="127.0.0.1", args=None, env=None):
    return endpoint(host, 8000, "kimi", args or {}, env or {})


@pytest.mark.parametrize(
    ("host", "args", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:8000"),
        ("0.0.0.0", {}, "http://127.0.0.1:8000"),
        ("", {}, "http://127.0.0.1:8000"),
        ("::", {}, "http://[::1]:8000"),
        ("fd00::7", {}, "http://[fd00::7]:8000"),
        ("gpu7.example", TLS, "https://gpu7.example:8000"),
        ("127.0.0.1", {"root-path": "/kimi/"}, "http://127.0.0.1:8000/kimi"),
        ("127.0.0.1", {"root_path": "/kimi"}, "http://127.0.0.1:8000/kimi"),
        ("127.0.0.1", {"uds": "/run/kimi.sock", "root-path": "/p"}, "http://localhost/p"),
        ("127.0.0.1", {"ssl-keyfile": "/k.pem"}, "http://127.0.0.1:8000"),
        ("127.0.0.1", {"ssl-keyfile": False, "ssl-certfile": "/c.pem"}, "http://127.0.0.1:8000"),
    ],
)
def test_the_engine_is_asked_where_its_arguments_put_it(host, args, url):
    assert at(host, args).url == url


def test_a_unix_socket_has_no_port():
    made = at(args={"uds": "/run/kimi.sock"})
    assert (made.uds, made.port) == ("/run/kimi.sock", 0)
    assert at().port == 8000


def test_tls_trusts_the_ca_or_else_the_certificate_itself():
    assert at(args=TLS).ca_file == "/c.pem"
    assert at(args={**TLS, "ssl-ca-certs": "/ca.pem"}).ca_file == "/ca.pem"
    assert at().ca_file == ""
    assert at(args=TLS).tls
    assert not at().tls


@pytest.mark.parametrize(
    ("args", "env", "key"),
    [
        ({}, {}, ""),
        ({}, {"VLLM_API_KEY": "from-env"}, "from-env"),
        ({"api-key": "from-args"}, {"VLLM_API_KEY": "from-env"}, "from-args"),
        ({"api_key": ["first", "second"]}, {}, "first"),
        ({"api-key": []}, {"VLLM_API_KEY": "from-env"}, "from-env"),
        ({"api-key": 12345678}, {}, "12345678"),
    ],
)
def test_the_key_of_the_arguments_wins(args, env, key):
    assert at(args=args, env=env).api_key == key


def test_an_endpoint_never_shows_its_key():
    made = at(env={"VLLM_API_KEY": "s3cret-value"})
    assert "s3cret" not in repr(made)
    assert "kimi" in repr(made)


def test_arguments_by_either_spelling_and_false_is_absent():
    assert argument({"max_model_len": 8}, "max-model-len") == 8
    assert argument({"max-model-len": 8}, "max-model-len") == 8
    assert argument({"enable-x": False}, "enable-x") is None
    assert argument({}, "enable-x") is None


def line(args, model="/m"):
    return command_line(["vllm", "serve"], model, served_model_name="kimi", host="127.0.0.1", port=8000, args=args)


def test_the_command_line_carries_every_kind_of_argument():
    args = {
        "tensor-parallel-size": 8,
        "enable_prefix_caching": True,
        "enforce-eager": False,
        "gpu-memory-utilization": 0.95,
        "allowed-media": ["a", "b"],
        "middleware": ["m.one", "m.two"],
        "compilation_config.cudagraph_mode": "FULL",
    }
    assert line(args) == [
        *("vllm", "serve", "/m", "--host", "127.0.0.1", "--port", "8000", "--served-model-name", "kimi"),
        *("--tensor-parallel-size", "8", "--enable-prefix-caching", "--gpu-memory-utilization", "0.95"),
        *("--allowed-media", "a", "b", "--middleware", "m.one", "--middleware", "m.two"),
        *("--compilation-config.cudagraph_mode", "FULL"),
    ]


def test_a_unix_socket_replaces_host_and_port():
    made = line({"uds": "/run/kimi.sock"})
    assert "--host" not in made
    assert made[-2:] == ["--uds", "/run/kimi.sock"]


def test_the_engine_inherits_nothing_that_would_make_it_talk_for_us():
    own = dict.fromkeys(DROPPED, "x") | {"VSUP_OLD": "1", "HOME": "/var/lib/kimi", "PATH": "/usr/bin"}
    made = child_environment(own, {}, {}, {"VSUP_START_ID": "abc", "SPT_NOENV": "1"})
    assert not {"VSUP_OLD", *DROPPED} & set(made)
    assert made["HOME"] == "/var/lib/kimi"
    assert made["VSUP_START_ID"] == "abc"
    assert made["PYTHONUNBUFFERED"] == made["PYTHONFAULTHANDLER"] == "1"


def test_the_order_is_unit_then_file_then_settings_then_what_must_be_so():
    made = child_environment(
        {"A": "unit", "B": "unit", "C": "unit"},
        {"B": "file", "C": "file", "NO_COLOR": "", "SPT_NOENV": "0"},
        {"C": "settings"},
        {"SPT_NOENV": "1"},
    )
    assert (made["A"], made["B"], made["C"]) == ("unit", "file", "settings")
    assert made["NO_COLOR"] == ""
    assert made["SPT_NOENV"] == "1"


@pytest.mark.parametrize("name", ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"])
def test_no_file_gives_the_engine_a_way_to_report_readiness(name):
    assert name not in child_environment({name: "/run/x"}, {name: "/run/x"}, {name: "/run/x"}, {})


def test_a_file_may_set_what_is_not_inherited():
    assert child_environment({"LD_LIBRARY_PATH": "/a"}, {"LD_LIBRARY_PATH": "/b"}, {}, {})["LD_LIBRARY_PATH"] == "/b"
