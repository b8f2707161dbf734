"""The reaper: what a killed driver started is ended, and its temporary folders are removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

DRIVER = """
import subprocess, sys, time
from sacglam.runtime import reaper

def child(code):
    process = subprocess.Popen([sys.executable, "-c", code + "; import time; print(flush=True); time.sleep(600)"],
                               stdout=subprocess.PIPE)
    process.stdout.readline()
    return process.pid

before = child("pass")
guard = reaper.start()
guarded = child("import os, tempfile; tempfile.mkdtemp(prefix=f'sacglam-ranks-{os.getpid()}-')")
time.sleep(2)  # a reaper that has just started may take this long to look
reaper.started(guard)
time.sleep(1)
print(before, guarded, child("pass"), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_killed_driver_started_in_its_care_is_ended(tmp_path: Path) -> None:
    (tmp_path / "sacglam-ranks-1-other").mkdir()  # of another process
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, env=env)
    assert driver.stdout
    before, guarded, after = map(int, driver.stdout.readline().split())
    try:
        assert len(list(tmp_path.iterdir())) == 2
        driver.kill()
        driver.communicate()
        deadline = time.monotonic() + 60
        while Path(f"/proc/{guarded}").exists() or len(list(tmp_path.iterdir())) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert [folder.name for folder in tmp_path.iterdir()] == ["sacglam-ranks-1-other"]
    finally:
        for other in (before, after):  # not in its care
            os.kill(other, 9)
