"""NAME.env in systemd's syntax: the values below are those that systemd 252 and 257 give."""

import pytest

from vllm_supervisor.config import Problem, load_env, parse_env


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=b", "b"),
        ("A=", ""),
        ("A=b c", "b c"),
        ("  A  =  b  ", "b"),
        ("A=b\t", "b"),
        ("A=b\r", "b"),
        ('A="b c "', "b c "),
        ("A='b c '", "b c "),
        ('A=""', ""),
        ('A="b" c', "bc"),
        ("A=\"b\"'c'", "bc"),
        ('A="b" "c"', "bc"),
        ('A=b"c"', 'b"c"'),
        ("A=it's", "it's"),
        ('A="it\'s"', "it's"),
        ("A='b\\'", "b\\"),
        ('A="b\\"c"', 'b"c'),
        ('A="b\\\\c"', "b\\c"),
        ('A="b\\$c\\`"', "b$c`"),
        ('A="b\\nc"', "b\\nc"),
        ("A=b\\nc", "bnc"),
        ("A=b\\ ", "b "),
        ('A=\\"b\\"', '"b"'),
        ("A=b\\\nc", "bc"),
        ("A=b \\\n  c", "b   c"),
        ('A="b\\\nc"', "bc"),
        ('A="b\nc"', "b\nc"),
        ("A='b\nc'", "b\nc"),
        ("A=b\\", "b"),
        ("A=b # no comment", "b # no comment"),
        ("A=$HOME", "$HOME"),
        ("A=b=c", "b=c"),
        ("# A=x\nA=b", "b"),
        ("; A=x\n  # indented\nA=b", "b"),
        ("A=x\nA=b", "b"),
        ("export A=b", "b"),
        ("A=größer", "größer"),
    ],
)
def test_values(text, value):
    for end in ("", "\nZZ=last\n"):
        if text.endswith("\\") and end:
            continue
        found = parse_env(text + end, "kimi.env")
        assert found["A"] == value
        assert found == {"A": value} | ({"ZZ": "last"} if end else {})


def test_dos_line_ends():
    assert parse_env('A=b\r\nB="c"\r\n\r\n# x\r\nC=d\\\r\n', "f") == {"A": "b", "B": "c", "C": "d"}


def test_all_problems_at_once_with_their_lines():
    text = 'A=b\nnot an assignment\n\n1B=c\nC=\\\nx\nA B=c\n=d\nD="open\n'
    assert [str(problem) for problem in parse_env(text, "/etc/kimi.env")] == [
        "/etc/kimi.env: line 2: expected NAME=VALUE",
        "/etc/kimi.env: line 4: expected NAME=VALUE",
        "/etc/kimi.env: line 7: expected NAME=VALUE",
        "/etc/kimi.env: line 8: expected NAME=VALUE",
        '/etc/kimi.env: line 9: the quote " is never closed',
    ]


def test_an_empty_file_and_a_missing_one(tmp_path):
    assert parse_env("", "f") == {}
    path = tmp_path / "kimi.env"
    assert load_env(path) == {}
    assert load_env(path, required=True) == [Problem(str(path), "", "there is no such file")]
    path.write_text("HF_TOKEN='x y'\n")
    assert load_env(path) == {"HF_TOKEN": "x y"}


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path):
    path = tmp_path / "kimi.env"
    path.write_bytes(b"A=\xff\n")
    assert str(load_env(path)[0]) == f"{path}: byte 2: this is not UTF-8 text; save the file as UTF-8"
    assert "cannot be read" in str(load_env(tmp_path)[0])
