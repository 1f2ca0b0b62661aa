"""What a record's notes, or its stack, say of the router: in words that anybody would use."""

from __future__ import annotations

from typing import Any

import pytest

from hdpsim.experiments.records.switches import switches_of
from hdpsim.experiments.software.facts import Run
from hdpsim.experiments.software.run_config import RunConfig

MIXTURE: dict[str, Any] = {
    "gpu": "H100-SXM-80G", "n_gpus": 64, "gpus_per_node": 8, "layers": 32, "hidden": 4096, "ffn_hidden": 14336,
    "heads": 32, "kv_heads": 8, "n_experts": 8, "topk": 2, "ep": 8, "pp": 1, "tp": 1, "task": "pretrain", "year": 2025,
    "framework": "Megatron-Core v0.12", "precision": "bf16",
}  # fmt: skip


def found(**changes: Any) -> dict[str, Any]:
    layout = switches_of(Run(RunConfig(**{**MIXTURE, **changes}))).layout
    return {key: layout[key] for key in ("expert_routing", "expert_imbalance") if key in layout}


@pytest.mark.parametrize(
    "notes",
    [
        "router force-balanced, dropless",
        "forced balance",
        "force load balancing",
        "moe_router_force_load_balancing=True",
        "Perfectly balanced experts",
        "fake balanced gate",
        "capacity factor 1 token dropping",
        "capacity_factor=1.0, padded",
        "capacity factor of 1",
        "Token drop",
    ],
)
def test_balanced_however_it_is_said(notes: str) -> None:
    assert found(notes=notes) == {"expert_routing": "even"}


@pytest.mark.parametrize(
    "notes",
    [
        "",
        "dropless",
        "tokens are never dropped",
        "not force-balanced",
        "without balanced routing",
        "aux loss 0.01",
    ],
)
def test_nothing_is_read_into_other_words(notes: str) -> None:
    assert found(notes=notes) == {}


@pytest.mark.parametrize(("notes", "factor"), [("capacity factor 1.25", "1.25"), ("Capacity-factor: 2", "2")])
def test_more_room_than_tokens_is_padded(notes: str, factor: str) -> None:
    assert float(found(notes=notes)["expert_imbalance"]) == float(factor)


@pytest.mark.parametrize("notes", ["auxiliary-loss-free balancing", "aux loss free", "loss-free balancing"])
def test_balanced_by_biases(notes: str) -> None:
    assert found(notes=notes) == {"expert_routing": "bias"}


@pytest.mark.parametrize(
    ("changes", "routing"),
    [
        ({"framework": "NeMo 25.04"}, "even"),
        ({"framework": "NeMo (Megatron-Core)", "topk": 1}, None),  # Llama 4's recipes drop nothing
        ({"framework": "NeMo 25.04", "notes": "dropless"}, None),
        ({"framework": "NeMo AutoModel"}, "in-turn"),
        ({"framework": "NeMo AutoModel", "notes": "fake balanced gate"}, "in-turn"),
        ({"framework": "NeMo AutoModel", "notes": "trained with an auxiliary loss"}, None),
        ({"framework": "Megatron-Bridge 26.04"}, "even"),
        ({"framework": "Megatron-Bridge 26.04", "notes": "trained with an auxiliary loss"}, None),
        ({"framework": "torchtitan"}, "bias"),
        ({"framework": "torchtitan", "notes": "force load balance"}, "even"),
        ({"framework": "NeMo 25.04", "n_experts": 0, "topk": None, "ep": 1}, None),
    ],
)
def test_what_a_stack_does_by_itself(changes: dict[str, Any], routing: str | None) -> None:
    assert found(**changes).get("expert_routing") == routing
