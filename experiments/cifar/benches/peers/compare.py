"""Times `cifar bench` next to PyTorch and stock Candle, and writes one table.

    python3 -m venv .tools/torch && .tools/torch/bin/pip install torch
    python3 experiments/cifar/benches/peers/compare.py --torch-python .tools/torch/bin/python --out docs/benchmarks/DATE-MACHINE

The script builds cifar first. PyTorch needs an interpreter that has it; everything else needs only the
standard library. A round takes some nine minutes on two cores. It can be stopped at any
time: each measurement is appended to OUT/raw.jsonl at once, and the same command continues.
`--seconds 80` stops by itself, `--only quarter stock` leaves other cases out.

The programs alternate in several rounds, so that all of them see the same machine, and the fastest
time of each counts. One thread is timed by processor time, which other programs on the machine do not
lengthen; several threads are timed by wall time.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]
TIMES = ["forward_ms", "backward_ms", "optimizer_ms", "step_ms", "evaluation_ms"]
LEAST = [*TIMES, "wall_step_ms", "plain_step_ms", "peak_memory_mb"]
MOST = ["peak_gflops", "bandwidth"]
WARM_UP = 4
# The cases in which ours is also timed without noise, alternately.
NOISE_COST = ["full", "resnet20", "resnet18"]
CASES = ["full", "quarter", "resnet20", "resnet20, affine", "resnet18", "resnet18, affine", "stock"]
OURS, STOCK = "vmf-candle", "stock Candle"
TORCH = {"PyTorch, NCHW": "nchw", "PyTorch, channels last": "channels_last"}
TORCH_BF16 = {"PyTorch, channels last, bf16 autocast": "channels_last"}
TORCH_PLAIN = {f"{name}, no noise": layout for name, layout in TORCH.items()}


@dataclass(frozen=True)
class Case:
    """What all programs compute: a network and a number of threads."""

    name: str
    threads: int
    width: float
    model: str = "vgg16"
    affine: bool = False

    def __str__(self):
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        affine = ", affine" if self.affine else ""
        return f"{threads}, {self.model} of width {self.width:g}{affine}"


@dataclass(frozen=True)
class Run:
    """One program on one case, in one round."""

    round: int
    case: Case
    program: str
    steps: int

    def command(self, args):
        case = self.case
        flags = ["--model", case.model, "--batch", args.batch, "--width", case.width]
        flags += ["--threads", case.threads, "--steps", self.steps, *(["--affine"] if case.affine else [])]
        flags += ["--warm-up", 1 if self.program == STOCK else WARM_UP]
        flags += ["--clock", "cpu" if case.threads == 1 else "wall"]
        torch = [args.torch_python, HERE / "torch_networks.py", *flags, "--layout"]
        if self.program in TORCH:
            return [*torch, TORCH[self.program]]
        if self.program in TORCH_BF16:
            return [*torch, TORCH_BF16[self.program], "--autocast"]
        if self.program in TORCH_PLAIN:
            return [*torch, TORCH_PLAIN[self.program], "--no-noise"]
        if self.program == STOCK:
            flags += ["--ops", "stock"]
        elif case.name in NOISE_COST:
            flags.append("--noise-cost")
        return [args.cifar, "bench", "--json", *flags]

    def key(self, args):
        return [self.round, self.case.name, self.case.threads, self.program, self.steps, args.batch]


def plan(args):
    """All runs, in order."""
    runs = []
    for round_ in range(args.rounds):
        for threads in args.threads:
            full = Case("full", threads, 1.0)
            quarter = Case("quarter", threads, 0.25)
            everything = [OURS, *TORCH, *TORCH_BF16, *TORCH_PLAIN]
            runs += [Run(round_, full, program, args.steps) for program in everything]
            runs += [Run(round_, quarter, program, 4 * args.steps) for program in [OURS, *TORCH]]
            for model, times in [("resnet20", 2), ("resnet18", 1)]:
                residual = Case(model, threads, 1.0, model)
                programs = [OURS, *TORCH, *TORCH_BF16]
                runs += [Run(round_, residual, program, times * args.steps) for program in programs]
                affine = Case(f"{model}, affine", threads, 1.0, model, True)
                runs += [Run(round_, affine, program, times * args.steps) for program in [OURS, *TORCH]]
        # A step of stock Candle takes seconds, so only a few are timed.
        runs.append(Run(round_, Case("stock", 1, 1.0), STOCK, 2))
    return runs


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() or "unknown"


def build():
    """Builds cifar, so that the measured program is that of the sources."""
    if subprocess.run(["cargo", "build", "--release", "--locked", "-p", "cifar"], cwd=ROOT).returncode != 0:
        sys.exit("cifar could not be built: see above")
    metadata = output_of(["cargo", "metadata", "--format-version", "1", "--no-deps"])
    return pathlib.Path(json.loads(metadata)["target_directory"]) / "release/cifar"


def measure(run, args):
    command = [str(part) for part in run.command(args)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit(f"{command[0]} does not exist: use another --torch-python or --cifar")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def load(path, binary):
    """The measurements so far, which must be of the same build."""
    if not path.exists():
        return []
    records = [json.loads(line) for line in path.read_text().splitlines() if line]
    if any(record["binary"] != binary for record in records):
        sys.exit(f"{path} holds measurements of another build of cifar: choose another folder, or remove the file")
    return records


def best(records):
    """The fastest times and the least memory of each program on each case."""
    results = {}
    for record in records:
        _, name, threads, program, *_ = record["run"]
        report = results.setdefault((name, threads, program), dict(record["report"]))
        for metrics, better in [(LEAST, min), (MOST, max)]:
            for metric in metrics:
                if report.get(metric) is not None:
                    report[metric] = better(report[metric], record["report"][metric])
        if record["report"].get("noise_cost"):
            report.setdefault("noise_costs", []).append(record["report"]["noise_cost"])
    return results


def ratios(results):
    """The claimed ratios with their targets and measurements."""

    def ours(name, threads, metric="step_ms"):
        return results.get((name, threads, OURS), {}).get(metric)

    def torch(name, threads, metric="step_ms", programs=TORCH):
        found = [results[key][metric] for key in results if key[:2] == (name, threads) and key[2] in programs]
        return min(found) if found else None

    rows = []

    def add(text, over, under, target, at_least=True):
        if over and under:
            ratio = over / under
            met = ratio >= target if at_least else ratio <= target
            sign = ">=" if at_least else "<="
            rows.append(f"| {text} | {sign} {target:g} | {ratio:.2f} | {'yes' if met else '**no**'} |")

    for threads in sorted({key[1] for key in results}):
        many = "1 thread" if threads == 1 else f"{threads} threads"
        add(f"step: PyTorch's best layout / ours, {many}", torch("full", threads), ours("full", threads), 2)
        plain = [torch("full", threads, programs=TORCH_PLAIN), ours("full", threads, "plain_step_ms")]
        add(f"the same without noise on either side, {many}", *plain, 2)
        add(f"step at width 1/4: PyTorch's best / ours, {many}", torch("quarter", threads), ours("quarter", threads), 1.5)
        evaluation = [side("full", threads, "evaluation_ms") for side in (torch, ours)]
        add(f"evaluation: PyTorch's best / ours, {many}", *evaluation, 2)
        costs = ours("full", threads, "noise_costs")
        cost = statistics.median(costs) if costs else None
        add(f"step: noise and KL / neither, {many}", cost, 1.0, 1.05, False)
        bf16 = torch("full", threads, programs=TORCH_BF16)
        add(f"step: PyTorch's bf16 autocast / ours in f32, {many}", bf16, ours("full", threads), 2)
        for model in ("resnet20", "resnet18"):
            for metric, what in (("step_ms", "step"), ("evaluation_ms", "evaluation")):
                sides = [side(model, threads, metric) for side in (torch, ours)]
                add(f"{model}, {what}: PyTorch's best layout / ours, {many}", *sides, 2)
            costs = ours(model, threads, "noise_costs")
            cost = statistics.median(costs) if costs else None
            add(f"{model}, step: noise and KL / neither, {many}", cost, 1.0, 1.05, False)
            affine = [ours(f"{model}, affine", threads), ours(model, threads)]
            add(f"{model}, step: gain and shift / neither, {many}", *affine, 1.05, False)
        memory = [side("full", threads, "peak_memory_mb") for side in (ours, torch)]
        add(f"peak memory: ours / PyTorch's least, {many}", *memory, 1, False)
    stock = results.get(("stock", 1, STOCK), {}).get("step_ms")
    add("step: stock Candle / ours, 1 thread", stock, ours("full", 1), 10)
    wall = [ours("full", threads, "wall_step_ms") for threads in (1, 2)]
    add("step by wall time: 1 thread / 2 threads, ours", *wall, 1.8)
    # The limits of the machine: the targets for two threads assume two full cores.
    for text, metric in [("multiply-adds in registers", "peak_gflops"), ("memory read and written", "bandwidth")]:
        two, one = (ours("full", threads, metric) for threads in (2, 1))
        if two and one:
            rows.append(f"| {text}: 2 threads / 1 thread | | {two / one:.2f} | |")
    return "\n".join(["| ratio | target | measured | met |", "|---|---|---|---|", *rows])


def table(results, cases):
    lines = [
        "| threads | network | width | program | forward | backward | optimizer | step | without noise, KL | evaluation | memory |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        for program in [OURS, *TORCH, *TORCH_BF16, *TORCH_PLAIN, STOCK]:
            report = results.get((case.name, case.threads, program))
            if report:
                metrics = [*TIMES[:4], "plain_step_ms", *TIMES[4:]]
                times = [report.get(metric) for metric in metrics]
                times = " | ".join("" if time is None else f"{time:.1f}" for time in times)
                lines.append(
                    f"| {case.threads} | {case.model}{', affine' if case.affine else ''} | {case.width:g} | {program} | {times} | {report['peak_memory_mb']:.0f} |"
                )
    return "\n".join(lines)


def processor():
    """The name of the processor, with family and model, since the name may be generic in a virtual machine."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    info = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]))
    name = info.get("model name", "unknown processor")
    return f"{name} (family {info.get('cpu family')}, model {info.get('model')}), {os.cpu_count()} cores"


