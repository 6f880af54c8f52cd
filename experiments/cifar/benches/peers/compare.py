"""Times `cifar bench` next to PyTorch and stock Candle, and writes one table.

    cargo build --release -p cifar
    python experiments/cifar/benches/peers/compare.py --torch-python PYTHON --out docs/benchmarks/DATE-MACHINE

PYTHON is an interpreter with PyTorch; everything else needs the standard library alone. The programs take turns, several
rounds of each, so that all see the same machine; the fastest counts. One thread is timed by the processor time of the
program, which other programs on the machine do not lengthen; several threads by wall time.
"""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]
METRICS = ["forward_ms", "backward_ms", "optimizer_ms", "step_ms", "evaluation_ms"]


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def merge(best, report):
    """Keeps the fastest of each time, and everything else of the last run."""
    if best is None:
        return report
    merged = dict(report)
    for metric in METRICS:
        merged[metric] = min(best[metric], report[metric])
    return merged


def commands(args, case, steps):
    threads, width, noise = case
    flags = ["--batch", args.batch, "--width", width, "--threads", threads, "--steps", steps]
    flags += ["--clock", "cpu" if threads == 1 else "wall"]
    flags += [] if noise else ["--no-noise"]
    torch = [args.torch_python, HERE / "torch_vgg.py", *flags]
    return {
        "vmf-candle": [args.cifar, "bench", "--json", *flags],
        "PyTorch, NCHW": [*torch, "--layout", "nchw"],
        "PyTorch, channels last": [*torch, "--layout", "channels_last"],
    }


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() or "unknown"


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def table(results, args):
    lines = [
        "| threads | width | noise | program | forward | backward | optimizer | step | evaluation | memory | step, best PyTorch / this |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, programs in results.items():
        threads, width, noise = case
        torch = min(r["step_ms"] for name, r in programs.items() if name.startswith("PyTorch"))
        for name, report in programs.items():
            times = " | ".join(f"{report[metric]:.1f}" for metric in METRICS)
            lines.append(
                f"| {threads} | {width:g} | {'yes' if noise else 'no'} | {name} | {times} "
                f"| {report['peak_memory_mb']:.0f} | {torch / report['step_ms']:.2f} |"
            )
    return "\n".join(lines)


def ratios(results):
    """The statements that the table supports, each with its number."""

    def step(threads, width, noise, name, metric="step_ms"):
        report = results.get((threads, width, noise), {}).get(name)
        return report and report[metric]

    def torch(threads, width, noise, metric="step_ms"):
        programs = results.get((threads, width, noise), {})
        times = [r[metric] for name, r in programs.items() if name.startswith("PyTorch")]
        return min(times) if times else None

    ours = "vmf-candle"
    rows = []

    def add(text, numerator, denominator):
        if numerator and denominator:
            rows.append(f"| {text} | {numerator / denominator:.2f} |")

    for threads in (1, 2):
        many = "1 thread" if threads == 1 else f"{threads} threads"
        add(f"step, PyTorch's best / ours, {many}", torch(threads, 1.0, True), step(threads, 1.0, True, ours))
        add(
            f"evaluation, PyTorch's best / ours, {many}",
            torch(threads, 1.0, True, "evaluation_ms"),
            step(threads, 1.0, True, ours, "evaluation_ms"),
        )
        add(f"step at width 1/4, PyTorch's best / ours, {many}", torch(threads, 0.25, True), step(threads, 0.25, True, ours))
        add(f"step, with noise and KL / without, {many}", step(threads, 1.0, True, ours), step(threads, 1.0, False, ours))
    add("step, stock Candle / ours, 1 thread", step(1, 1.0, True, "Candle, stock"), step(1, 1.0, True, ours))
    add("step, 1 thread / 2 threads", step(1, 1.0, True, ours), step(2, 1.0, True, ours))
    memory = results.get((1, 1.0, True), {})
    if ours in memory:
        least = min(r["peak_memory_mb"] for name, r in memory.items() if name.startswith("PyTorch"))
        add("peak memory, PyTorch's least / ours, 1 thread", least, memory[ours]["peak_memory_mb"])
    return "\n".join(["| ratio | measured |", "|---|---|", *rows])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar", type=pathlib.Path, default=ROOT / "target/release/cifar")
    parser.add_argument("--torch-python", default="python3")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--no-stock", action="store_true", help="leave stock Candle out: one step takes many seconds")
    args = parser.parse_args()

    cases = [(threads, width, noise) for threads in args.threads for width in (1.0, 0.25) for noise in (True, False)]
    results, raw = {case: {} for case in cases}, []
    for round_ in range(args.rounds):
        for case in cases:
            steps = args.steps if case[1] == 1.0 else 4 * args.steps
            for name, command in commands(args, case, steps).items():
                report = run(command)
                raw.append({"round": round_, "program": name, "case": case, **report})
                results[case][name] = merge(results[case].get(name), report)
                print(f"{round_} {case} {name}: {report['step_ms']:.1f} ms", flush=True)
    if not args.no_stock and (1, 1.0, True) in results:
        command = commands(args, (1, 1.0, True), 1)["vmf-candle"] + ["--ops", "stock"]
        report = run(command)
        raw.append({"round": 0, "program": "Candle, stock", "case": (1, 1.0, True), **report})
        results[(1, 1.0, True)]["Candle, stock"] = report

    version = next(r["version"] for r in raw if "version" in r)
    threads_note = {c[0]: results[c]["vmf-candle"]["peak_gflops"] for c in cases}
    peaks = ", ".join(f"{threads} threads {peak:.0f}" for threads, peak in threads_note.items())
    text = "\n".join(
        [
            f"# VGG16, batch {args.batch}, f32: training step and evaluation",
            "",
            f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC. {processor()}, {platform.system()} {platform.release()}.",
            f"PyTorch {version}; {output_of(['rustc', '--version'])}; commit {output_of(['git', 'rev-parse', '--short', 'HEAD'])}.",
            f"Multiply-adds in registers, GFLOP/s: {peaks}.",
            "",
            f"Fastest of {args.rounds} rounds of {args.steps} steps (four times as many at width 1/4), programs in turn. Times in ms,",
            "memory in MB; 1 thread by processor time, more by wall time. PyTorch's sigma is a constant, and it computes no KL.",
            "",
            "    python experiments/cifar/benches/peers/compare.py "
            f"--rounds {args.rounds} --steps {args.steps} --batch {args.batch}",
            "",
            ratios(results),
            "",
            table(results, args),
            "",
        ]
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "README.md").write_text(text)
    with open(args.out / "raw.jsonl", "w") as file:
        for line in raw:
            file.write(json.dumps(line) + "\n")
    print(text)


if __name__ == "__main__":
    main()
