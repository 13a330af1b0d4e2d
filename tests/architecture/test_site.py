"""The documentation site, which `make docs` builds: each page is in its nav; what is wrong with one fails the build."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.documents import PAGES, ROOT

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
WRONG = """# Wrong

[a page](nowhere.md), [a heading](right.md#nowhere), [a file](../examples/nowhere.py),
![a picture](https://example.org/a.png)

```mermaid
flowchart LR
```
"""
COMPLAINTS = (
    '"nav" configuration:\n  - docs/forgotten.md',
    "docs/wrong.md has a diagram without one drawn with characters after it",
    "contains a link 'nowhere.md'",
    "contains a link '../examples/nowhere.py'",
    "docs/wrong.md loads from another host: <img",
    "'docs/right.md' does not contain an anchor '#nowhere'",
)


def test_every_page_is_in_the_nav_once() -> None:
    named = [page for page in site().nav_pages(spelt_out_nav()) if page.endswith(".md")]
    assert sorted(set(named)) == sorted(named)
    assert {page.relative_to(ROOT).as_posix() for page in PAGES} <= set(named)
    assert [page for page in named if not (ROOT / page).is_file()] == []


def test_the_sections_of_the_nav_are_the_four_kinds_of_documents() -> None:
    assert [title for entry in CONFIG["nav"][1:] for title in entry] == [
        "Tutorials",
        "How-to",
        "Reference",
        "Explanation",
    ]


def test_what_is_missing_or_loaded_from_elsewhere_fails_the_build(tmp_path: Path) -> None:
    place_project(tmp_path, {"wrong.md": WRONG, "right.md": "# Right\n", "forgotten.md": "# Forgotten\n"})
    done = build(tmp_path, ["docs/wrong.md", "docs/right.md"])
    assert done.returncode != 0 and f"with {len(COMPLAINTS)} warnings in strict mode" in done.stdout, done.stderr
    assert [complaint for complaint in COMPLAINTS if complaint not in done.stderr] == []


def test_pages_read_as_on_github_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Anchors, a list right after a paragraph, and a diagram that is also drawn with characters."""
    page = "# A\n\n## Who's `in` it?\n\nSaid:\n- one\n- two\n\n```mermaid\nflowchart LR\n```\n\n```\n a ─► b\n```\n"
    place_project(tmp_path, {"a.md": page, "b.md": "# B\n\n[there](a.md#whos-in-it)\n"})
    done = build(tmp_path, ["docs/*.md"])
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "build" / "site" / "docs" / "a.html").read_text("utf-8")
    assert "<li>one</li>" in made and " a ─► b" in made and "flowchart" not in made
    assert "fonts.g" not in made and 'src="http' not in made


def place_project(root: Path, pages: dict[str, str]) -> None:
    for folder in ("docs", "scripts"):
        (root / folder).mkdir()
    shutil.copy(ROOT / "scripts" / "site.py", root / "scripts")
    for name, text in pages.items():
        (root / "docs" / name).write_text(text, "utf-8")


def build(root: Path, nav: list[str]) -> subprocess.CompletedProcess[str]:
    (root / "mkdocs.yml").write_text(yaml.safe_dump({**CONFIG, "nav": nav}), "utf-8")
    return subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--strict"],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def spelt_out_nav() -> Any:
    return site().spelt_out(CONFIG["nav"], frozenset(site().nav_pages(CONFIG["nav"])))


def site() -> Any:
    spec = importlib.util.spec_from_file_location("scripts_site", ROOT / "scripts" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
