"""The scripts for a machine with a GPU, tried without one: stand-ins for test binaries, compute-sanitizer and nvidia-smi."""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

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
    assert proof["metrics"]["ops_racecheck_left_out"] == 0 and "VAYU_TEST_SHORT" in proof["notes"] and proof["names"] == {}


def load_tool(name, folder="tools"):
    sys.path.insert(0, str(ROOT / folder))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / f"{folder}/{name}.py")
        tool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(tool)
        return tool
    finally:
        sys.path.pop(0)


def test_what_was_not_checked_is_named(machine):
    skips = TESTS.replace("Good.Fine)", "Good.Fine) [ -z \"$SANITIZED\" ] || exit 0; true ||").replace("Good.\\n", "StreamLinearCuda.\\n  IsTheReference\\nOneAlone.\\n  Fills\\nGood.\\n")
    (machine / "bin/ops_cuda_test").write_text(skips)
    done, suites, record = run_gpu_tests(machine, "sanitize", "Good.Fine:StreamLinearCuda.*:OneAlone.*")
    assert done.returncode == 0, done.stdout + done.stderr
    assert suites["ops_memcheck"]["names"] == {"skipped": ["Good.Fine"]} and suites["ops_memcheck"]["passed"] == 1
    assert list(record["not_raced"]) == ["StreamLinearCuda.IsTheReference"] and "EveryFormOnce" in record["not_raced"].popitem()[1]
    assert list(record["not_sanitized"]) == ["OneAlone.Fills"]


def race(write, read, kind="Read"):
    return (f"========= Error: Race reported between Write access at void vayu::ops::<unnamed>::{write}\n"
            f"=========     and {kind} access at void vayu::ops::<unnamed>::{read} [336 hazards]\n=========\n")


def test_only_races_that_are_listed_are_explained():
    gpu_tests = load_tool("gpu_tests")
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
    outcomes = {gpu_tests.Job("racecheck", "ops", "A.B"): gpu_tests.Outcome("passed", 1, "", gpu_tests.races(race(*scales) * 2)),
                gpu_tests.Job("racecheck", "ops", "A.C"): gpu_tests.Outcome("passed", 1, "", gpu_tests.races(""))}
    assert gpu_tests.explained_reports(outcomes) == {"A.B": {"reports": 2, "about": ["scales of the rows of a stage"]}}


SPEED = """Note: Google Test filter = *Speed*
SPEED silu_mul 64x8192 5.54 us 474 GB/s 11%
SPEED decode_attention 32 rows 3650 tokens f8 alone 30.0 us, chained 24.0 us, between reads 28.8 us, chained 2490 GB/s 0.60 of the read ceiling
SPEED mla_attention 64 rows of 1 tokens, context 3650 f8 156.3 us 861 GB/s 0.20 of 4300, 208 TFLOP/s 0.26 of 800
SPEED mla_gather 3584 bf16 2.6 us 3.23 TB/s 76 %
SPEED device_prefill 64/4x64 1x3584 fp8 whole alone 200.0 us, chained 100.0 us 482 TFLOP/s 60 %
SPEED device_gemm qkv 3584x4608x4096 width 176 stages 4 cluster 2 107.1 us 1263 TFLOP/s 88%
SPEED device_gemm qkv 3584x4608x4096 width 112 stages 4 cluster 1 118.0 us 1146 TFLOP/s 80%
SPEED device_route tokens 8: 10.0 us (in a chain 5.0, between reads 8.0) 207 GB/s 2 TFLOP/s 0.040
SPEED stream_experts f8 tokens 32 experts 98: 300.0 us, in a chain 250.0 us; 4201 GB/s 0.750 of the read ceiling
SPEED stream_linear behind a norm, qkv f8 rows 1 pairs: 7.3 us both, 1.3 the norm alone
SPEED device_head_linear 1 x 64 heads x 128 -> 512 3.85 us 2 TFLOP/s, 2201 GB/s 0.52 of the read ceiling
"""


