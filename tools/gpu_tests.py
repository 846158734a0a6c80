#!/usr/bin/env python3
"""Runs the CUDA tests in parallel, plain or under compute-sanitizer, a process a test: what tools/gpu_proof.sh calls.

    tools/gpu_tests.py tests [FILTER]       everything
    tools/gpu_tests.py sanitize [FILTER]    memcheck over ops, models and engine, then racecheck over ops (but NOT_RACED)

FILTER: patterns of gtest, as 'DeviceGemm*:*NaN*'. Under a sanitizer the tests are short (VAYU_TEST_SHORT): fewer repeats and smaller
sizes, of every kind of case. Within --seconds as much runs as can, memcheck before racecheck, long tests ahead. Logs and counts go to
--out: tests.log or memcheck.log and racecheck.log, and proof_tests.json or proof_sanitize.json for tools/gpu_results.py, with the names
of what was skipped, left out, cut or found no time, and of the tests whose reports are explained. The exit code is 0 where all ran to
its end and passed.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from common import gpu_hardware  # noqa: E402

FOUND_ERRORS = 99  # the exit code of a sanitizer with errors
SUITES = ("ops", "model", "engine")
STATES = ("passed", "failed", "skipped", "cut", "not_run")
# Seconds that tests take under memcheck, sixteen at once, where more than five.
SLOW = {
    "CudaExecutor/Overlap.*": 40, "CudaExecutor.Stop*": 40, "DeviceModelCuda/DenseModels.*": 40, "DeviceModelCuda/Experts.*": 35,
    "DeviceModelCuda/SharedExpert.*": 30, "DeviceModelCuda.SharedExpert*": 18, "DeviceModelCuda*": 12,
    "DevicePrefillCuda.SplitOverKeys": 15, "DeviceGemmCuda.*Reference": 14, "StreamLinearCuda.*Reference": 14,
    "StreamExpertsCuda.IsTheReference": 13, "DeviceRopeCuda.Matches*": 13, "DeviceHeadLinearCuda.*": 10, "DeviceDecodeCuda.Last*": 10,
    "DevicePrefillCuda.*": 10, "DeviceMlaCuda.Chunks*": 10, "CombineAddNormCuda.Matches*": 9, "DeviceRouteCuda.*s": 8,
    "StreamExpertsCuda.Launches*": 8, "DeviceSampleCuda.*": 7, "DeviceDecodeCuda.*": 7, "AddNormCuda.*": 7,
}
# The same under racecheck, where more than twenty. The device is shared: a test alone takes a tenth.
SLOW_RACES = {
    "DeviceSampleCuda.EveryPassOnce": 200, "DeviceSampleCuda.Nothing*": 150, "DeviceRouteCuda.OtherShapes": 140,
    "StreamLinearCuda.Every*": 140, "StreamExpertsCuda.Launches*": 95, "StreamExpertsCuda.IsTheReference": 76,
    "DeviceRopeCuda.Matches*": 76, "DeviceGemmCuda.*Reference": 60, "DeviceRouteCuda.*": 55, "DeviceSampleCuda.*": 50,
    "DeviceDecodeCuda.Last*": 43, "CombineAddNormCuda.Matches*": 40, "DeviceMla*": 35, "AddNormCuda.Matches*": 30,
    "DevicePrefillCuda.*": 28, "DeviceDecodeCuda.Ragged*": 29, "DeviceHeadLinearCuda.Is*": 21,
}
# Not under racecheck, and why. memcheck has them all.
FORMS = "racecheck takes minutes for blocks of a cluster that read each other's memory; the kernels are those of EveryFormOnce, at larger sizes"
PASSES = "racecheck takes seconds a drawn row; kernels and passes are those of EveryPassOnce and NothingLeftAfterEdits, at larger sizes"
NOT_RACED = {"StreamLinearCuda.IsTheReference": FORMS, "StreamLinearCuda.PairsAreTheReference": FORMS,
             "DeviceSampleCuda.EqualsReferenceOnRandomTasks": PASSES, "DeviceSampleCuda.LargeVocabulary*": PASSES,
             "DeviceSampleCuda.BrokenRows*": PASSES, "DeviceSampleCuda.ATaskGives*": PASSES, "DeviceSampleCuda.TableKeeps*": PASSES}
# After all others, one at a time (VAYU_ALONE), and not under a sanitizer: why.
ALONE = {"*Alone.*": "fills the device or counts its memory, of which a sanitizer takes some"}
# What counts; racecheck also displays hazards of which it says that they are harmless.
SUMMARY = {"memcheck": r"ERROR SUMMARY: (\d+) error()",
           "racecheck": r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)"}
TOLD = re.compile(r"Failure|FAILED  |check failed|Expected|Which is|actual|^## (exit code [^0]|not ended)|"
                  r"========= (?!COMPUTE-SANITIZER).*\S")

# Reports of racecheck on code that is ordered. All lanes of a consumer warp read what lies beside a stage of a ring; __syncwarp()
# orders their reads before lane 0, which alone arrives at the stage's `empty` barrier (release); the producer's threads wait there
# (acquire) before they write the stage anew. The tool seems to give an arrival the accesses of the arriving thread only: it reports every
# stage that is filled again, whatever the timing. Of StreamExpertsCuda.LaunchesOfAllSizesFollowEachOther it named, launch for launch, 4
# bytes for each row of each tile for each of the two stages filled twice. Other ends than `write` and `read` still fail.
WHY_EXPLAINED = ("all lanes of a warp read it, __syncwarp() orders their reads before the one lane that arrives at the barrier on which the "
                 "producer waits before it writes anew; the tool counts the arriving thread's accesses alone")
Explained = collections.namedtuple("Explained", "write read what")
EXPLAINED = [
    Explained(r"::gather_rows<.* in stream_experts\.cu:", r"::(down_tile|multiply_scaled|add_scaled)<.* in stream_experts\.cu:",
              "scales of the rows of a stage"),
    Explained(r"::stream_weights<.* in stream_experts\.cu:", r"::(consume|gather_rows)<.* in stream_experts\.cu:", "the slot of a tile"),
    # Of one width the reader is inlined and has no line; nothing else in that kernel reads the factors.
    Explained(r"::TileChains<.*>::write\(.* in device_gemm_produce\.cuh:",
              r"::apply_(columns|blocks)<.* in device_gemm_consume\.cuh:|::gemm_kernel<.*\)\+0x\w+( \[\d+ hazards?\])?$",
              "factors of the columns of a stage"),
    Explained(r"::publish_tile\(.* in device_gemm_produce\.cuh:", r" in device_gemm_(consume|store|kernel)\.cuh:", "the facts of a tile"),
]

Job = collections.namedtuple("Job", "tool suite test")
Outcome = collections.namedtuple("Outcome", "state seconds text explained", defaults=[()])


def list_tests(binary):
    """Names without the speed tests, which only time."""
    lines = subprocess.run([binary, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout.splitlines()
    suite, names = "", []
    for line in lines:
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif line.endswith("."):
            suite = line
    return [name for name in names if "Speed" not in name]


def matches(test, patterns):
    return any(fnmatch.fnmatchcase(test, pattern) for pattern in patterns)


def left_out(tests, patterns, reasons):
    """Why each of the tests that `patterns` names is left out by the patterns of `reasons`, where it is."""
    return {test: why for test in tests if matches(test, patterns.split(":"))
            for pattern, why in reasons.items() if fnmatch.fnmatchcase(test, pattern)}


def plan(mode, tests, patterns):
    """Jobs in the order they are begun in."""
    def jobs(tool, suites):
        return [Job(tool, suite, test) for suite in suites for test in tests[suite]
                if matches(test, patterns.split(":")) and not (tool == "racecheck" and matches(test, NOT_RACED))
                and not (tool in SUMMARY and matches(test, ALONE))]

    def seconds(job):
        table = SLOW_RACES if job.tool == "racecheck" else SLOW
        return next((cost for pattern, cost in table.items() if fnmatch.fnmatchcase(job.test, pattern)), 2)

    if mode == "tests":
        return sorted(jobs("plain", SUITES), key=seconds, reverse=True)
    return [job for tool, suites in (("memcheck", SUITES), ("racecheck", ["ops"]))
            for job in sorted(jobs(tool, suites), key=seconds, reverse=True)]


def races(text):
    """For each race that is reported: what EXPLAINED says it is about, None where it says nothing."""
    def explained(kind, place, others):
        met = re.findall(r"and (Read|Write) access at (.*)", others)
        ends = [{kind: place, other: there} for other, there in met if other != kind]
        found = [next((known.what for known in EXPLAINED if re.search(known.write, end["Write"]) and re.search(known.read, end["Read"])), None)
                 for end in ends]
        return ", ".join(sorted(set(found))) if len(ends) == len(met) > 0 and all(found) else None

    return [explained(*race) for race in re.findall(
        r"========= (?:Error|Warning): Race reported between (Read|Write) access at (.*)\n((?:=========     and .*\n)*)", text)]


def judge(job, text, code, ended):
    """passed, failed, skipped or cut (not ended, nothing found until then)."""
    found = re.findall(SUMMARY[job.tool], text) if job.tool in SUMMARY else []
    counts = [int(n or 0) for pair in found for n in pair]
    reported = races(text)
    # All that the summary counts, reports or their pairs, has to be explained: beyond the tool's limit nothing is displayed.
    pairs = len(re.findall(r"=========     and (?:Read|Write) access", text))
    if reported and all(reported) and (sum(counts) in (len(reported), pairs) if ended else not found):
        counts, code = [], 0 if code == FOUND_ERRORS else code
        text = re.sub(r"========= (Error|Warning): Race reported.*", "", text)
    broken = ("[  FAILED  ]" in text or any(counts) or re.search(r"========= (Error|Warning): Race|========= (Potential i|I)nvalid ", text))
    if "terminated before first instrumented API call" in text:  # no device code: no summary, and an exit code of its own
        return "failed" if "[  FAILED  ]" in text or any(counts) else "skipped"
    if not ended:
        return "failed" if broken or job.tool == "plain" else "cut"
    if broken or code != 0 or (job.tool in SUMMARY and not found):
        return "failed"
    return "passed" if "[       OK ]" in text else "skipped"


class Runner:
    def __init__(self, binaries, out, jobs, seconds, limit):
        self.binaries, self.jobs, self.limit = binaries, jobs, limit
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.logs = {tool: open(out / ("tests.log" if tool == "plain" else f"{tool}.log"), "w") for tool in {j.tool for j in jobs}}
        self.outcomes = {}

    def command(self, job):
        sanitizer = ["compute-sanitizer", "--tool", job.tool, "--error-exitcode", str(FOUND_ERRORS), "--print-limit", "1000"]
        return [*(sanitizer if job.tool in SUMMARY else []), self.binaries[job.suite], f"--gtest_filter={job.test}"]

    def run(self, job):
        begin = time.monotonic()
        limit = min(self.limit, self.end - begin)
        if limit < 1:
            return self.keep(job, Outcome("not_run", 0, ""))
        env = os.environ | ({"VAYU_ALONE": "1"} if matches(job.test, ALONE) else {})
        if job.tool in SUMMARY:  # which instruments every kernel that is loaded
            env |= {"VAYU_TEST_SHORT": "1", "CUDA_MODULE_LOADING": "LAZY"}
        process = subprocess.Popen(self.command(job), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", start_new_session=True, env=env)
        ended = True
        try:
            text, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            ended = False
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
        text += f"\n## exit code {process.returncode}" if ended else f"\n## not ended after {limit:.0f} s"
        state = judge(job, text, process.returncode, ended)
        self.keep(job, Outcome(state, time.monotonic() - begin, text, races(text) if state in ("passed", "cut") else ()))

    def keep(self, job, outcome):
        with self.lock:
            self.outcomes[job] = outcome._replace(text="")
            text = outcome.text if len(outcome.text) < 100_000 else outcome.text[:50_000] + "\n...\n" + outcome.text[-50_000:]
            self.logs[job.tool].write(f"## {job.test}: {outcome.state}, {outcome.seconds:.1f} s\n{text}\n")
            self.logs[job.tool].flush()
            if outcome.state == "failed":
                told = [line for line in outcome.text.splitlines() if TOLD.search(line)][:12]
                print(f"FAILED {job.tool} {job.test}", *told, sep="\n    ", flush=True)

    def run_all(self, workers):
        alone = [job for job in self.jobs if matches(job.test, ALONE)]
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            list(pool.map(self.run, [job for job in self.jobs if job not in alone]))
        for job in alone:
            self.run(job)


def sanitizer_works(binary, test):
    """The tool refuses some virtual machines: known before five minutes are gone."""
    command = ["compute-sanitizer", "--tool", "memcheck", binary, f"--gtest_filter={test}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    refused = re.search(r"Device not supported.*", done.stdout + done.stderr)
    return refused[0] if refused else None


def summarise(outcomes):
    """Counts of each suite under each tool, and the names of what was skipped or did not pass."""
    suites = {}
    for job, outcome in outcomes.items():
        name = f"{job.suite}_{'tests' if job.tool == 'plain' else job.tool}"
        entry = suites.setdefault(name, dict.fromkeys(STATES, 0) | {"names": {}})
        entry[outcome.state] += 1
        if outcome.state != "passed":
            entry["names"].setdefault(outcome.state, []).append(job.test)
    return suites


def explained_reports(outcomes):
    """By test: how many reports of racecheck are explained, and what they are about."""
    return {job.test: {"reports": len(outcome.explained), "about": sorted(set(outcome.explained))}
            for job, outcome in sorted(outcomes.items()) if outcome.explained}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["tests", "sanitize"])
    parser.add_argument("filter", nargs="?", default="*")
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build-gpu/bin"))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "build-gpu/out")))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=340, help="for all of it")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one test")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    binaries = {suite: str(options.bin / f"{suite}_cuda_test") for suite in SUITES}
    tests = {suite: list_tests(binary) for suite, binary in binaries.items()}
    if options.mode == "sanitize" and (refusal := sanitizer_works(binaries["ops"], "GatherRowsCuda.MatchesReference")):
        sys.exit(f"compute-sanitizer does not work here: {refusal}")
    jobs = plan(options.mode, tests, options.filter)
    if not jobs:
        sys.exit(f"no test is called {options.filter}")
    runner = Runner(binaries, options.out, jobs, options.seconds - (time.monotonic() - begin), options.limit)
    runner.run_all(options.workers)

    suites = summarise(runner.outcomes)
    slowest = sorted(runner.outcomes.items(), key=lambda item: -item[1].seconds)[:5]
    for name, entry in suites.items():
        print(f"{name}: " + ", ".join(f"{entry[state]} {state.replace('_', ' ')}" for state in STATES))
        for state, names in entry["names"].items():
            print(f"    {state}: {' '.join(sorted(names))}")
    explained = explained_reports(runner.outcomes)
    if explained:
        print("reports explained in tools/gpu_tests.py: " + ", ".join(f"{test} {entry['reports']}" for test, entry in explained.items()))
    print(f"{time.monotonic() - begin:.0f} s; longest: " +
          ", ".join(f"{job.tool} {job.test} {outcome.seconds:.0f} s" for job, outcome in slowest))
    command = ["tools/gpu_proof.sh", options.mode, *([] if options.filter == "*" else [options.filter])]
    record = {"command": shlex.join(command), "hardware": gpu_hardware(), "commit": os.environ.get("COMMIT", "unknown"),
              "seconds": round(time.monotonic() - begin), "suites": suites}
    if options.mode == "sanitize":
        record |= {"explained_races": explained, "not_raced": left_out(tests["ops"], options.filter, NOT_RACED),
                   "not_sanitized": left_out([test for suite in SUITES for test in tests[suite]], options.filter, ALONE)}
    (options.out / f"proof_{options.mode}.json").write_text(json.dumps(record, indent=2) + "\n")
    if sum(entry["skipped"] - entry["passed"] for entry in suites.values()) > 0:
        sys.exit("most tests were skipped: is there a GPU?")
    sys.exit(any(set(entry["names"]) - {"skipped"} for entry in suites.values()))


if __name__ == "__main__":
    main()
