"""Configurations of other tools, as people write them, and what becomes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hdpsim.cost_models.layout.pipeline_cut import stages_of
from hdpsim.errors import InfeasibleError, UserInputError
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.other_tools.import_report import imported_text
from hdpsim.experiments.other_tools.importer import FORMATS, Imported, UserAnswers, import_file
from hdpsim.experiments.other_tools.options import Option
from hdpsim.experiments.other_tools.table import tool
from hdpsim.experiments.other_tools.translate import read_options
from hdpsim.experiments.scenario.keys import layout_keys
from hdpsim.experiments.scenario.scenario import load_scenario

LLAMA = """#!/bin/bash
# Pretrain Llama 3 70B
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=8
PP=${PP:-4}
SEQ=$((8 * 1024))
NNODES=${SLURM_NNODES:-16}
DISTRIBUTED_ARGS=(
    --nproc_per_node 8
    --nnodes $NNODES
    --master_addr $MASTER_ADDR   # of the job
)
GPT_ARGS="--num-layers 80 --hidden-size 8192 \\
  --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention --num-query-groups 8 \\
  --seq-length $SEQ --max-position-embeddings $SEQ --normalization RMSNorm --swiglu --disable-bias-linear \\
  --position-embedding-type rope --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0"
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size $PP
    --num-layers-per-virtual-pipeline-stage 5
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    $GPT_ARGS "${MODEL_PARALLEL_ARGS[@]}" \\
    --bf16 --micro-batch-size 2 --global-batch-size=512 \\
    --vocab-size 128256 --make-vocab-size-divisible-by 16 --recompute-granularity selective \\
    --lr 1.5e-4 --train-iters 1000 --save $CKPT --log-interval 10 --frobnicate 3 \\
    --data-path "$DATA/my text" --decoder-first-pipeline-num-layers 19 2>&1 | tee log.txt
