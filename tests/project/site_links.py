"""Find the dead links of the built site: `python -m tests.project.site_links site`.

`zensical build --strict` checks links between Markdown pages. It does not check links to other files, nor what the
theme adds: this walks the HTML that a reader gets.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and where links may lead to on it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors = {"", "top"}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in {"href", "src"}:
                self.links.add(value)


def dead_links(site: Path) -> list[str]:
    """List every internal link that leads to no file of the site, or to an anchor that its page does not have."""
    site = site.resolve()
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    dead = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = _target(site, path, unquote(parts.path))
            anchor = unquote(parts.fragment)
            if not target.is_relative_to(site) or not target.is_file():
                dead.append(f"{path.relative_to(site)}: {link}: no such file on the site")
            elif target in pages and anchor not in pages[target].anchors:
                dead.append(f"{path.relative_to(site)}: {link}: no such anchor on that page")
    return dead


def _target(site: Path, page: Path, path: str) -> Path:
    if not path:
        return page
    target = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    return target / "index.html" if target.is_dir() else target


def main(site: Path) -> int:
    pages = len(list(site.rglob("*.html")))
    if not pages:
        print(f"there is no page in {site}: build the site first", file=sys.stderr)
        return 1
    dead = dead_links(site)
    print(*dead, sep="\n", file=sys.stderr, end="\n" if dead else "")
    print(f"{pages} pages, {len(dead)} dead links")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
