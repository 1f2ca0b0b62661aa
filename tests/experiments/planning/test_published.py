"""Published layouts are in the space, survive the search, and the plan is predicted to be at least as fast."""

from __future__ import annotations

import pytest
import yaml

from hdpsim.experiments.bands.memory_fit import shipped_margin
from hdpsim.experiments.planning.search.budget import Budget
from hdpsim.experiments.planning.search.evaluation import Question, Task
from hdpsim.experiments.planning.search.search import search
from hdpsim.experiments.planning.search.space import Space, own_value
from hdpsim.experiments.planning.search.work import work_on
from hdpsim.experiments.records.scenario import record_scenario
from hdpsim.experiments.scenario.scenario import Scenario, load_scenario, resolve_scenario

BUDGET = Budget(steps=6.0)
"""The longer a search the faster what it finds: nothing that is asked here depends on how far it gets."""


def llama3(context: str, cp: int) -> Scenario:
    """Llama-3 405B on 16,384 H100, arXiv 2407.21783, table 4; 126 layers, embedding and head in 128 chunks."""
    return resolve_scenario({
        "name": f"llama3-405b-{context}",
        "model": "llama-3-405b",
        "cluster": "llama3-24k",
        "gpus": 16_384,
        "layout": {"tp": 8, "pp": 16, "vpp": 8, "schedule": "interleaved", "embedding_layers": True, "cp": cp,
                   "sharding": "zero2", "rank_capacity": "8K tokens"},
        "data": {"lengths": f"{context} tokens", "batch": "16M tokens", "context": f"{context} tokens"},
        "strategy": {"name": "static"},
        "execution": {"batches": 1},
    })  # fmt: skip


def published(name: str) -> Scenario:
    if name.startswith("llama3"):
        return llama3("128K", 16) if name == "llama3-128k" else llama3("8K", 1)
    if name == "megascale":
        # the row of 1,024 GPUs of table 2, arXiv 2402.15627: the same layout takes a tenth of the time to simulate
        return load_scenario("megascale-175b-12k", ("gpus=1024", "data.batch=768 sequences"))
    return resolve_scenario(yaml.safe_load(record_scenario(name)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama3-8k", "llama3-128k", "megascale", "mlperf-0016", "dgxc-0023", "nemo-0003"]
)
def test_published_layouts_survive_and_the_plan_is_at_least_as_fast(name: str) -> None:
    scenario, space = published(name), Space()
    headroom = shipped_margin().headroom
    found = search(scenario, space, budget=BUDGET, batches=1, headroom=headroom)
    assert found.own is not None
    assert found.own.memory.fits
    assert not found.own.tight
    assert found.best[0].tokens_per_s >= found.own.tokens_per_s
    own = [
        layout
        for layout in space.layouts(scenario, scenario.cluster)
        if all(own_value(scenario, key) == value for key, value in layout)
    ]
    assert len(own) == 1
    question = Question(
        scenario=scenario,
        space=space,
        objective="tokens_per_s",
        batches=1,
        count=5,
        headroom=headroom,
    )
    survivors = work_on(Task(question=question, site=(), layouts=(own[0],))).evaluated
    assert any(one.step_s == pytest.approx(found.own.step_s, rel=1e-12) for one in survivors)