def test_every_speed_line_keeps_its_rate_and_share(tmp_path):
    metrics = load_tool("gpu_results").op_metrics(SPEED.splitlines())
    assert metrics == {
        "silu_mul_64x8192_us": 5.54, "silu_mul_64x8192_share": 0.11, "silu_mul_64x8192_gb_s": 474,
        "decode_attention_32_rows_3650_tokens_f8_us": 30, "decode_attention_32_rows_3650_tokens_f8_share": 0.48,
        "decode_attention_32_rows_3650_tokens_f8_chained_us": 24, "decode_attention_32_rows_3650_tokens_f8_chained_share": 0.6,
        "decode_attention_32_rows_3650_tokens_f8_between_reads_us": 28.8, "decode_attention_32_rows_3650_tokens_f8_between_reads_share": 0.5,
        "decode_attention_32_rows_3650_tokens_f8_gb_s": 2490,
        "mla_attention_64_rows_of_1_tokens_context_3650_f8_us": 156.3, "mla_attention_64_rows_of_1_tokens_context_3650_f8_share": 0.26,
        "mla_attention_64_rows_of_1_tokens_context_3650_f8_gb_s": 861, "mla_attention_64_rows_of_1_tokens_context_3650_f8_tflops": 208,
        "mla_gather_3584_bf16_us": 2.6, "mla_gather_3584_bf16_share": 0.76, "mla_gather_3584_bf16_gb_s": 3230,
        "device_prefill_64_4x64_1x3584_fp8_whole_us": 200, "device_prefill_64_4x64_1x3584_fp8_whole_share": 0.3,
        "device_prefill_64_4x64_1x3584_fp8_whole_chained_us": 100, "device_prefill_64_4x64_1x3584_fp8_whole_chained_share": 0.6,
        "device_prefill_64_4x64_1x3584_fp8_whole_tflops": 482,
        "device_gemm_qkv_3584x4608x4096_us": 107.1, "device_gemm_qkv_3584x4608x4096_share": 0.88, "device_gemm_qkv_3584x4608x4096_tflops": 1263,
        "device_route_tokens_8_us": 10, "device_route_tokens_8_share": 0.04, "device_route_tokens_8_chained_us": 5,
        "device_route_tokens_8_chained_share": 0.08, "device_route_tokens_8_between_reads_us": 8, "device_route_tokens_8_between_reads_share": 0.05,
        "device_route_tokens_8_gb_s": 207, "device_route_tokens_8_tflops": 2,
        "stream_experts_f8_tokens_32_us": 300, "stream_experts_f8_tokens_32_share": 0.75, "stream_experts_f8_tokens_32_chained_us": 250,
        "stream_experts_f8_tokens_32_chained_share": 0.9, "stream_experts_f8_tokens_32_gb_s": 4201, "stream_experts_f8_tokens_32_experts": 98,
        "stream_linear_behind_a_norm_qkv_f8_rows_1_pairs_us": 7.3, "stream_linear_behind_a_norm_qkv_f8_rows_1_pairs_norm_alone_us": 1.3,
        "device_head_linear_1_x_64_heads_x_128_512_us": 3.85, "device_head_linear_1_x_64_heads_x_128_512_share": 0.52,
        "device_head_linear_1_x_64_heads_x_128_512_tflops": 2, "device_head_linear_1_x_64_heads_x_128_512_gb_s": 2201,
    }
    for log, said in ((SPEED, "figures that this run has not: "), (SPEED.replace("*Speed*", "Device*Speed*"), "no h200_ops.json")):
        (tmp_path / "speed.log").write_text(log)
        (tmp_path / "h200_ops.json").unlink(missing_ok=True)
        done = subprocess.run([sys.executable, ROOT / "tools/gpu_results.py", tmp_path], capture_output=True, text=True, check=True)
        assert said in done.stderr, done.stderr
        assert (tmp_path / "h200_ops.json").exists() == (log is SPEED)


def test_commands_of_result_files_can_be_repeated():
    common = load_tool("common", "bench")
    argv = [str(ROOT / "bench/x.py"), "--vayu", str(ROOT / "build/apps/vayu"), "--kept-in=/tmp/a b", "--texts", "/a/1", "/a/2", "--out", "here.json", "-n", "3"]
    assert common.result_path("h200_x", "one NVIDIA H200") == ROOT / "bench/results/h200_x.json"
    assert common.result_path("h200_x", "a CPU") == ROOT / "build-gpu/out/h200_x.json"
    assert common.result_path("cpu_x", "a CPU") == ROOT / "bench/results/cpu_x.json"
    assert common.recorded_command(argv) == "bench/x.py --vayu build/apps/vayu --kept-in=KEPT_IN --texts TEXTS TEXTS --out here.json -n 3"