"""
FLAGS = (
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --vocab-size 1024 --seq-length 2048 --bf16 "
)
ASKED = UserAnswers(cluster="h100", gpus=8)


def imported(folder: Path, text: str, name: str = "run.sh", asked: UserAnswers = ASKED) -> Imported:
    path = folder / name
    path.write_text(text)
    return import_file(str(path), asked=asked)


def layout(found: Imported) -> dict[str, Any]:
    return dict(found.document["layout"])


class TestMegatron:
    def test_a_script_of_a_real_run(self, tmp_path: Path) -> None:
        found = imported(tmp_path, LLAMA, asked=UserAnswers(cluster="h100"))
        assert found.document["model"] == "llama-3-70b"
        assert found.document["gpus"] == 16 * 8
        expected = {"tp": 8, "pp": 4, "cp": 1, "vpp": 4, "schedule": "interleaved", "sequence_parallel": True}
        expected |= {
            "sharding": "zero1",
            "dp_overlap": True,
            "gather_overlap": True,
            "recompute": "selective",
        }
        expected |= {"precision": "bf16", "fused_loss": False, "prefetch_gather": False}
        assert layout(found) == {**expected, "rank_capacity": "16384 tokens"}  # 2 x 8192 on one rank
        assert found.document["data"] == {
            "lengths": "8192 tokens",
            "context": "16384 tokens",
            "batch": "512 sequences",
        }
        assert found.unknown == ("--frobnicate",)
        assert "--lr" in found.without_effect
        assert [words.partition(":")[0] for words in found.not_modelled] == [
            "--decoder-first-pipeline-num-layers"
        ]

    def test_the_text_is_a_scenario(self, tmp_path: Path) -> None:
        found = imported(tmp_path, LLAMA, asked=UserAnswers(cluster="h100"))
        path = tmp_path / "scenario.yaml"
        path.write_text(imported_text(found))
        assert "# --tensor-model-parallel-size" in path.read_text()
        again = load_scenario(path)
        assert found.scenario is not None
        assert again.layout == found.scenario.layout
        assert again.model == found.scenario.model

    def test_flags_alone_and_the_vocabulary_is_padded_for_the_group(self, tmp_path: Path) -> None:
        text = (
            FLAGS.replace("1024 --seq", "1000 --seq")
            + "--micro-batch-size 1\n--tensor-model-parallel-size 2\n"
        )
        found = imported(tmp_path, text)
        assert found.document["model"]["vocab"] == 1024  # 1000 to a multiple of 128 x 2
        assert found.document["model"]["ffn_hidden"] == 4096  # 4 x hidden, without --swiglu
        assert found.document["model"]["dropout"] is True  # 0.1 unless told otherwise
        assert found.document["data"]["batch"] == "4 sequences"  # one for each of 8 / 2 groups

    @pytest.mark.parametrize(
        ("more", "kept"),
        [
            ("--exp-avg-dtype fp16 --exp-avg-sq-dtype bf16", 8),
            ("--exp-avg-dtype fp32 --exp-avg-sq-dtype bf16", 10),
            ("--exp-avg-dtype fp32", 12),
            ("--exp-avg-dtype bf16 --exp-avg-sq-dtype fp8", 7),
            ("--exp-avg-sq-dtype fp8", 9),
        ],
    )
    def test_moments_of_adam_have_one_two_or_four_bytes(self, tmp_path: Path, more: str, kept: int) -> None:
        found = imported(tmp_path, FLAGS + f"--micro-batch-size 1\n--use-precision-aware-optimizer\n{more}\n")
        assert found.document["layout"]["optimizer_bytes"] == kept  # and a 32-bit weight of 4

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ("--fp16", "contradict each other"),
            ("--overlap-param-gather", "with --overlap-grad-reduce only"),
            ("--tensor-model-parallel-size 2 --tensor-model-parallel-size 4", "4 contradicts 2"),
            ("--recompute-granularity some", "some is not one of full, selective"),
            ("--recompute-granularity full", "full needs --recompute-method"),
            ("--pipeline-model-parallel-size $STAGES", "$STAGES is not defined in the file"),
            ("--pipeline-model-parallel-size $(nproc)", "is known when the script runs"),
            ("--pipeline-model-parallel-size many", "expected a whole number, got 'many'"),
            ("--pipeline-model-parallel-size", "expected a value, got true"),
            ("--pipeline-model-parallel-size 0", "expected a whole number of at least 1, got 0"),
            ("--global-batch-size 0", "expected a whole number of at least 1, got 0"),
            ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "do not divide"),
            ("--num-experts 8 --moe-layer-freq ([1]*2+[0]*2)", "dense layers are not the first ones"),
            (
                "--global-batch-size 12",
                "12 sequences do not divide by micro-batch x data-parallel groups = 1 x 8",
            ),
            ("--data-path 'x", "nobody closes the quote '"),
        ],
    )
    def test_contradictions_and_what_nobody_can_know_are_errors(
        self, tmp_path: Path, more: str, words: str
    ) -> None:
        with pytest.raises(UserInputError) as error:
            imported(tmp_path, f"{FLAGS} --micro-batch-size 1 {more}\n")
        assert words in str(error.value)
        assert "run.sh" in str(error.value)

    def test_what_cannot_be_simulated_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InfeasibleError, match="32 bits"):
            imported(tmp_path, FLAGS.replace("--bf16", ""))

    def test_heads_within_servers_and_rings_between_them(self, tmp_path: Path) -> None:
        flags = f"{FLAGS} --micro-batch-size 1 --context-parallel-size 8 --cp-comm-type a2a+p2p"
        found = imported(tmp_path, f"{flags} --hierarchical-context-parallel-sizes 4 2")
        assert found.document["layout"]["cp_kind"] == "hybrid"
        assert any("share heads" in said for said in found.not_modelled)

    def test_what_stands_inside_a_condition_is_not_taken_for_granted(self, tmp_path: Path) -> None:
        text = f'TP=2\nif [ "$1" = big ]; then\n  TP=4\nfi\npython x.py {FLAGS} --micro-batch-size 1 '
        with pytest.raises(UserInputError, match="set inside a condition or a loop"):
            imported(tmp_path, text + "--tensor-model-parallel-size $TP")

    def test_a_command_in_a_variable_and_words_that_only_a_run_knows(self, tmp_path: Path) -> None:
        text = f"""
