"""An independent walk: which URLs a crawl of a static site must visit, and what each must answer.

Shares no code with the product: the server is a mapping of nginx's rules onto the unpacked folder, links are read by
lxml or html5lib, resolved by ada (WHATWG URL). Rules followed:

- nginx: the path is percent-decoded, dot segments and doubled slashes are merged, `/` at the end means `index.html`
  (403 where the folder has none), a folder without the slash is a 301 to itself with it, symlinks are followed, the
  type goes by the extension (`mime.types`; a name that is only an extension has none), a broken escape is 400,
  anything else 404.
- links: `a`, `area` (href), `frame`, `iframe` (src), meta refresh, `link` with rel next, prev, alternate, index or
  contents unless it is a stylesheet; `base` (HTML §4.2.3); nothing with rel=nofollow, nothing of a page whose meta
  robots says nofollow or none. Only http and https, only the host of the site, fragments dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache as once
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote_to_bytes

import ada_url
import html5lib
import lxml.etree
import lxml.html

from tests.sites import debian, nginx
from tests.suites import cache

ORIGIN = "http://site.invalid"
FOLLOWED_RELS = {"next", "prev", "alternate", "index", "contents"}
REFRESH = re.compile(
    r"\s*[\d.]+\s*(?:[;,]\s*|\s+)(?:url\s*=\s*)?(?:\"([^\"]*).*|'([^']*).*|(.*))", re.IGNORECASE | re.DOTALL
)
BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
HTML = {"text/html", "application/xhtml+xml"}
XHTML = "{http://www.w3.org/1999/xhtml}"
RULES = Path(__file__).read_bytes()
"""This file as it was loaded: stored walks of other rules do not count."""

Links = Callable[[bytes], Iterator[tuple[str, dict[str, str]]]]
"""Elements of a page in document order: local name and attributes, of the names that matter here."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the crawl must find; every entry is a path with query, as it goes over the wire."""

    html: frozenset[str]  # answered 200 with an HTML type: one record each
    other: frozenset[str]  # answered 200 with another type: one record each
    dead: dict[str, int] = field(default_factory=dict)  # answered 4xx: path -> status, one failure each
    redirects: dict[str, str] = field(default_factory=dict)  # answered 301: path -> target

    @property
    def records(self) -> frozenset[str]:
        return self.html | self.other


@dataclass(frozen=True, slots=True)
class Answer:
    """What nginx would say."""

    status: int
    content_type: str = ""
    file: Path | None = None
    location: str = ""


def expected(site: debian.Documentation, links: Links | None = None) -> Expected:
    """The walk of a Debian package; computed once per version of package, rules and parsers."""
    read = links or by_lxml
    package = debian.package(site.package)
    rules = hashlib.sha256(RULES + nginx.mime_types().read_bytes()).hexdigest()[:12]
    name = f"{package.folder.name}_{read.__name__}_{version('lxml')}_{version('ada-url')}_{rules}.json"
    stored = cache() / "walks" / name
    if not stored.exists():
        found = walk(debian.root_of(site), site.start, read)
        stored.parent.mkdir(parents=True, exist_ok=True)
        partial = stored.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(found), default=sorted), encoding="utf-8")
        partial.replace(stored)
    data = json.loads(stored.read_text(encoding="utf-8"))
    return Expected(frozenset(data["html"]), frozenset(data["other"]), data["dead"], data["redirects"])


def walk(root: Path, start: str, links: Links) -> Expected:
    """Breadth first from `start` over everything that can be reached."""
    html: set[str] = set()
    other: set[str] = set()
    dead: dict[str, int] = {}
    redirects: dict[str, str] = {}
    seen = {start}
    queue = deque([start])
    bodies: dict[bytes, list[tuple[str, str]]] = {}
    while queue:
        path = queue.popleft()
        answer = respond(root, path)
        found: list[str] = []
        if answer.status == 301:
            redirects[path] = answer.location
            found = [answer.location]
        elif answer.status != 200:
            dead[path] = answer.status
        elif answer.content_type in HTML and answer.file is not None:
            html.add(path)
            found = _targets(path, answer.file.read_bytes(), links, bodies)
        else:
            other.add(path)
        for target in found:
            if target not in seen:
                seen.add(target)
                queue.append(target)
    return Expected(frozenset(html), frozenset(other), dead, redirects)