def test_peers_are_divided_by_ours_of_the_same_case():
    peers = load_tool("peers", "bench")
    lines = peers.lines_of_ours(SPEED + "SPEED device_prefill 64/4x64 512 of 3584 bf16 whole alone 80.0 us, chained 70.0 us 1 TFLOP/s 1 %\n"
                                "SPEED device_prefill 64/4x64 512 of 3584 bf16 split alone 60.0 us, chained 50.0 us 1 TFLOP/s 1 %\n")
    cases = {part: peers.named_ours(part, lines) for part in peers.PARTS}
    assert cases == {"decode": {"decode_32_f8": (30, 24)}, "prefill": {"prefill_3584_f8": (200, 100), "prefill_512_of_3584_bf16": (60, 50)},
                     "mla": {"mla_decode_64_f8": (156.3, None)},
                     "experts": {"experts_32": (300, 250), "touched_32": (98, None)}, "dense": {"dense_qkv": (107.1, None)}}
    metrics = {"experts_32_triton_us": 330, "experts_32_triton_chained_us": 275, "experts_32_cutlass_us": 270, "experts_3_triton_us": 1}
    peers.add_ratios(metrics, cases["experts"])
    added = {"experts_32_ours_us": 300, "experts_32_ours_chained_us": 250, "experts_touched_32": 98, "experts_32_triton_over_ours": 1.1,
             "experts_32_cutlass_over_ours": 0.9, "experts_32_best_peer_over_ours": 0.9}  # chained where both are
    assert {key: metrics[key] for key in added} == pytest.approx(added) and len(metrics) == 4 + len(added)


def test_servers_of_the_benchmarks_do_not_stay(tmp_path):
    common = load_tool("common", "bench")
    pid = tmp_path / "pid"
    for end, said in (("exec sleep 60", "not ready after 2 s"), ("exit 3", "ended with 3")):
        with pytest.raises(RuntimeError, match=said):
            common.Server(["bash", "-c", f"echo $$ >{pid}; {end}"], 9, "/ready", seconds=2)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


def test_end_to_end_tests_are_counted(tmp_path):
    (tmp_path / "e2e.xml").write_text("""<?xml version="1.0"?><testsuites><testsuite errors="1" failures="1" skipped="1" tests="5" time="9.04">
        <testcase classname="tests.e2e.test_a" name="fine"/><testcase classname="tests.e2e.test_a" name="fine_too"/>
        <testcase classname="tests.e2e.test_a" name="away"><skipped message="there is a GPU"/></testcase>
        <testcase classname="tests.e2e.test_b" name="wrong"><failure message="assert 1 == 2&#10;more">text</failure></testcase>
        <testcase classname="tests.e2e.test_b" name="no_server"><error message="failed on setup">text</error></testcase>
        </testsuite></testsuites>""")
    env = os.environ | {"COMMIT": "abc1234"}
    subprocess.run([sys.executable, ROOT / "tools/gpu_results.py", tmp_path], env=env, check=True, stdout=subprocess.DEVNULL)
    result = json.loads((tmp_path / "h200_e2e.json").read_text())
    assert result["commit"] == "abc1234" and result["metrics"] == {"passed": 2, "failed": 2, "skipped": 1, "seconds": 9.0}
    assert result["names"] == {"failed": {"tests/e2e/test_b.py::wrong": "assert 1 == 2", "tests/e2e/test_b.py::no_server": "failed on setup"},
                               "skipped": {"tests/e2e/test_a.py::away": "there is a GPU"}}


# The whole proof with one command, on "another machine".
GOOD_TESTS = """#!/bin/bash
case "$1" in
  --gtest_list_tests) printf 'Good.\\n  Fine\\n  Speed\\n' ;;
  *Speed*) [ "$VAYU_SPEED" = 1 ] && printf 'Note: Google Test filter = *Speed*\\nSPEED silu_mul 64x8192 5.54 us 474 GB/s 11%%\\n' ;;
  *) echo "[       OK ] ${1#*=} (1 ms)" ;;
esac
"""
VAYU = """#!/bin/bash
case "$1 $2" in
  'serve sarvam-30b')
    while [ "$1" != --port ]; do shift; done
    exec python3 -c "
import http.server, signal, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.HTTPServer(('127.0.0.1', $2), Ready).serve_forever()" ;;
  'bench serve') exit ;;
  'profile --model' | 'profile --url') while [ "$1" != --json ]; do shift; done
    echo '{"command": "vayu profile", "hardware": "NVIDIA H200", "model": "m", "tokens": 1, "step_us": 3, "busy_us": 2, "kernels": [
      {"name": "gemm_kernel<vayu::ops::F8Products, 0>", "own_us": 1500}, {"name": "gemm_kernel<vayu::ops::F8Products, 1>", "own_us": 500}]}' >"$2"
    exit ;;
  'bench steps') while [ "$1" != --json ]; do shift; done ;;
  *) exit 3 ;;
esac
[[ $2 != *105b* ]] && steps='"decode_8": S, "prefill_3584": S' || steps='"decode_8": S'
step='{"device_us": 2000.0, "wall_us": 2001, "host_share": 0, "floor_us": 1000, "share_of_floor": 0.5, "tokens_per_s": 1}'
echo '{"command": "vayu bench steps", "hardware": "NVIDIA H200", "model": "m", "context": 3650, "memory_plan": "weights 31 GiB", "load_s": 1, "read_gb_s": 4400, "steps": {'"${steps//S/$step}"'}}' >"$2"
"""
FEW_TESTS = """import os, pathlib, pytest
def test_right():
    assert pathlib.Path(os.environ["VAYU_TEST_MODEL"]).read_text() == "weights" and os.environ["VAYU_BIN"].endswith("bin/vayu")
def test_wrong():
    assert os.environ["VAYU_E2E_DEVICE"] != "cuda", "on cuda"
@pytest.mark.skip(reason="no reason")
def test_not_here():
    pass
"""
SSH = """#!/bin/bash
echo "$1" >>"$THERE/machines"
cd "$THERE" && exec bash -c "$2"
"""