def write_readme(args, records, runs):
    results = best(records)
    cases = list(dict.fromkeys(run.case for run in runs))

    def machine(metric):
        found = {case.threads: results.get(("full", case.threads, OURS), {}).get(metric) for case in cases}
        found = [f"{value:.0f} on {threads}" for threads, value in sorted(found.items()) if value]
        return ", ".join(found) or "not measured"

    measured = {(name, threads) for name, threads, _ in results}
    networks = dict.fromkeys(case.model for case in cases if (case.name, case.threads) in measured)
    instructions = {record["report"].get("instructions") for record in records} - {None}
    versions = {record["report"]["version"] for record in records if "version" in record["report"]}
    commits = ", ".join(sorted({record["commit"] for record in records}))
    text = [
        f"# Training step and evaluation of {', '.join(networks)}, batch {args.batch}",
        "",
        f"{max(record['date'] for record in records)} UTC. {processor()}, {platform.system()} {platform.release()}.",
        f"PyTorch {', '.join(sorted(versions)) or 'not measured'}; {output_of(['rustc', '--version'])}; commit {commits}.",
        f"Our kernels with {', '.join(sorted(instructions)) or 'what is not known'}. By threads: multiply-adds in registers {machine('peak_gflops')} (GFLOP/s),",
        f"memory read and written {machine('bandwidth')} (GB/s).",
        "",
        f"Fastest of {args.rounds} round{'s' if args.rounds > 1 else ''} of {args.steps} steps (four times as many at width 1/4, twice for ResNet-20) after {WARM_UP} that warm up, of stock",
        "Candle two after one; programs in turn. Times in ms, each the fastest of its kind, so that parts need not add up; memory",
        "in MB; 1 thread by processor time, more by wall time. Evaluation is a forward pass with running statistics and noise.",
        "Steps with and without noise and KL take turns in one run, and their ratio is the median over pairs of steps, then over",
        "rounds. `raw.jsonl` has every measurement.",
        "",
        "- PyTorch runs eagerly, its sigma is a constant, and it computes no KL. Noise drawn by `randn` is part of its time.",
        "- Ours convolves by Winograd's algorithm where it is faster (error at most 2e-5 of the largest output, tested) and keeps",
        "  freed memory for the next step by mimalloc; PyTorch chooses its algorithms itself and uses the system's allocator.",
        "- Memory is the most that the process held during training, with its libraries: PyTorch's are several hundred MB.",
        "- Targets are what the project set out to reach.",
        "",
        "      python3 experiments/cifar/benches/peers/compare.py --torch-python PYTHON --out FOLDER "
        f"--rounds {args.rounds} --steps {args.steps} --batch {args.batch} --threads {' '.join(map(str, args.threads))}",
        "",
        ratios(results),
        "",
        table(results, cases),
        "",
    ]
    (args.out / "README.md").write_text("\n".join(text))
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=pathlib.Path, help="the program; built if not given")
    parser.add_argument("--torch-python", default="python3", help="an interpreter that has torch")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the folder to write to, or to continue in")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of a run at full width")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=CASES, help="cases to measure")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no measurement that would end after this time")
    args = parser.parse_args()
    if args.cifar is None:
        args.cifar = build()

    args.out.mkdir(parents=True, exist_ok=True)
    raw = args.out / "raw.jsonl"
    binary = hashlib.sha256(args.cifar.read_bytes()).hexdigest()[:16]
    commit = output_of(["git", "describe", "--always", "--dirty", "--exclude=*"])
    records = load(raw, binary)
    runs = plan(args)
    done = [record["run"] for record in records]
    wanted = [run for run in runs if not args.only or run.case.name in args.only]
    left = [run for run in wanted if run.key(args) not in done]
    start = time.monotonic()
    for number, run in enumerate(left):
        took = {tuple(record["run"][1:]): record["seconds"] for record in records}
        known = [took.get(tuple(later.key(args)[1:]), 10.0) for later in left[number:]]
        if time.monotonic() - start + known[0] > args.seconds:
            print(f"stopped: {len(left) - number} of {len(wanted)} measurements are left, and the same command continues")
            break
        began = time.monotonic()
        report = measure(run, args)
        now = datetime.datetime.now(datetime.timezone.utc)
        record = {
            "run": run.key(args),
            "report": report,
            "seconds": round(time.monotonic() - began, 1),
            "date": f"{now:%Y-%m-%d %H:%M}",
            "commit": commit,
            "binary": binary,
        }
        records.append(record)
        with raw.open("a") as file:
            file.write(json.dumps(record) + "\n")
        place = len(wanted) - len(left) + number + 1
        print(
            f"[{place}/{len(wanted)}] {run.case}, {run.program}: {report['step_ms']:.1f} ms; "
            f"about {sum(known[1:]):.0f} s left",
            flush=True,
        )
    if records:
        print("\n" + write_readme(args, records, runs))


if __name__ == "__main__":
    main()
