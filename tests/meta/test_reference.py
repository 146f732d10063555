"""The generated pages of the reference and the tables of the README are those that the code would write now."""

import pytest

from lab.gen_reference import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name):
    path = ROOT / name
    assert path.read_text() == PAGES[name](), "run python tests/lab/gen_reference.py"