@pytest.fixture
def tree(tmp_path):
    """A small tree under git, with a pack of stand-ins; beside it the home folder of the other machine, and what goes there in place of ssh."""
    root, pack = tmp_path / "tree", tmp_path / "pack"
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("sarvam_tiny", "__pycache__"))
    (root / "bench/results").mkdir(parents=True)
    shutil.copy(ROOT / "bench/common.py", root / "bench")
    (root / "tests").mkdir()
    (root / "tests/kept.txt").write_text("tracked")
    (root / "tests/e2e").mkdir()
    (root / "tests/e2e/test_few.py").write_text(FEW_TESTS)
    (root / "models").mkdir()
    (root / "models/SmolLM2-135M-Instruct.Q4_1.gguf").write_text("weights")
    (root / "build-whl").mkdir()
    (root / "build-whl/broken.whl").write_text("not a wheel")
    (root / "tests/deleted.txt").write_text("tracked, and no longer there")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "tools", "tests", "bench/common.py"], cwd=root, check=True)
    (root / "tests/deleted.txt").unlink()
    (root / "notes.txt").write_text("not tracked")
    files = {f"bin/{suite}_cuda_test": GOOD_TESTS for suite in ("ops", "model", "engine")}
    for name, text in (files | {"bin/vayu": VAYU, "bin/commit": "abc1234\n", "lib/empty": ""}).items():
        (pack / name).parent.mkdir(parents=True, exist_ok=True)
        (pack / name).write_text(text)
        (pack / name).chmod(0o755)
    (root / "build-gpu").mkdir()
    with tarfile.open(root / "build-gpu/pack.tar.xz", "w") as archive:  # tar sees by itself how it is packed
        archive.add(pack / "bin", "bin")
        archive.add(pack / "lib", "lib")
    (tmp_path / "there").mkdir()
    (tmp_path / "path").mkdir()
    for name, text in (("ssh", SSH), ("path/nvidia-smi", "#!/bin/bash\necho NVIDIA H200\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return root


def run_gpu_sh(tree, *args, **more):
    env = {key: value for key, value in os.environ.items() if key not in ("OUT", "COMMIT")}
    env |= {"VAYU_GPU_SSH": str(tree.parent / "ssh"), "THERE": str(tree.parent / "there"),
            "PATH": f"{tree.parent}/path:{pathlib.Path(sys.executable).parent}:{env['PATH']}"}  # python3 with pytest
    return subprocess.run([tree / "tools/gpu.sh", "--packed", *args], env=env | more, capture_output=True, text=True, timeout=120)


def test_the_whole_proof_on_another_machine(tree):
    there = tree.parent / "there"
    folder = there / "some where"
    for steps, code in ((["tests"], 0), (["fault", "tests", "speed", "steps", "profile", "e2e"], 1)):  # the second in place of the first
        done = run_gpu_sh(tree, "--host", "me@gpu", "--dir", "some where", *steps)
        assert done.returncode == code, done.stdout + done.stderr
        assert (folder / "tests/kept.txt").read_text() == "tracked" and not (folder / "notes.txt").exists()
        assert not (folder / "stale").exists()
        (folder / "stale").touch()
    assert set((there / "machines").read_text().split()) == {"me@gpu"}
    table = [line.split() for line in done.stdout.splitlines()[-6:]]
    assert [(line[0], line[2]) for line in table] == [
        ("fault", "1"), ("tests", "0"), ("speed", "0"), ("steps", "0"), ("profile", "0"), ("e2e", "1")], done.stdout
    results = {path.stem: json.loads(path.read_text()) for path in (tree / "bench/results").iterdir()}
    assert results["h200_steps"]["notes"].endswith("memory: weights 31 GiB")
    assert set(results) == {"h200_proof", "h200_ops", "h200_model", "h200_profile", "h200_e2e", "h200_steps", "h200_steps_bf16",
                            "h200_steps_105b", "h200_steps_105b_absorbed"}
    assert {result["commit"] for result in results.values()} == {"abc1234"}
    assert results["h200_proof"]["metrics"]["ops_tests_passed"] == 1
    assert results["h200_ops"]["metrics"]["silu_mul_64x8192_share"] == 0.11
    model = results["h200_model"]["metrics"]
    assert model["fp8_decode_ms_b8"] == model["bf16_prefill3584_ms"] == model["mla_fp8_decode_ms_b8"] == 2
    assert model["mla_fp8_prefill3584_profile_f8_gemm_ms"] == 2
    profiles = results["h200_profile"]["metrics"]
    assert profiles["prompt_gemm_kernel_F8Products_1_us"] == profiles["serving_gemm_kernel_F8Products_1_us"] == 500
    end_to_end = results["h200_e2e"]
    assert end_to_end["metrics"]["passed"] == end_to_end["metrics"]["failed"] == end_to_end["metrics"]["skipped"] == 1
    assert end_to_end["names"] == {"failed": {"tests/e2e/test_few.py::test_wrong": "AssertionError: on cuda"},
                                   "skipped": {"tests/e2e/test_few.py::test_not_here": "no reason"}}
    assert model["mla_fp8_decode_share_of_read_floor_b8"] == 0.5 and {result["hardware"][-11:] for result in results.values()} == {"NVIDIA H200"}


def test_the_whole_proof_leaves_other_folders_alone(tree):
    mine = tree.parent / "there/mine/precious"
    mine.parent.mkdir()
    mine.touch()
    done = run_gpu_sh(tree, "--host", "gpu", "--dir", "mine", "tests")
    assert done.returncode == 1 and "not a folder of this script: mine" in done.stderr and mine.exists()


def test_the_whole_proof_on_this_machine(tree):
    done = run_gpu_sh(tree, "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tree / "bench/results/h200_proof.json").read_text())["metrics"]["model_tests_passed"] == 1
    (tree / "bench/results/h200_proof.json").unlink()
    (tree.parent / "path/nvidia-smi").write_text("#!/bin/bash\necho Another GPU\n")
    done = run_gpu_sh(tree, "tests")
    assert done.returncode == 0 and "not of an H200, so not in bench/results: build-gpu/out/h200_proof.json" in done.stdout, done.stdout
    assert not (tree / "bench/results/h200_proof.json").exists() and (tree / "build-gpu/out/h200_proof.json").exists()
    assert run_gpu_sh(tree, "no_step").returncode == 2
    (tree / "build-gpu/bin/commit").write_text("of another\n")
    done = run_gpu_sh(tree, "tests", OUT="build-gpu/out")
    assert done.returncode == 1 and "build-gpu/out holds results of abc1234, and these are binaries of of another" in done.stdout, done.stdout
    (tree / "build-gpu/pack.tar.xz").unlink()
    assert "no build-gpu/pack.tar.xz" in run_gpu_sh(tree, "tests").stderr


def test_what_did_not_run_is_no_success(tree):
    def proof(*args):
        return subprocess.run([tree / "tools/gpu_proof.sh", *args], env=os.environ | {"OUT": str(tree / "out")}, capture_output=True, text=True)

    assert proof("no_step").returncode == 2
    assert subprocess.run([sys.executable, ROOT / "tools/gpu_results.py", tree / "nothing"], capture_output=True).returncode == 1
    assert proof("speed").returncode == 0
    (tree / "build-gpu/bin/ops_cuda_test").write_text("#!/bin/bash\necho '[  SKIPPED ] there is no GPU'\n")
    assert proof("speed").returncode == 1


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
    sdk = result["openai_sdk"]
    assert sdk["version"] and sdk["answered"] == ["models", "completions", "completions_streamed", "chat", "chat_streamed"]
    assert "--model MODEL --input-len 48" in result["command"] and result["command"].endswith("--out OUT"), result["command"]
