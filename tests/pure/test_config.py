"""The configuration as a whole: settings, or all problems at once, each with file, key and remedy."""

import re

import pytest
from pydantic import BaseModel

from vllm_supervisor.config import Settings, load, parse
from vllm_supervisor.config.problems import all_keys

MODEL = '[engine]\nmodel = "/m"\n'


def problems(text):
    found = parse(text, "kimi.toml")
    assert isinstance(found, list), found
    return [str(problem) for problem in found]


def test_only_the_model_has_no_default():
    assert problems("") == ["kimi.toml: engine: this table has no default: write [engine] and what belongs into it"]
    assert problems("[engine]\n") == ["kimi.toml: engine.model: this key has no default and must be set"]
    made = parse(MODEL, "kimi.toml")
    assert made == Settings.model_validate({"engine": {"model": "/m"}})


def test_the_defaults_are_those_of_the_contract():
    made = parse(MODEL, "kimi.toml")
    assert made.engine.command == ["/opt/vllm/bin/vllm", "serve"]
    assert (made.engine.served_model_name, made.engine.host, made.engine.port) == ("kimi", "127.0.0.1", 8000)
    assert (made.engine.device, made.engine.overlay) == ("cuda", "auto")
    assert (made.metrics.listen, made.metrics.engine) == ("127.0.0.1:9477", "merge")
    assert (made.stop.grace_s, made.stop.drain_s) == (0.0, 30.0)
    assert (made.liveness.mode, made.liveness.hang_after_s, made.liveness.canary_every_s) == ("restart", 60.0, 300.0)
    assert (made.readiness.probe, made.smoke.on_start) == ("generate", "report")


def test_all_problems_come_at_once():
    text = """
[engine]
modle = "/m"
port = 70000
device = "rocm"
[engine.args]
--max-model-len = 8
[stop]
grace_s = -1
[metrics]
listen = "9477"
[nonsense]
x = 1
"""
    found = problems(text)
    assert sorted(line.split(": ")[1] for line in found) == [
        "engine.args",
        "engine.device",
        "engine.modle",
        "engine.port",
        "metrics.listen",
        "nonsense",
        "stop.grace_s",
    ]
    assert all(line.startswith("kimi.toml: ") for line in found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "engine.prot: unknown key; did you mean engine.port?"),
        ("hang_after = 3.0", "engine.hang_after: unknown key; did you mean liveness.hang_after_s?"),
        ("port = 0", "engine.port: must be at least 1, but it is 0"),
        ('port = "http"', "engine.port: must be a whole number, but it is 'http'"),
        ("command = []", "engine.command: must be a list of words, such as"),
        ('args = { "--tp" = 8 }', "engine.args: write '--tp' without the leading dashes"),
        ("args = { port = 1 }", "engine.args: 'port' has a place of its own: set engine.port"),
        (
            'args = { served_model_name = "x" }',
            "engine.args: 'served_model_name' has a place of its own: set engine.served_model_name",
        ),
        ("args = { x = { y = 1 } }", "engine.args.x: must be text, a number, true, false, or a list of these"),
        ("args = { x = [[1]] }", "engine.args.x: must be text, a number, true, false, or a list of these"),
        ("port = 9477", "engine.port and metrics.listen both want port 9477: give one another"),
        ("port = true", "engine.port: must be a whole number, but it is true"),
        ("command = 'vllm serve'", "engine.command: must be a list of words, such as"),
        ('command = [""]', "engine.command: must be a list of words, such as"),
        ("device = 'gpu'", "engine.device: must be 'cuda' or 'cpu', but it is 'gpu'"),
        ("host = ''", "engine.host: must not be empty"),
        ("env = { A = 1 }", "engine.env.A: must be text in quotes, but it is 1"),
    ],
)
def test_each_problem_is_a_sentence_with_its_remedy(text, sentence):
    found = problems(MODEL + text)
    assert len(found) == 1
    assert found[0].startswith(f"kimi.toml: {sentence}")


