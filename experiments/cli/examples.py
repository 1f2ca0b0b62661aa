"""Two examples of every verb, which its `--help` ends with, and the page that says more.

Tests parse them all.
"""

from __future__ import annotations

Examples = tuple[tuple[str, str], ...]

PAGES = {
    "simulate": "how-to/many_steps.md",
    "compare": "how-to/side_by_side.md",
    "plan": "how-to/plan.md",
    "recommend": "how-to/recommend.md",
    "check": "how-to/check.md",
    "check-strategy": "how-to/own_strategy.md",
    "whatif": "how-to/whatif.md",
    "explain": "reference/cli.md",
    "scale": "reference/cli.md",
    "sweep": "how-to/sweeps.md",
    "replay": "how-to/sweeps.md",
    "trace": "reference/traces.md",
    "replay-ops": "how-to/recorded_jobs.md",
    "campaign": "how-to/campaign.md",
    "reproduce": "explanation/bytescale.md",
    "validate": "explanation/validation.md",
    "calibrate": "explanation/calibration.md",
    "scenarios": "reference/scenarios.md",
    "schema": "reference/scenarios.md",
    "catalog": "reference/catalog.md",
    "report": "how-to/report.md",
    "fabric": "explanation/fabric.md",
    "flows": "explanation/flows.md",
    "import": "how-to/own_configuration.md",
    "export": "how-to/own_configuration.md",
    "new": "how-to/own_configuration.md",
    "doctor": "reference/cli.md",
    "completion": "reference/cli.md",
}
"""Where the documentation says more."""

