"""Tests of the tables that notebooks show: text of users is escaped, and colours are those of the notebook."""

import pytest

from distill.core.errors import Overview, Shown


def test_the_table_is_plain_html_in_which_every_text_is_escaped() -> None:
    evil = '<script>alert(1)</script>&"'
    html = Overview(evil, [(evil, evil)], header=(evil, evil), notes=[evil]).html()
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;") == 6
    for word in ("<script", "color", "background", "class=", "onclick"):
        assert word not in html


def test_the_text_is_the_same_table_with_aligned_columns() -> None:
    overview = Overview("Files", [("fp32", "0.91"), ("int8-avx2", "0.9")], header=("file", "f1"), notes=["Fine."])
    assert str(overview).splitlines() == ["Files", "  file       f1", "  fp32       0.91", "  int8-avx2  0.9", "Fine."]


def test_an_object_is_shown_as_its_overview() -> None:
    class Box(Shown):
        def overview(self) -> Overview:
            return Overview("Box", [("size", "3")])

    assert Box()._repr_html_() == Box().overview().html()
    with pytest.raises(TypeError, match=r"Shown has no overview\(\)"):
        Shown()._repr_html_()