OPTIONS=" {FLAGS} --micro-batch-size 1 --data-path $DATA --save $1"
if [ -n "$WANDB" ]; then
  OPTIONS="$OPTIONS --wandb-project x"
fi
COMMAND="python pretrain.py $OPTIONS --sequence-parallel $MORE --tensor-model-parallel-size 2 ${{EVEN_MORE}}"
srun sh -c "$COMMAND"
"""
        found = imported(tmp_path, text)
        assert (layout(found)["tp"], layout(found)["sequence_parallel"]) == (2, True)
        assert set(found.unknown) == {
            "(after --tensor-model-parallel-size: $EVEN_MORE is not defined in the file)",
            "(after --sequence-parallel: $MORE is not defined in the file)",
        }
        with pytest.raises(
            UserInputError, match=r"--bf16: it is set inside a condition or a loop \(line 4\)"
        ):
            imported(tmp_path, text.replace("--bf16", "").replace("--wandb-project x", "--bf16"))

    def test_dynamic_context_parallelism_in_both_spellings(self, tmp_path: Path) -> None:
        new = "--dynamic-context-parallel --min-dynamic-context-parallel-size 1 --calculate-per-token-loss "
        new += "--sequence-packing-scheduler default_dynamic_cp"
        for spelling in (new, "--hybrid-context-parallel"):
            found = imported(
                tmp_path, f"{FLAGS} --micro-batch-size 1 --max-seqlen-per-dp-cp-rank 512 {spelling}"
            )
            assert found.document["strategy"] == {"name": "hdp-opt"}
            assert layout(found)["rank_capacity"] == "512 tokens"
            assert "cp" not in layout(found)
            assert "the full length" in found.assumed[0]

    def test_experts_and_latent_attention(self, tmp_path: Path) -> None:
        text = f"""{FLAGS} --micro-batch-size 1 --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 512 \\
          --ffn-hidden-size 2816 --moe-layer-freq "([0]*1+[1]*3)" --moe-shared-expert-intermediate-size 512 \\
          --multi-latent-attention --q-lora-rank 256 --kv-lora-rank 128 --qk-head-dim 64 --qk-pos-emb-head-dim 32 \\
          --v-head-dim 64 --swiglu --moe-grouped-gemm --moe-token-dispatcher-type alltoall \\
          --expert-model-parallel-size 4 --tensor-model-parallel-size 2 --moe-router-force-load-balancing
        """
        found = imported(tmp_path, text)
        model = found.document["model"]
        assert (model["experts"], model["top_k"], model["ffn_hidden"]) == (16, 4, 512)
        assert (model["dense_layers"], model["dense_ffn_hidden"], model["shared_expert_ffn"]) == (
            1,
            2816,
            512,
        )
        assert model["latent_attention"]["qk_nope_head_dim"] == 64
        assert layout(found)["etp"] == 2  # as --tensor-model-parallel-size, unless told otherwise
        assert layout(found)["expert_kernels"] == "separate"
        assert layout(found)["expert_routing"] == "even"

    @pytest.mark.parametrize(
        ("more", "expected"),
        [
            ("--transformer-impl local", {"attention_kernel": "unfused"}),
            ("--transformer-impl local --attention-backend flash", {"attention_kernel": "unfused"}),
            ("--transformer-impl local --use-legacy-models --use-flash-attn", {"attention_kernel": "flash"}),
            ("--checkpoint-activations", {"recompute": "full"}),
            ("--activations-checkpoint-method block", {"recompute": "full"}),
            ("--deepspeed --zero-stage 0", {"sharding": "zero1", "attention_kernel": "unfused"}),
            (
                "--deepspeed --zero-stage 3 --use-flash-attn",
                {"sharding": "zero3", "attention_kernel": "flash"},
            ),
            ("--pp-partition-method 'type:transformer|embedding'", {"embedding_layers": True}),
        ],
    )
    def test_words_of_older_releases_and_of_megatron_deepspeed(
        self, tmp_path: Path, more: str, expected: dict[str, object]
    ) -> None:
        found = imported(tmp_path, f"{FLAGS}--position-embedding-type alibi --pad-vocab-size-to 1280 {more}")
        assert expected.items() <= layout(found).items()
        assert found.document["model"]["vocab"] == 1280
        assert not found.unknown

    def test_what_a_scenario_has_no_key_for_is_said(self, tmp_path: Path) -> None:
        experts = "--num-experts 8 --moe-expert-capacity-factor 1.25 --moe-token-dispatcher-type alltoall"
        for more in (experts, "--optimizer muon"):
            found = imported(tmp_path, f"{FLAGS}{more}")
            assert any(more.split()[-3 if more is experts else -1] in said for said in found.not_modelled)
        assert not imported(tmp_path, f"{FLAGS}--optimizer adam").not_modelled

    def test_what_is_missing_is_said_and_nothing_is_guessed(self, tmp_path: Path) -> None:
        found = imported(
            tmp_path, "--tensor-model-parallel-size 2 --bf16 --num-layers 3", asked=UserAnswers()
        )
        assert list(found.missing) == ["model", "cluster", "gpus", "data.context", "data.batch"]
        assert "hidden, heads, vocab, ffn_hidden" in found.missing["model"]
        assert found.scenario is None


class TestNemoAndBridge:
    NEMO = """
