"""The documentation site: pages keep their places in the repository, so links mean the same here and there.

Hooks of MkDocs (mkdocs.yml). The site holds everything under `docs`, the pages that the nav names, and the files that
these link to. A page under `docs` that the nav forgets, a link or an anchor that leads nowhere, or anything that would
be loaded from another host is a warning, and `mkdocs build --strict` fails.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

log = logging.getLogger("mkdocs.hooks.site")
ROOT = Path(__file__).parents[1]
LIST = re.compile(r"(?:[-*+]|1\.) ")
LINK = re.compile(r"\]\(([^)\s#]+)")
MERMAID = re.compile(r"^```mermaid\n.*?^```\n+(?=```\n)", re.MULTILINE | re.DOTALL)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+|<link\b[^>]*href=["']?(?:https?:)?//[^>]+"""
)
IMPORTED = re.compile(r"""(?:@import\s+|url\()["']?(?:https?:)?//[^"')]+""")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")  # GitHub's anchors
    config.nav = spelt_out(config.nav, frozenset(nav_pages(config.nav)))
    return config


def spelt_out(nav: Any, named: frozenset[str]) -> Any:
    """A nav in which each entry with a star has become the pages that it matches and nobody names."""
    if isinstance(nav, dict):
        return {title: spelt_out(entry, named) for title, entry in nav.items()}
    if isinstance(nav, str):
        return nav
    pages: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and "*" in entry:
            found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(entry))
            pages += [page for page in found if page not in named]
        else:
            pages.append(spelt_out(entry, named))
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    ours = [file for file in files if Path(config.docs_dir) not in Path(file.abs_src_path or "/").parents]
    places = {file.src_uri for file in files if file not in ours}
    wanted = {f"docs/{place}" for place in places} | set(nav_pages(config.nav))
    for page in sorted(place for place in wanted if place.endswith(".md") and (ROOT / place).is_file()):
        for link in LINK.findall((ROOT / page).read_text("utf-8")):
            target = (ROOT / page).parent.joinpath(link).resolve()
            if target.is_file() and target.suffix != ".md" and ROOT in target.parents:
                wanted.add(target.relative_to(ROOT).as_posix())
    existing = sorted(place for place in wanted if (ROOT / place).is_file())
    return Files([*ours, *(File.generated(config, place, abs_src_path=str(ROOT / place)) for place in existing)])


def nav_pages(nav: Any) -> Iterator[str]:
    """Every page that a nav names."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from nav_pages(entry)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A diagram is drawn with characters beside it; that one needs no script from elsewhere. A list may follow a
    paragraph at once, as it may on GitHub."""
    markdown = MERMAID.sub("", markdown)
    if "```mermaid" in markdown:
        log.warning("%s has a diagram without one drawn with characters after it", page.file.src_uri)
    return "\n".join(with_room_before_lists(markdown.splitlines()))


def with_room_before_lists(lines: list[str]) -> Iterator[str]:
    is_code = is_text = False
    previous_is_blank = True
    for line in lines:
        is_code ^= line.lstrip().startswith("```")
        if not is_code and is_text and LIST.match(line):
            yield ""
            is_text = False
        elif not line.strip():
            is_text = False
        elif not is_text:
            is_text = previous_is_blank and not LIST.match(line)
        previous_is_blank = not line.strip()
        yield line


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    for found in LOADED.findall(output):
        log.warning("%s loads from another host: %s", page.file.src_uri, found)
    return output


def on_post_build(config: MkDocsConfig) -> None:
    for sheet in Path(config.site_dir).rglob("*.css"):
        for found in IMPORTED.findall(sheet.read_text("utf-8")):
            log.warning("%s loads from another host: %s", sheet.name, found)
