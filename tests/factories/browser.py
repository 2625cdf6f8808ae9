"""Chromium as a judge of pages: what it makes of them, what it says, and whom it asks."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlsplit

# a browser of its own accord asks its maker's servers
_BROWSERS_OWN = re.compile(r"\.(google|googleapis|gstatic)\.com$")


@dataclass(frozen=True, slots=True)
class Browsed:
    """A page once its script ran: its elements as HTML, the messages of its console, and the hosts that it asked."""

    elements: str
    complaints: tuple[str, ...]
    hosts: tuple[str, ...]


class Tags(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script":
            self.scripts.append(data)


def browsed(text: str, folder: Path, place: str = "", *, width: int = 360, height: int = 640) -> Browsed:
    """The page *text* as Chromium has it in a window of that size; *place* is what the link names behind #."""
    program = shutil.which("chromium") or "chromium"
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={folder / 'user'}",
    ]
    command += ["--enable-logging=stderr", f"--log-net-log={folder / 'net.json'}", "--virtual-time-budget=2000"]
    command += [f"--window-size={width},{height}", "--dump-dom", f"{path.as_uri()}#{quote(place)}"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    events = json.loads((folder / "net.json").read_text())["events"]
    urls = {event["params"]["url"] for event in events if "url" in (event.get("params") or {})}
    hosts = sorted({urlsplit(url).hostname or "" for url in urls})
    return Browsed(
        run.stdout,
        tuple(line for line in run.stderr.splitlines() if "CONSOLE" in line),
        tuple(host for host in hosts if host and not _BROWSERS_OWN.search(host)),
    )