trainer: {num_nodes: 4, devices: 8, precision: bf16, max_steps: 100}
model:
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 5
  encoder_seq_length: 8192
  num_layers: 80
  hidden_size: 8192
  activation: fast-swiglu
  sequence_parallel: true
  overlap_p2p_comm: true
  ub_tp_comm_overlap: true
  magic: 3
  optim: {name: distributed_fused_adam, lr: 1e-4, overlap_grad_sync: true, overlap_param_sync: false}
"""

    def test_a_recipe_of_nemo(self, tmp_path: Path) -> None:
        found = imported(tmp_path, self.NEMO, "nemo.yaml", UserAnswers(cluster="h100", model="llama-3-70b"))
        assert found.format == "nemo"
        assert found.document["gpus"] == 32
        expected = {
            "tp": 4,
            "pp": 4,
            "vpp": 5,
            "schedule": "interleaved",
            "tp_overlap": True,
            "sharding": "zero1",
        }
        assert expected.items() <= layout(found).items()
        assert layout(found)["gather_overlap"] is False
        assert found.unknown == ("model.magic",)
        assert found.assumed == ("layout.cp: 1: the file leaves it to its recipe",)

    def test_the_model_that_is_named_must_be_the_one_of_the_file(self, tmp_path: Path) -> None:
        with pytest.raises(UserInputError, match="hidden 8192 contradicts 4096 of llama-3-8b"):
            imported(
                tmp_path,
                self.NEMO.replace("80", "32"),
                "n.yaml",
                UserAnswers(cluster="h100", model="llama-3-8b"),
            )

    def test_overrides_of_a_recipe_of_bridge(self, tmp_path: Path) -> None:
        text = """
