"""The scripts for a machine with a GPU, tried without one: stand-ins for test binaries, compute-sanitizer and nvidia-smi."""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from conftest import BIN

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = """#!/bin/bash
if [ "$1" = --gtest_list_tests ]; then
  printf 'Running main() from here\\nGood.\\n  Fine\\n  Speed\\n  NoDeviceCode\\nBad.\\n  Fails\\n  Leaks  # of a kind\\n  LeaksThenHangs\\n  Hangs\\n  Dies\\n'
  exit
fi
t=${1#*=}
case $t in
  Good.Fine) [ "$VAYU_TEST_SHORT" = "$SANITIZED" ] || exit 1 ;;
  Bad.Fails) echo 'x.cc:3: Failure'; echo "[  FAILED  ] $t (3 ms)"; exit 1 ;;
  Bad.LeaksThenHangs) [ -z "$SANITIZED" ] || echo '========= Invalid __global__ read of size 4'; sleep 60 ;;
  Bad.Hangs) sleep 60 ;;
  Bad.Dies) kill -11 $$ ;;
esac
echo "[       OK ] $t (1 ms)"
"""
SANITIZER = """#!/bin/bash
tool=$2
while [[ $1 == --* ]]; do shift 2; done
echo '========= COMPUTE-SANITIZER'
SANITIZED=1 "$@"
code=$?
case "$*" in
  *NoDeviceCode) echo '========= Error: Target application terminated before first instrumented API call'; exit 1 ;;
  *Leaks) found=3 ;;
  *) found=0 ;;
esac
[ $tool = memcheck ] && echo "========= ERROR SUMMARY: $found errors"
[ $tool = racecheck ] && echo "========= RACECHECK SUMMARY: $((found + 1)) hazards displayed (0 errors, $found warnings)" && exit $code
[ $found = 0 ] || exit 99
exit $code
"""


