"""Every link inside the documentation leads somewhere, and every page is linked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transcript import DOCS

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Each relative link names a file that is there, and each anchor a heading that is in it."""
    broken = [link for link in links(page) if not leads_somewhere(page, link)]

    assert broken == []


def test_every_page_is_linked():
    """A page that no other page links to is found by nobody."""
    linked = {target(page, link)[0] for page in PAGES for link in links(page)}

    assert [
        str(page.relative_to(ROOT)) for page in PAGES[1:] if page not in linked and page != DOCS / "README.md"
    ] == []


def test_files_that_the_architecture_names_are_there():
    """Each file in backticks on the page about the architecture is one of the package."""
    named = re.findall(r"`([a-z_/]+\.(?:py|sql))`", (DOCS / "explanation" / "architecture.md").read_text())

    assert len(named) > 20
    assert [name for name in named if not any(found.is_file() for found in (ROOT / "src" / "pawl").rglob(name))] == []


def links(page: Path) -> list[str]:
    """The links of a page that lead into this repository."""
    return [link for link in LINK.findall(without_code(page.read_text())) if "://" not in link]


def leads_somewhere(page: Path, link: str) -> bool:
    file, anchor = target(page, link)
    return file.exists() and (not anchor or anchor in anchors(file))


def target(page: Path, link: str) -> tuple[Path, str]:
    path, _, anchor = link.partition("#")
    return ((page.parent / path).resolve() if path else page), anchor


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings have, by GitHub's rule."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