model_config: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, seq_length: 8192}
train_config: {global_batch_size: 256, micro_batch_size: 4, train_iters: 10}
ddp_config: {use_distributed_optimizer: true, grad_reduce_in_fp32: false}
mixed_precision: bf16_with_fp8_current_scaling_mixed
surprise: {key: 1}
"""
        found = imported(
            tmp_path, text, "bridge.yaml", UserAnswers(cluster="h100", gpus=64, model="llama-3-8b")
        )
        assert found.format == "bridge"
        expected = {"tp": 2, "pp": 2, "sharding": "zero1", "gradient_bytes": 2, "precision": "fp8"}
        assert {**expected, "fp8_scaling": "tensor"}.items() <= layout(found).items()
        assert found.unknown == ("surprise.key",)

    def test_a_whole_configuration_as_dumped(self, tmp_path: Path) -> None:
        text = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.mla_provider.MLAModelProvider
  num_layers: 61
  hidden_size: 7168
  num_attention_heads: 128
  num_query_groups: 128
  ffn_hidden_size: 18432
"""
        text += f"""  num_moe_experts: 256
  moe_router_topk: 8
  moe_ffn_hidden_size: 2048
  moe_shared_expert_intermediate_size: 2048
  moe_layer_freq: {[0] * 3 + [1] * 58}
  multi_latent_attention: true
  q_lora_rank: 1536
  kv_lora_rank: 512
  qk_head_dim: 128
  qk_pos_emb_head_dim: 64
  v_head_dim: 128
  kv_channels: 64
  qk_layernorm: true
  vocab_size: 129280
  make_vocab_size_divisible_by: 1280
  should_pad_vocab: false
  mtp_num_layers: 1
  gated_linear_unit: true
  window_size: null
  params_dtype: {{_call_: false, _target_: torch.bfloat16}}
  expert_model_parallel_size: 64
  pipeline_model_parallel_size: 8
  virtual_pipeline_model_parallel_size: 4
  pipeline_model_parallel_layout: Et|(tt|)*30mL
  seq_length: 4096
mixed_precision: {{bf16: true, fp8: hybrid, fp8_recipe: blockwise}}
train: {{global_batch_size: 8192, micro_batch_size: 1}}
"""
        found = imported(tmp_path, text, "dump.yaml", UserAnswers(cluster="h100", gpus=1024))
        assert found.document["model"] == "deepseek-v3"
        assert (layout(found)["vpp"], layout(found)["ep"], layout(found)["etp"]) == (4, 64, 1)
        assert found.unknown == ()
        assert not found.not_modelled
        assert layout(found)["fp8_scaling"] == "block"
        assert layout(found)["pipeline_layout"] == "Et|(tt|)*30mL"

    @pytest.mark.parametrize(
        "stages", ["Et*2|t*2L", [["embedding", "decoder", "decoder"], ["decoder"] * 2 + ["loss"]]]
    )
    def test_stages_written_as_letters_or_as_words(self, tmp_path: Path, stages: object) -> None:
        text = f"""
model: {{num_layers: 4, hidden_size: 1024, num_attention_heads: 8, ffn_hidden_size: 4096, seq_length: 2048,
  vocab_size: 1024, pipeline_model_parallel_size: 2, pipeline_model_parallel_layout: {json.dumps(stages)}}}
"""
        found = imported(tmp_path, text, "dump.yaml")
        assert stages_of(layout(found)["pipeline_layout"]) == stages_of("Ett|ttL")

    def test_stages_of_something_else_are_refused(self, tmp_path: Path) -> None:
        text = """
model: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, ffn_hidden_size: 4096, seq_length: 2048,
  vocab_size: 1024, pipeline_model_parallel_size: 2,
  pipeline_model_parallel_layout: [[embedding, encoder], [decoder, loss]]}
"""
        with pytest.raises(
            UserInputError, match="expected stages of embedding, decoder, mtp, loss, got 'encoder'"
        ):
            imported(tmp_path, text, "dump.yaml")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


class TestCommand:
    def test_a_configuration_of_hugging_face_lacks_what_is_trained_with(self, tmp_path: Path) -> None:
        config = {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        }
        config |= {"intermediate_size": 14336, "vocab_size": 128256, "num_key_value_heads": 8}
        (tmp_path / "config.json").write_text(json.dumps(config))
        result = run("import", str(tmp_path / "config.json"), "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["scenario"]["model"] == "llama-3-8b"
        assert list(found["missing"]) == ["cluster", "gpus", "data.context", "data.batch"]

    def test_it_writes_a_scenario_that_runs(self, tmp_path: Path) -> None:
        (tmp_path / "run.sh").write_text(f"{FLAGS} --micro-batch-size 1")
        out = tmp_path / "scenario.yaml"
        result = run("import", str(tmp_path / "run.sh"), "--cluster", "h100", "--gpus", "8", "-o", str(out))
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"wrote {out}")
        assert run("simulate", str(out), "--batches", "1").exit_code == 0

    def test_wrong_use(self, tmp_path: Path) -> None:
        (tmp_path / "run.sh").write_text(FLAGS)
        for more, words in (
            (("--cluster", "h1000"), "did you mean"),
            (("--release", "0.1"), "older than"),
            (("-o", "x.txt"), "expected a file ending in .yaml"),
        ):
            result = run("import", str(tmp_path / "run.sh"), *more)
            assert result.exit_code == 2
            assert words in result.stderr
        assert run("import", str(tmp_path / "nothing.sh")).exit_code == 2


