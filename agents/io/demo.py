"""The demonstration site: a small guide to fishing nets, made here and served on loopback.

It lets the first crawl run without internet, and has one of each thing a crawler meets: nested folders, `next` links,
images, a redirect, a name that is not ASCII, a robots.txt with a forbidden folder. It has no dead link, so that a crawl
of it ends with exactly `DemoSite.pages` pages and no failure.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import quote

from streams.errors import EnvironmentFault

HTML = "text/html; charset=utf-8"
FORBIDDEN = "/keepers/"

_NETS = {
    "fyke": "a bag held open by hoops, set in a stream so that fish swim in and stay",
    "seine": "a long wall of netting, laid out in a curve and drawn to the shore",
    "trawl": "a wide bag pulled through the water behind a boat",
    "cast": "a round net with weights along its edge, thrown by hand",
    "gill": "a curtain whose meshes are just wide enough for a head",
    "küste": "a low fence of stakes and netting that the tide runs dry",
}
_TOPICS = {
    "history": "Where it came from, and who first wrote about it.",
    "making": "Twine, needle, gauge and knot, in this order.",
    "setting": "How deep, how wide, and which way the water should run.",
    "season": "What swims when, and when to leave the water alone.",
    "mending": "A hole found early is a small hole.",
    "waters": "Streams, ponds and shores where it does its work.",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server says to a path."""

    body: bytes
    content_type: str = HTML
    status: int = 200
    location: str = ""


def answers() -> dict[str, Answer]:
    """Every path of the site, percent-encoded as it goes over the wire, with its answer."""
    return {
        "/": _page("A guide to nets", "".join(_home())),
        "/glossary.html": _page("Glossary", "".join(_glossary())),
        "/about.html": _page("About", _link("/", "Back to the guide") + _link("/old-glossary", "The old glossary")),
        "/old-glossary": Answer(b"", status=301, location="/glossary.html"),
        "/robots.txt": Answer(f"User-agent: *\nDisallow: {FORBIDDEN}\n".encode(), "text/plain"),
        FORBIDDEN: _page("For the keepers", _link(FORBIDDEN + "log.html", "The log")),
        FORBIDDEN + "log.html": _page("Log", "Nothing was caught today."),
        "/images/net.svg": Answer(_DRAWING.encode(), "image/svg+xml"),
        **dict(_chapters()),
    }


def _home() -> Iterator[str]:
    yield "<p>Every net is a question put to the water.</p>"
    for net, what in _NETS.items():
        yield _link(f"/nets/{quote(net)}/", f"The {net} net") + f"<p>It is {what}.</p>"
    yield _link("/glossary.html", "Glossary") + _link("about.html", "About") + _link(FORBIDDEN, "For the keepers")


def _glossary() -> Iterator[str]:
    for net, what in _NETS.items():
        yield f"<dl><dt>{net}</dt><dd>{what}; see {_link(f'/nets/{quote(net)}/#top', 'its chapter')}</dd></dl>"


def _chapters() -> Iterator[tuple[str, Answer]]:
    for net, what in _NETS.items():
        folder = f"/nets/{quote(net)}/"
        names = list(_TOPICS)
        listed = "".join(_link(f"{name}.html", name.capitalize()) for name in names)
        yield folder, _page(f"The {net} net", f"<p id=top>It is {what}.</p>{listed}{_link('../../', 'All nets')}")
        for name, following in zip(names, [*names[1:], ""], strict=True):
            text = f"<p>{_TOPICS[name]} The {net} net is {what}.</p>{_link('./', 'The chapter')}"
            yield f"{folder}{name}.html", _page(f"{net}: {name}", text, f"{following}.html" if following else "")


def _link(href: str, text: str) -> str:
    return f'<p><a href="{href}">{text}</a></p>'


def _page(title: str, content: str, following: str = "") -> Answer:
    relation = f'<link rel="next" href="{following}">' if following else ""
    return Answer(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{relation}</head>'
        f'<body><h1>{title}</h1><img src="/images/net.svg" alt="a net">{content}</body></html>'.encode()
    )


_DRAWING = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64" stroke="black">'
    + "".join(f'<path d="M{n} 0 L64 {64 - n} M0 {n} L{64 - n} 64"/>' for n in range(0, 64, 16))
    + "</svg>"
)


class DemoSite:
    """Serves the site on a loopback port (0: a free one), from threads of this process.

    `start` and `stop`, or `async with DemoSite() as site`.
    """

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._answers = answers()
        self._server: ThreadingHTTPServer | None = None
        self.url = ""
        """Of the home page, while it runs."""

    @property
    def pages(self) -> int:
        """How many HTML pages a crawl that obeys robots.txt finds."""
        return sum(
            answer.status == 200 and answer.content_type == HTML and not path.startswith(FORBIDDEN)
            for path, answer in self._answers.items()
        )

    def start(self) -> str:
        """Start serving and return the URL of the home page. Raises `EnvironmentFault` where the port is taken."""
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self._answers))
        except OSError as error:
            raise EnvironmentFault(
                f"the demonstration site cannot listen on port {self._port}: {error.strerror}",
                "End what listens there, or begin a new crawl: fyke crawl --demo",
            ) from None
        serve = functools.partial(self._server.serve_forever, poll_interval=0.05)
        threading.Thread(target=serve, name="demo-site", daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        return self.url

    def stop(self) -> None:
        """Stop serving. Harmless when it does not run."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)


def _handler(site: dict[str, Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections open
        timeout = 60  # seconds; a connection left open must not keep its thread for ever

        def do_GET(self) -> None:
            answer = site.get(self.path, _NOT_FOUND)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            if answer.location:
                self.send_header("Location", answer.location)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name in the standard library)
            """Nobody reads this server's log."""

    return Handler


_NOT_FOUND = Answer(b"not found", "text/plain", 404)