@pytest.fixture
def machine(tmp_path):
    """Folders bin (the tests) and path (the tools)."""
    for name, text in (("bin/ops_cuda_test", TESTS), ("bin/model_cuda_test", TESTS), ("bin/engine_cuda_test", TESTS),
                       ("path/compute-sanitizer", SANITIZER)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    return tmp_path


def run_gpu_tests(machine, *args):
    env = os.environ | {"PATH": f"{machine}/path:{os.environ['PATH']}", "COMMIT": "abc1234"}
    command = [sys.executable, ROOT / "tools/gpu_tests.py", *args, "--bin", machine / "bin", "--out", machine / "out", "--limit", "1.5"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    record = json.loads((machine / f"out/proof_{args[0]}.json").read_text())
    return done, record["suites"], record


def test_plain_tests_that_hang_or_die_have_failed(machine):
    done, suites, _ = run_gpu_tests(machine, "tests", "--workers", "8")
    assert done.returncode == 1
    for suite in ("ops_tests", "model_tests", "engine_tests"):
        assert suites[suite]["passed"] == 3
        assert sorted(suites[suite]["names"]["failed"]) == ["Bad.Dies", "Bad.Fails", "Bad.Hangs", "Bad.LeaksThenHangs"]
    assert "Speed" not in done.stdout and "x.cc:3: Failure" in done.stdout


def test_sanitizers_count_what_they_found_and_what_found_no_time(machine):
    done, suites, _ = run_gpu_tests(machine, "sanitize", "--workers", "8")
    assert done.returncode == 1
    assert set(suites) == {"ops_memcheck", "model_memcheck", "engine_memcheck", "ops_racecheck"}
    for entry in suites.values():
        assert entry["passed"] == 1 and entry["skipped"] == 1 and entry["names"]["cut"] == ["Bad.Hangs"]
        assert sorted(entry["names"]["failed"]) == ["Bad.Dies", "Bad.Fails", "Bad.Leaks", "Bad.LeaksThenHangs"]
    none, suites, _ = run_gpu_tests(machine, "sanitize", "Good.Fine", "--seconds", "0.5")
    assert none.returncode != 0
    assert suites["ops_racecheck"]["names"] == {"not_run": ["Good.Fine"]}


def test_a_clean_run_is_summarised(machine):
    done, _, record = run_gpu_tests(machine, "sanitize", "Good.F*:Nothing*")
    assert done.returncode == 0, done.stdout + done.stderr
    assert record["command"] == "tools/gpu_proof.sh sanitize 'Good.F*:Nothing*'"
    subprocess.run([sys.executable, ROOT / "tools/gpu_results.py", machine / "out"], check=True, stdout=subprocess.DEVNULL)
    proof = json.loads((machine / "out/h200_proof.json").read_text())
    assert proof["commit"] == "abc1234"
    assert proof["metrics"]["ops_racecheck_passed"] == 1 and proof["metrics"]["model_memcheck_failed"] == 0


def race(write, read, kind="Read"):
    return (f"========= Error: Race reported between Write access at void vayu::ops::<unnamed>::{write}\n"
            f"=========     and {kind} access at void vayu::ops::<unnamed>::{read} [336 hazards]\n=========\n")


def test_only_races_that_are_listed_are_explained():
    spec = importlib.util.spec_from_file_location("gpu_tests", ROOT / "tools/gpu_tests.py")
    gpu_tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu_tests)
    scales = ("gather_rows<(int)1>(const Params &, int)+0x5bf0 in stream_experts.cu:233",
              "down_tile<(int)1, (int)8>(const Params &)+0x6eb0 in stream_experts.cu:383")

    def judge(reports, counted, code=99, ended=True, end="[       OK ] A.B (1 ms)\n"):
        summary = f"========= RACECHECK SUMMARY: {counted} hazards displayed ({counted} errors, 0 warnings)\n" if ended else ""
        return gpu_tests.judge(gpu_tests.Job("racecheck", "ops", "A.B"), end + reports + summary, code, ended)

    assert judge(race(*scales) * 2, 2) == "passed"
    assert judge(race(*scales), 1, code=-9, ended=False) == "cut"
    assert judge(race(*scales), 3) == "failed"  # not all displayed
    assert judge(race(*scales), 1, end="[  FAILED  ] A.B\n") == "failed"
    assert judge(race(*scales), 1, code=134) == "failed"
    assert judge(race(*scales) + "========= Potential invalid __shared__ read of size 16 bytes\n", 1) == "failed"
    assert judge(race(*scales) + race(scales[0], "gate_up_tile<(int)1>(int)+0x1 in stream_experts.cu:300"), 2) == "failed"
    assert judge(race(*scales, kind="Write"), 1) == "failed"
    assert judge(race(*scales).splitlines()[0] + "\n", 1) == "failed"
    assert judge(race(*scales[::-1]), 1, ended=False) == "failed"
    assert judge("", 0, code=0) == "passed"


def test_sla_figures_of_a_small_server(tmp_path):
    smi = tmp_path / "path/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/bash\nwhile echo 100.0; do sleep 0.2; done\n")
    smi.chmod(0o755)
    (tmp_path / "moe").mkdir()
    shutil.copy(ROOT / "tests/golden/oracle/configs/sarvam_moe_base.json", tmp_path / "moe/config.json")
    command = [sys.executable, ROOT / "bench/h200_sla.py", "--vayu", BIN, "--device", "cpu", "--model", tmp_path / "moe", "--input-len", "48",
               "--output-len", "8", "--clients", "1", "2", "--requests-per-client", "4", "--token-range", "10", "200", "--max-model-len",
               "512", "--step-tokens", "64", "--port", "8197", "--out", tmp_path / "sla.json"]
    env = os.environ | {"PATH": f"{smi.parent}:{os.environ['PATH']}"}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "sla.json").read_text())
    metrics = result["metrics"]
    assert metrics["server_exit_code"] == 0 and metrics["c2_req_per_s"] > 0 and metrics["c1_p95_ttft_ms"] > 0
    assert metrics["tokens_per_joule"] == metrics["c2_tokens_per_joule"] > 0
    assert "OpenAI SDK" in result["notes"]