EXAMPLES: dict[str, Examples] = {
    "simulate": (
        (
            "hdpsim simulate quickstart-8gpu --batches 2 --tokens 300B",
            "a step, and what 300 billion tokens take",
        ),
        (
            "hdpsim simulate mine.yaml --set layout.tp=4 --timeline step.json.gz",
            "every operation, for Perfetto",
        ),
    ),
    "compare": (
        (
            "hdpsim compare mine.yaml --batches 4 --out runs/mine",
            "static meshes against HDP, with tables and plots",
        ),
        (
            'hdpsim compare mine.yaml --strategies "static(cp=8),static(cp=32),hdp-opt"',
            "two static meshes and HDP",
        ),
    ),
    "plan": (
        ("hdpsim plan mine.yaml --budget 30s -o best.yaml", "the best layout as a scenario"),
        (
            "hdpsim plan mine.yaml --set data.context=64K --gpus 512,1024 --megatron flags.sh",
            "flags for Megatron-Core",
        ),
    ),
    "recommend": (
        ('hdpsim recommend mine.yaml --target "300B tokens in 30 days"', "how many of these GPUs"),
        (
            'hdpsim recommend mine.yaml --target "1T tokens in 60 days" --gpu h100,b200 --objective usd',
            "the cheapest type",
        ),
    ),
    "check": (
        ("hdpsim check mine.yaml --batches 2", "what wastes time, and which change helps"),
        (
            "hdpsim check mine.yaml --tokens 300B --out runs/check",
            "the same in money, with the changed scenario",
        ),
    ),
    "check-strategy": (
        ("hdpsim check-strategy my_module:my_strategy", "on every kind of batch, up to 16,384 ranks"),
        ("hdpsim check-strategy my_module:my_strategy --ranks 64 --json", "a quick look, as data"),
    ),
    "scale": (
        ("hdpsim scale mine.yaml --gpus 1024,2048,4096 --batches 2", "the same batch on more GPUs"),
        (
            "hdpsim scale mine.yaml --gpus 1024,4096 --weak --strategies static,hdp-opt --out runs/scale",
            "batch grows, too",
        ),
    ),
    "whatif": (
        (
            "hdpsim whatif mine.yaml --set cluster.node.nic=800Gbps --set layout.tp=4,layout.pp=2",
            "alone and together",
        ),
        ("hdpsim whatif mine.yaml --tornado 10%", "which inputs matter most"),
    ),
    "explain": (
        ("hdpsim explain mine.yaml", "every second of the step"),
        ("hdpsim explain mine.yaml --term tp_all_gather", "one term: formula, inputs, constants, sources"),
    ),
    "sweep": (
        ("hdpsim sweep sweep.yaml --dry-run", "how many simulations, and about how long"),
        ("hdpsim sweep sweep.yaml --workers 8 --out runs/sweep", "run it; a second time costs nothing"),
    ),
    "replay": (
        (
            "hdpsim replay mine.yaml --trace lengths.parquet --steps 100",
            "the first hundred steps of a data set",
        ),
        ("hdpsim replay mine.yaml --trace lengths.parquet --until-ci 1%", "until the mean is known to 1 %"),
    ),
    "trace": (
        ("hdpsim trace stats lengths.csv", "who holds the sequences, and who holds the tokens"),
        (
            "hdpsim trace synth --distribution byted-mixture --tokens 32M -o synthetic.parquet",
            "lengths from published shares",
        ),
    ),
    "trace stats": (
        ("hdpsim trace stats lengths.csv --column tokens", "of a column"),
        ("hdpsim trace stats debian-code --plot lengths", "of a shipped trace, with a plot"),
    ),
    "trace check": (
        ("hdpsim trace check lengths.csv", "is every length usable?"),
        ("hdpsim trace check lengths.parquet --column tokens --json", "of a column, as data"),
    ),
    "trace synth": (
        (
            "hdpsim trace synth --distribution byted-mixture --count 10000 -o synthetic.csv",
            "so many sequences",
        ),
        (
            "hdpsim trace synth --distribution shares.yaml --tokens 32M --seed 1 -o synthetic.parquet",
            "shares of one's own",
        ),
    ),
    "replay-ops": (
        ("hdpsim replay-ops operations.parquet --meta job.yaml", "what slowed this job down"),
        ("hdpsim replay-ops operations.csv --meta job.yaml --out runs/job", "with tables and plots"),
    ),
    "campaign": (
        ("hdpsim campaign campaign-llama3-16k --duration 30d --seeds 4", "thirty days with their failures"),
        (
            "hdpsim campaign mine.yaml --tokens 300B --set campaign.checkpoint_interval=30min",
            "until it has the tokens",
        ),
    ),
    "reproduce": (
        (
            "hdpsim reproduce bytescale --batches 2 --out runs/bytescale",
            "every cell beside its published value",
        ),
        ("hdpsim reproduce megascale --json", "as data"),
    ),
    "validate": (
        ("hdpsim validate runs.csv --out runs/mine", "my own runs, predicted"),
        ("hdpsim validate --memory", "peak memory of the published runs"),
    ),
    "calibrate": (
        ("hdpsim calibrate runs.csv --gpu h100 -o mine.yaml", "constants from my own runs"),
        (
            "hdpsim calibrate --kernels kernels.csv --no-runs --gpu h100 -o mine.yaml",
            "from measured kernels alone",
        ),
    ),
    "scenarios": (
        ("hdpsim scenarios", "what is shipped"),
        ("hdpsim scenarios quickstart-8gpu --set layout.tp=4 > mine.yaml", "one in full, to begin with"),
    ),
    "schema": (
        ("hdpsim schema -o hdpsim.schema.json", "for an editor"),
        ("hdpsim schema", "print it"),
    ),
    "catalog": (
        ("hdpsim catalog gpus", "peak rates, memory, links"),
        ("hdpsim catalog software megatron-core", "what a stack does by default, and who says so"),
    ),
    "fabric": (
        ("hdpsim fabric mine.yaml", "rate and latency at every distance"),
        ("hdpsim fabric llama3-24k --gpus 1024 --out fabric.svg", "a drawing"),
    ),
    "flows": (
        ("hdpsim flows mine.yaml --gpus 128 --pattern all-to-all", "times, hottest links, who met whom"),
        (
            "hdpsim flows llama3-24k --gpus 512 --set cluster.fabric.routing=ecmp",
            "with up-links chosen by hashes",
        ),
    ),
    "import": (
        ("hdpsim import pretrain.sh -o mine.yaml", "flags of Megatron-LM as a scenario"),
        (
            "hdpsim import config.json --cluster hgx-h100-80gb --gpus 64 -o mine.yaml",
            "a model of Hugging Face",
        ),
    ),
    "export": (
        ("hdpsim export mine.yaml --to megatron-core -o flags.sh", "flags to run it with"),
        ("hdpsim export mine.yaml --to torchtitan", "print a configuration of torchtitan"),
    ),
    "report": (
        (
            "hdpsim report runs/demo",
            "runs/demo.html, of what `hdpsim compare demo-8x22b-12k --out runs/demo` wrote",
        ),
        ("hdpsim report runs/demo -o demo.html", "somewhere else"),
    ),
    "new": (
        ("hdpsim new -o mine.yaml", "five questions, and a layout that fits"),
        (
            "hdpsim new -o mine.yaml --model llama-3-8b --gpu h100 --gpus 64 --lengths lengths.csv "
            "--context 128K --batch 4M --framework none",
            "all answered",
        ),
    ),
    "doctor": (
        ("hdpsim doctor", "is this installation sound?"),
        ("hdpsim doctor --json", "for a bug report"),
    ),
    "completion": (
        ('eval "$(hdpsim completion bash)"', "in ~/.bashrc"),
        ("hdpsim completion fish > ~/.config/fish/completions/hdpsim.fish", "for fish"),
    ),
}
"""Commands and what they are for."""


def epilog(verb: str) -> str:
    """What `--help` of a verb ends with."""
    page = PAGES.get(verb.partition(" ")[0])
    lines = [f"  {command}\n      {what}" for command, what in EXAMPLES.get(verb, ())]
    parts = ["\b\nExamples:\n" + "\n".join(lines)] if lines else []
    parts += (
        [f"\b\nExit codes: 0 fine, 2 wrong input, 3 it cannot run, 130 interrupted.\nMore: docs/{page}"]
        if page
        else []
    )
    return "\n\n".join(parts)