def test_an_unknown_table_names_the_nearest():
    assert problems(MODEL + "[livenes]\n") == ["kimi.toml: livenes: unknown table; did you mean [liveness]?"]
    assert problems(MODEL + "[stop]\nzzzzz = 1\n")[0].startswith("kimi.toml: stop.zzzzz: unknown key; known here: ")


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ('[engin]\nmodel = "/m"\n', "engin: unknown table; did you mean [engine]?"),
        ('[Engine]\nmodel = "/m"\n', "Engine: unknown table; did you mean [engine]?"),
        ('[engine]\nmodell = "/m"\n', "engine.modell: unknown key; did you mean engine.model?"),
        (MODEL + '[[smoke.questions]]\nquestion = "q"\nexpected = "a"\n', "smoke.questions.0.expected: unknown key; "),
    ],
)
def test_what_is_only_misspelt_is_not_missed_as_well(text, only):
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith(f"kimi.toml: {only}")


def test_unknown_names_come_before_missing_ones():
    found = problems('[nonsense]\nmodel = "/m"\n')
    assert [line.split(": ")[1] for line in found] == ["nonsense", "engine"]


@pytest.mark.parametrize("key", all_keys())
@pytest.mark.parametrize("value", ["-7", '""', "true", "1.5", "[]", "[{}]", "{}", "{ a = 1 }", "2026-01-01", '"x"'])
def test_a_wrong_value_of_any_setting_is_told_in_the_words_of_the_file(key, value):
    table, name = key.split(".")
    model = "" if key == "engine.model" else MODEL
    text = f"{model}{name} = {value}\n" if table == "engine" and model else f"{model}[{table}]\n{name} = {value}\n"
    found = parse(text, "kimi.toml")
    for problem in found if isinstance(found, list) else []:
        assert re.match(r"(kimi.toml: )?[a-z_.0-9]+: [a-z\"'\[]", str(problem)), problem
        strange = "input should|valid (list|dict|integer|string)|dictionary|instance of|character|validation"
        assert not re.search(strange, problem.message), problem


def test_the_settings_of_a_unit_that_holds_weights_are_those_of_its_engine(tmp_path):
    (tmp_path / "kimi.toml").write_text(MODEL)
    message = str(load(tmp_path / "kimi-weights.toml")[0])
    assert f"kimi-weights holds the weights of kimi, as {tmp_path}/kimi.toml says; name kimi" in message
    for other in ("kimi2-weights.toml", "-weights.toml", "kimi2.toml"):
        assert "`vllm-supervisor init` writes one" in str(load(tmp_path / other)[0])


def test_a_syntax_error_is_one_sentence_with_its_place():
    found = problems("[engine\n")
    assert len(found) == 1
    assert found[0].startswith("kimi.toml: not valid TOML: ")
    assert "line 1" in found[0]


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "kimi.toml"
    assert "there is no such file" in str(load(path)[0])
    (tmp_path / "plain").touch()
    assert "this is a directory" in str(load(tmp_path)[0])
    assert "cannot be read: Not a directory" in str(load(tmp_path / "plain" / "kimi.toml")[0])
    path.write_bytes(b"a = '\xff'")
    assert "not UTF-8" in str(load(path)[0])
    path.write_text(MODEL)
    assert load(path).engine.model == "/m"


def test_values_keep_their_types():
    text = MODEL + '[engine.args]\na = 8\nb = 0.95\nc = true\nd = "x"\ne = ["x", 1, false]\nf = false\n'
    args = parse(text, "f").engine.args
    assert args == {"a": 8, "b": 0.95, "c": True, "d": "x", "e": ["x", 1, False], "f": False}
    assert [type(value) for value in args.values()] == [int, float, bool, str, list, bool]


def test_settings_do_not_change_afterwards():
    with pytest.raises(ValueError, match="frozen"):
        parse(MODEL, "f").engine.port = 9


def test_every_setting_says_what_it_is_for_and_is_listed():
    undocumented = []
    for section, field in Settings.model_fields.items():
        inner = field.annotation
        assert issubclass(inner, BaseModel)
        assert inner.__doc__
        undocumented += [f"{section}.{name}" for name, item in inner.model_fields.items() if not item.description]
    assert undocumented == []
    assert "stop.drain_s" in all_keys()
