"""Links between pages lead somewhere: in the repository, and on the site that is built from `docs/`."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from tests.harness.tree import ROOT
from tests.project.site_links import dead_links, main

DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]
CODE = re.compile(r"^ *(```+|~~~+).*?^ *\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^ *\[[^\]\n]+\]: *(\S+)|(?:href|src)=\"([^\"]+)\"", re.MULTILINE)
SNIPPET = re.compile(r'^--8<-- "(.*)"$', re.MULTILINE)


def links(text: str) -> list[str]:
    """Find where a page links to, except in code."""
    return [next(filter(None, groups)) for groups in LINK.findall(CODE.sub("`code`", text))]


@cache
def anchors(page: Path) -> set[str]:
    return anchors_of(page.read_text("utf-8"))


def anchors_of(text: str) -> set[str]:
    """Name a page's headings as the site does; a heading that is there twice gets a number."""
    found: set[str] = set()
    prose = re.sub(r"^ *(```+|~~~+).*?^ *\1", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ +(.*?)[ #]*$", prose, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = unicodedata.normalize("NFKD", shown).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        number = 0
        while (name := f"{slug}_{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def dead_links_of(page: Path, text: str) -> list[str]:
    """List links to files or headings that are not there; a page of the site may only link to files of the site."""
    dead = []
    for link in links(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        outside = DOCS in page.parents and not target.is_relative_to(DOCS)
        if outside or not (target == page or target.exists()):
            dead.append(link)
        elif anchor and target.suffix == ".md":
            there = anchors_of(text) if target == page else anchors(target)
            if anchor not in there:
                dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert dead_links_of(page, page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "[a page](nowhere.md)",
        "[a heading](guide.md#nowhere)",
        "[a heading of its own](#nowhere)",
        "[outside of the site](../README.md)",
        "![a picture](nowhere.svg)",
        "[by reference][there]\n\n[there]: nowhere.md",
        '<a href="nowhere.md">in HTML</a>',
        "```sh\n# nowhere\n```\n\n[a comment in code](#nowhere)",
    ],
)
def test_a_dead_link_is_found(text: str) -> None:
    assert len(dead_links_of(DOCS / "page.md", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[a page](guide.md), [a heading](guide.md#handles), [the web](https://example.org/#nowhere)",
        "# Twice\n\n# Twice\n\n[the second](#twice_1)",
        "## `lockstead elect NAME [options] -- CMD`\n\n[code](#lockstead-elect-name-options-cmd)",
        "`[in code](nowhere.md)`\n\n```md\n[in code](nowhere.md)\n```",
    ],
)
def test_a_link_that_leads_somewhere_is_not_reported(text: str) -> None:
    assert dead_links_of(DOCS / "page.md", text) == []


def test_the_page_of_examples_shows_every_example() -> None:
    shown = SNIPPET.findall((DOCS / "examples.md").read_text("utf-8"))
    assert sorted(shown) == sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py"))


def test_every_page_is_in_the_navigation_or_in_a_folder_with_an_index() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2].partition("\ntheme:")[0]
    named = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(named) == sorted([*(path.name for path in DOCS.glob("*.md")), "decisions/index.md"])


def test_dead_links_on_a_built_site_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "site" / "more").mkdir(parents=True)
    (tmp_path / "outside.py").touch()
    good = '<h1 id="top-of-it"></h1><a href="more/">more</a> <a href="/index.html#top-of-it"></a> <a href="#"></a>'
    (tmp_path / "site/index.html").write_text(good, "utf-8")
    (tmp_path / "site/more/index.html").write_text('<a href="..">up</a><a href="https://example.org/#x"></a>', "utf-8")
    assert main(tmp_path / "site") == 0

    bad = '<a href="nowhere.html"></a><a href="../index.html#nowhere"></a><img src="it.svg"><a href="../../outside.py">'
    (tmp_path / "site/more/index.html").write_text(bad, "utf-8")
    assert [line.split(": ")[1] for line in dead_links(tmp_path / "site")] == [
        "../../outside.py",
        "../index.html#nowhere",
        "it.svg",
        "nowhere.html",
    ]
    assert main(tmp_path / "site") == 1
    assert "4 dead links" in capsys.readouterr().out


def test_the_link_check_fails_without_a_site(tmp_path: Path) -> None:
    assert main(tmp_path) == 1
