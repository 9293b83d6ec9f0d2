"""The files for clusters: their form, and their torchrun command run for real."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from course.lab.hosts import on_hosts
from tests.support.loaded import PROGRAMS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks" / "clusters"
SCRIPTS = ["two_hosts.sh", "slurm.sbatch"]
LONG = 900  # seconds: two torchruns and four ranks on a machine that others keep busy
FAST = {
    "EPOCHS": "1",
    "BATCH_SIZE": "480",
    "EVERY": "1",
    "PET_START_METHOD": "fork",
    "PET_RUN_PATH": "1",
}  # torchrun's: four imports less


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_has_nothing_to_say(name):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed here")
    done = subprocess.run(
        ["shellcheck", "--shell=bash", FOLDER / name], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_two_host_recipe_says_what_it_lacks():
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HOST0", "HERE")
    }
    for given, missing in (({}, "HOST0"), ({"HOST0": "a"}, "HERE")):
        done = subprocess.run(
            ["bash", FOLDER / "two_hosts.sh"],
            env=environ | given,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode != 0 and f"say {missing}=<address" in done.stderr


def test_slurm_starts_one_torchrun_a_host_and_as_many_ranks_as_gpus():
    text = (FOLDER / "slurm.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.M))
    assert asked["ntasks-per-node"] == "1" and int(asked["nodes"]) > 1
    assert f"RANKS:-{asked['gpus-per-node']}}}" in text
    assert "#SBATCH --requeue" in text


def test_the_job_for_kubernetes_has_what_its_operator_asks_for():
    job = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    spec, policy = job["spec"], job["spec"]["elasticPolicy"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    assert policy["rdzvBackend"] == "c10d" and policy["maxRestarts"] > 0
    assert policy["minReplicas"] <= worker["replicas"] <= policy["maxReplicas"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"  # the operator looks for this name
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(
        spec["nprocPerNode"]
    )
    given = {
        variable["name"] for variable in container["env"] if "valueFrom" in variable
    }
    used = set(re.findall(r"\$\((\w+)\)", " ".join(container["command"])))
    assert used == given
    folders = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (path,) = (
        word.partition("=")[2]
        for word in container["command"]
        if word.startswith("--checkpoint=")
    )
    assert folders[str(Path(path).parent)] in [one["name"] for one in pod["volumes"]]


SCONTROL = "#!/bin/sh\necho {first}\nsleep 1\necho another\n"  # it is read to its end
SRUN = '#!/bin/sh\nshift\nexec "$@"\n'  # a real one starts this on every host


def by_slurm(here, number):
    """Return what Slurm gives the script there."""
    return {
        "SLURM_JOB_ID": 7,
        "SLURM_NNODES": 2,
        "SLURM_NODEID": number,
        "SLURM_JOB_NODELIST": "host[0-1]",
        "SLURMD_NODENAME": here,
    }


def test_two_hosts_train_by_the_script_of_slurm(tmp_path, nothing_is_left):
    # two_hosts.sh has the same torchrun. Programs as they are, not forks: only so the
    # script starts them, which takes half a minute; a rank a host is enough
    checkpoint = tmp_path / "run.pt"
    for tool, text in (
        ("srun", SRUN),
        ("scontrol", SCONTROL.format(first="127.0.0.1")),
    ):
        (tmp_path / tool).write_text(text)
        (tmp_path / tool).chmod(0o755)

    def train(hosts):
        runs = []
        for number in (0, 1):
            words = (
                by_slurm("127.0.0.1", number)
                | FAST
                | {
                    "PORT": hosts.with_free_ports("127.0.0.1:29400").partition(":")[2],
                    "PYTHON": sys.executable,
                    "CHECKPOINT": checkpoint,
                    "PYTHONPATH": ROOT,
                    "PROGRAM": PROGRAMS / "train.py",
                    "RANKS": "1",
                    "PATH": f"{tmp_path}:{os.environ['PATH']}",
                }
            )
            runs.append(
                hosts.run(
                    {},
                    os.execvp,
                    "env",
                    [
                        "env",
                        f"--chdir={tmp_path}",
                        "--unset=GLOO_SOCKET_IFNAME",
                        *(f"{key}={value}" for key, value in words.items()),
                        "bash",
                        str(FOLDER / "slurm.sbatch"),
                    ],
                )
            )
        errors = [hosts.printed(run, "err") for run in runs]
        return [run.exitcode for run in runs], errors

    codes, errors = on_hosts(train, timeout=LONG)
    assert codes == [0, 0], errors
    assert checkpoint.exists()
    # which rank said what: a folder for each rank, and only rank 0 printed
    logs = sorted(
        path.read_text() for path in tmp_path.glob("logs/*/*/attempt_0/0/stdout.log")
    )
    assert logs[:-1] == [""] and "epoch 0: loss" in logs[-1]
