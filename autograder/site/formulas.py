"""Formulas as MathML, which browsers draw themselves: no script, no fonts to load, nothing from elsewhere."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def as_mathml(formula: str, display: str = "inline") -> str:
    """A LaTeX formula as a <math> element; display: "inline" or "block"."""
    return convert(formula.strip(), display=display)


def _inline(page: HTML5Translator, node: nodes.math) -> None:
    page.body.append(as_mathml(node.astext()))
    raise nodes.SkipNode


def _block(page: HTML5Translator, node: nodes.math_block) -> None:
    page.body.append(f'<div class="formula">{as_mathml(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
