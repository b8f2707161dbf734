"""Ctrl-C: what it does while a process starts, in a run, and the second time."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STUCK = """
import ctypes, time
from sacglam.runs.stopping import StopSignal, die_on_interrupt

def stick():  # in C, where Python runs no signal handler
    print("stuck", flush=True)
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex), libc.pthread_mutex_lock(mutex)

die_on_interrupt()
if {in_run}:
    with StopSignal("stopping\\n") as stop:
        print("running", flush=True)
        while not stop.requested:
            time.sleep(0.01)
        time.sleep(0.2)  # the first signal must not act as the second
        stick()
stick()
"""


@pytest.mark.parametrize("in_run", [False, True])
def test_ctrl_c_acts_at_once_before_a_run_and_the_second_time_in_one(in_run: bool) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", STUCK.format(in_run=in_run)], text=True, **pipes)
    assert process.stdout
    for expected in ("running", "stuck") if in_run else ("stuck",):
        assert process.stdout.readline().strip() == expected
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, "a shell's loop ends, too"
    assert said == "stopping\n" * in_run
