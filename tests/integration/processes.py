"""Processes of a run, seen from outside: who is below whom, who is alive."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process at one moment; `started` distinguishes it from a later one with the same number."""

    pid: int
    parent: int
    started: str
    title: str
    zombie: bool


def running() -> dict[int, Process]:
    """All processes of this machine."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *rest = folder.joinpath("stat").read_text().rpartition(")")[2].split()
            title = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # ended meanwhile
            continue
        pid = int(folder.name)
        found[pid] = Process(pid, int(parent), rest[17], title, state == "Z")
    return found


def below(pid: int) -> list[Process]:
    """All descendants of `pid`."""
    children = defaultdict(list)
    for process in running().values():
        children[process.parent].append(process)
    found = list(children[pid])
    for process in found:  # grows as it goes
        found += children[process.pid]
    return found


def titled(pid: int, title: str) -> list[Process]:
    """Descendants whose title begins with `title`."""
    return [p for p in below(pid) if p.title.startswith(title) and not p.zombie]


def marked(mark: str) -> list[Process]:
    """Processes that were started with `mark` in their environment."""
    found = []
    for process in running().values():
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:  # ended meanwhile
            continue
        if mark.encode() in environment and not process.zombie:
            found.append(process)
    return found


def left_after(processes: list[Process], seconds: float) -> list[Process]:
    """Those that are still alive after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        now = running()
        left = [p for p in processes if p.pid in now and now[p.pid].started == p.started and not now[p.pid].zombie]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def listening_beyond_loopback(processes: list[Process]) -> list[str]:
    """Titles of those that listen for TCP connections from other machines."""
    open_to_all = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            address = local.partition(":")[0]
            loopback = address.endswith("0100007F") or address == "00000000000000000000000001000000"
            if state == "0A" and not loopback:
                open_to_all.add(f"socket:[{rest[5]}]")
    return [p.title for p in processes if open_to_all & _sockets(p.pid)]


def _sockets(pid: int) -> set[str]:
    found = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(descriptor.readlink()))
    except OSError:  # ended meanwhile
        pass
    return found