def test_tables_name_keys_of_scenarios_and_options_once() -> None:
    known = {*layout_keys(), "model"}
    for name in {*FORMATS.values()} - {""}:
        table = tool(name)
        for key in (
            *(number.key for number in table.numbers),
            *(key for one in table.choices for key in one.keys),
        ):
            assert key in known or key.startswith(("run.", "model.")), (name, key)
        for case in (
            case for choice in table.choices for case in choice.cases if not case.read_only and case.sets
        ):
            assert name == "nemo" or "any" not in case.options.values(), case
        every = [option for choice in table.choices for option in choice.names]
        shared = {"fp16", "bf16", "deepspeed", "$CUDA_LAUNCH_BLOCKING"}
        assert {option for option in every if every.count(option) > 1} <= shared, name


@pytest.mark.parametrize("name", ["megatron-core", "megatron-bridge", "nemo", "torchtitan"])
def test_what_changes_time_is_never_listed_as_without_effect(name: str) -> None:
    """A wildcard of idle options swallows none that the table says something of."""
    table = tool(name)
    for pattern, remark in table.not_modelled.items():
        if pattern in table.names:  # a case says what it means
            continue
        names = (pattern.replace("*", "x"), *(["bf16"] if name == "megatron-core" else []))
        read = read_options([Option(name=one, value=True, line=0) for one in names], table, "file")
        assert any(remark in said for said in read.not_modelled), pattern


def test_fsdp_of_megatron_bridge_is_asked_for_in_either_section(tmp_path: Path) -> None:
    """ConfigContainer.validate: `dist.use_megatron_fsdp` or `ddp.use_megatron_fsdp` sets both."""
    path = tmp_path / "override.yaml"
    head = "train: {global_batch_size: 8, micro_batch_size: 1}\nmodel: {seq_length: 4096}\n"
    for sections in ("dist: {use_megatron_fsdp: true}\nddp: {", "ddp: {use_megatron_fsdp: true, "):
        path.write_text(f"{head}{sections}data_parallel_sharding_strategy: optim_grads_params}}\n")
        found = import_file(str(path), "bridge", UserAnswers(cluster="h100", gpus=8, model="llama-3-8b"))
        assert found.document["layout"]["sharding"] == "zero3"


@pytest.mark.parametrize(
    ("name", "text", "stack"),
    [
        ("ds.json", '{"train_batch_size": 256, "zero_optimization": {"stage": 3}}', "deepspeed"),
        ("mpt.yaml", "fsdp_config: {}\ndevice_train_microbatch_size: 8\n", "llm-foundry"),
        ("run.yml", "per_device_batch_size: 4\nmax_target_length: 4096\n", "maxtext"),
        (
            "run.yaml",
            "tokens:\n  batch_accumulation_per_replica: 4\nparallelism:\n  tp_mode: x\n",
            "nanotron",
        ),
    ],
)
def test_files_of_tools_that_are_not_read_are_named(tmp_path: Path, name: str, text: str, stack: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserInputError, match=f"configuration of {stack}.*--framework {stack}"):
        import_file(str(tmp_path / name))


def test_a_text_is_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# A tool\n\nIt's fast: `tool plan --gpus 8 --budget 60s`\n")
    with pytest.raises(UserInputError, match="is no configuration: it holds no option of Megatron-LM"):
        import_file(str(tmp_path / "README.md"))