def respond(root: Path, path: str) -> Answer:
    """The answer of nginx to a request for `path` (with query), for a server with this root."""
    raw, _, query = path.partition("?")
    decoded = unquote_to_bytes(raw)
    if BROKEN_ESCAPE.search(raw) or b"\0" in decoded:
        return Answer(400)
    parts = _merged(decoded)
    if parts is None:
        return Answer(400)
    file = Path(os.fsdecode(os.path.join(os.fsencode(root), *parts)))  # noqa: PTH118 (bytes: names need not be UTF-8)
    if decoded.endswith((b"/", b"/.", b"/..")):
        if not _is(file.is_dir):
            return Answer(404)
        file /= "index.html"
        return _found(file) if _is(file.is_file) else Answer(403)
    if _is(file.is_dir):
        return Answer(301, location=f"{raw}/{'?' + query if query else ''}")
    return _found(file) if _is(file.is_file) else Answer(404)


def _merged(path: bytes) -> list[bytes] | None:
    """The segments of a decoded path without empty ones and dot segments; None where it climbs above the root."""
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            if not parts:
                return None
            parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return parts


def _is(test: Callable[[], bool]) -> bool:
    """`is_dir` or `is_file`, where a name the file system cannot take does not exist."""
    try:
        return test()
    except OSError:
        return False


def _found(file: Path) -> Answer:
    return Answer(200, _types().get(file.suffix[1:].lower(), "application/octet-stream"), file)


@once
def _types() -> dict[str, str]:
    """Extension -> type, from nginx's own list."""
    text = nginx.mime_types().read_text(encoding="utf-8")
    inside = text[text.index("{") + 1 : text.rindex("}")]
    entries = (entry.split() for entry in inside.split(";"))
    return {extension: kind for kind, *extensions in filter(None, entries) for extension in extensions}


def _targets(path: str, body: bytes, links: Links, bodies: dict[bytes, list[tuple[str, str]]]) -> list[str]:
    """Paths of the same site that a page leads to, in order. Bodies read before are not parsed again."""
    digest = hashlib.sha256(body).digest()
    if digest not in bodies:
        bodies[digest] = list(_references(links(body)))
    base = f"{ORIGIN}{path}"
    found: dict[str, None] = {}
    for kind, reference in bodies[digest]:
        url = _resolve(reference, base)
        if kind == "base":
            base = url or base
        elif url and (ada := ada_url.URL(url)).hostname == "site.invalid" and not ada.port and ada.protocol == "http:":
            found[ada.pathname + ada.search] = None
    return list(found)


def _resolve(reference: str, base: str) -> str | None:
    try:
        url = ada_url.URL(reference, base=base)
    except ValueError:
        return None
    return url.href.partition("#")[0] if url.protocol in ("http:", "https:") else None


def _references(elements: Iterator[tuple[str, dict[str, str]]]) -> Iterator[tuple[str, str]]:
    """`("base", …)` first if there is one, then `("link", …)` for every reference that is to be followed."""
    base: str | None = None
    found: list[str] = []
    for name, attributes in elements:
        if name == "base":
            base = attributes.get("href") if base is None else base
        elif name == "meta":
            kind, content = attributes.get("name", "").lower(), attributes.get("content", "")
            if kind == "robots" and {"nofollow", "none"} & set(re.split(r"[\s,]+", content.lower())):
                return
            if attributes.get("http-equiv", "").lower() == "refresh" and (match := REFRESH.fullmatch(content)):
                found.append(next(group for group in match.groups() if group is not None))
        elif (reference := _reference(name, attributes)) is not None:
            found.append(reference)
    if base is not None:
        yield "base", base
    for reference in found:
        yield "link", reference


def _reference(name: str, attributes: dict[str, str]) -> str | None:
    rels = set(attributes.get("rel", "").lower().split())
    if "nofollow" in rels:
        return None
    if name in ("frame", "iframe"):
        return attributes.get("src")
    if name == "link" and ("stylesheet" in rels or not rels & FOLLOWED_RELS):
        return None
    return attributes.get("href")


NAMES = ("a", "area", "frame", "iframe", "link", "meta", "base")


def by_lxml(body: bytes) -> Iterator[tuple[str, dict[str, str]]]:
    """Elements as libxml2's HTML parser sees them: fast, but older than the HTML standard."""
    try:
        tree = lxml.html.document_fromstring(body)
    except lxml.etree.ParserError:  # an empty document
        return
    for element in tree.iter(*NAMES):
        yield str(element.tag), {str(k): str(v) for k, v in element.attrib.items()}


def by_html5lib(body: bytes) -> Iterator[tuple[str, dict[str, str]]]:
    """Elements as the HTML standard's algorithm sees them (html5lib): exact, and slow."""
    tree = html5lib.parse(body, treebuilder="lxml", namespaceHTMLElements=True)
    for element in tree.iter(*(f"{XHTML}{name}" for name in NAMES)):
        yield element.tag.removeprefix(XHTML), {str(k): str(v) for k, v in element.attrib.items()}
