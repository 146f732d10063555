import pytest

from vllm_supervisor.core.splitter import MAX_LINE, Splitter

STREAM = "eins\r\nzwei\n\rLoading:  50%\rLoading: 100%\n\n(Wörker pid=1) ▀▀\r\nlast".encode()
LINES = ["eins", "zwei", "Loading:  50%", "Loading: 100%", "(Wörker pid=1) ▀▀", "last"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_where_the_stream_is_torn_does_not_matter(size):
    splitter, lines = Splitter(), []
    for at in range(0, len(STREAM), size):
        lines += splitter.feed(STREAM[at : at + size])
    assert lines + splitter.flush() == LINES
    assert splitter.flush() == []


def test_bytes_that_are_not_utf8_are_replaced():
    assert Splitter().feed(b"a\xff\xfeb\n") == ["a\ufffd\ufffdb"]


def test_a_line_without_end_stays_small_and_is_counted_once():
    splitter = Splitter()
    for _ in range(100):
        assert splitter.feed(b"x" * 100_000) == []
        assert len(splitter.pending) <= MAX_LINE
    lines = splitter.feed(b"tail\nnext\n")
    assert [len(line) for line in lines] == [MAX_LINE, 4]
    assert lines[1] == "next"
    assert splitter.cut == 1


def test_a_line_of_exactly_the_limit_is_whole():
    splitter = Splitter(limit=4)
    assert splitter.feed(b"abcd\nabcde\n") == ["abcd", "abcd"]
    assert splitter.cut == 1


def test_another_splitter_goes_on_with_what_is_pending():
    first, second = Splitter(), Splitter()
    assert first.feed("eins\nzw\u00f6".encode()[:-1]) == ["eins"]
    second.feed(first.pending)
    assert second.feed("\u00f6".encode()[-1:] + b"lf\n") == ["zw\u00f6lf"]
