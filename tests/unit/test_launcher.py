"""The launcher that tests start commands by: what it starts is a process as any other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import launcher
from tests.conftest import call, sacglam
from tests.integration.processes import below, left_after

REPORTER = '''
import json, os, signal, sys, time
def report(**options):
    import torch
    torch.set_num_threads(2)
    torch.ones(400, 400) @ torch.ones(400, 400)  # on two threads
    print(json.dumps({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "path": sys.path[0],
        "pid": os.getpid(), "session": os.getsid(0), "stdin": sys.stdin.read(), "main": sys.modules["__main__"].__file__,
        "threads": len(os.listdir("/proc/self/task")), "files": sorted(map(int, os.listdir("/proc/self/fd")))}))
    print("more", file=sys.stderr)
    sys.exit(7)
'''
