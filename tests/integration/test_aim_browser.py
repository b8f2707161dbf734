"""`sacglam ui` in a real browser: it finds the runs of two algorithms and draws their curves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from sacglam.tools.tracking.aim import EXPLORATIONS, prepare
from tests.browser import browser
from tests.conftest import call, sacglam
from tests.integration.processes import below, left_after, listening_beyond_loopback

pytestmark = pytest.mark.skipif(find_spec("aim") is None, reason="Aim is not installed; pip install -e '.[aim]'")

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def repo(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two runs with hindsight and one without."""
    folder = tmp_path_factory.mktemp("explored")
    for name, hindsight in (("her-0", True), ("her-1", True), ("plain-0", False)):
        run = Path(shutil.copytree(tiny_run, folder / name))
        config = run / "config.yaml"
        if not hindsight:
            values = yaml.safe_load(config.read_text())
            values["replay"]["hindsight"] = {"type": "none"}
            config.write_text(yaml.safe_dump(values))
    done = call(sacglam("track", *(folder / name for name in ("her-0", "her-1", "plain-0"))))
    assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def explorer(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """`sacglam ui` on a free port, with its pages by name; ended by Ctrl-C, which it must obey."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = sacglam("ui", folder, port=str(port))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            pages = {}
            for line in server.stdout:
                if page := re.match(r"(http\S+): (.*)", line):
                    pages[page[2]] = page[1]
                elif "Ctrl-C" in line:
                    break
            assert server.stderr
            assert pages, server.stderr.read()
            yield server, pages
            started = [p for p in below(server.pid)]
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=30) == 0
            assert left_after(started, 10) == []
        finally:
            server.kill()


def get(address: str, **headers: str) -> int:
    """The status of an answer."""
    request = urllib.request.Request(address, headers=headers)
    try:
        with OPENER.open(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.nightly
def test_the_explorer_shows_the_runs_of_two_algorithms_and_their_curves(repo: Path, tmp_path: Path) -> None:
    with explorer(repo) as (server, pages), browser() as page:
        assert listening_beyond_loopback([*below(server.pid)]) == []
        page.open(pages["all runs"])
        page.wait("['her-0', 'her-1', 'plain-0'].every(run => document.body.innerText.includes(run))")
        for name, charts in (("steps", 2), ("seconds", 2), ("goal type", 3)):
            (address,) = (found for title, found in pages.items() if name in title)
            page.open(address)
            page.wait(f"document.querySelectorAll('.LineChart').length == {charts}")
            page.wait("[...document.querySelectorAll('.LineChart')].every(chart => chart.querySelector('path.Line'))")
            page.wait("['\"SAC\"', '\"SAC+HER\"'].every(group => document.body.innerText.includes(group))")
            page.screenshot(tmp_path / f"{name}.png")
            assert (tmp_path / f"{name}.png").stat().st_size > 20_000
        outside = {address.split("/")[2] for address in page.requested if address.startswith("http")}
        assert not any("segment" in host or "analytics" in host for host in outside), outside


@pytest.mark.slow
def test_explorations_are_made_once_and_other_sites_are_refused(repo: Path) -> None:
    with explorer(repo) as (_, pages):
        address = pages.pop("all runs").removesuffix("/runs")
        assert prepare(address) == pages  # again, as at the next start
        with OPENER.open(f"{address}/api/dashboards/") as answer:
            assert sorted(board["name"] for board in json.load(answer)) == sorted(EXPLORATIONS)
        assert get(f"{address}/api/projects/") == 200
        assert get(f"{address}/api/projects/", Origin="http://evil.example") == 403
        assert get(f"{address}/api/projects/", Host="evil.example") == 403
        assert get(f"{address}/api/projects/", **{"Sec-Fetch-Site": "cross-site"}) == 403


@pytest.mark.slow
def test_without_a_repository_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = call(sacglam("ui", tmp_path))
    assert done.returncode == 1
    assert "sacglam track" in done.stderr


def test_a_taken_port_is_reported_with_a_free_one(tmp_path: Path) -> None:
    (tmp_path / ".aim").mkdir()
    (tmp_path / ".aim" / "VERSION").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = call(sacglam("ui", tmp_path, port=str(port)))
    assert done.returncode == 1
    assert re.search(rf"cannot listen on port {port} of .* --port \d+", " ".join(done.stderr.split()))
