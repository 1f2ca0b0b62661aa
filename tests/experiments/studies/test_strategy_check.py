"""The check of strategies finds what is broken, names the promise, and shows a small batch."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import hdpsim
from hdpsim.experiments.cli.app import cli
from hdpsim.experiments.studies.own_strategy.check import CAPACITY_TOKENS, check_strategy
from hdpsim.simulator import find_own_strategy as own_strategy


def _good(problem, offset=0):
    builder = hdpsim.PlanBuilder(problem)
    for sequence, tokens in enumerate(problem.lengths):
        size = -(-int(tokens) // problem.capacity_tokens)
        first = (sequence + offset) % (problem.ranks - size + 1)
        builder.add(sequence, range(first, first + size))
    return builder.build()


def _forgets_long_ones(problem):
    builder = hdpsim.PlanBuilder(problem)
    builder.add([i for i, tokens in enumerate(problem.lengths) if tokens <= 1] or [0], ranks=0)
    return builder.build()


def _packs_in_pairs(problem):
    builder = hdpsim.PlanBuilder(problem)
    for first in range(0, len(problem.lengths), 2):
        both = range(first, min(first + 2, len(problem.lengths)))
        builder.add(both, range(problem.ranks), offload=0.0)
    return builder.build()


def _counts_its_calls(calls=[0]):  # noqa: B006
    def plan(problem):
        calls[0] += 1
        return _good(problem, calls[0])

    return plan


def _crosses(problem):
    plan = _good(problem)
    if problem.ranks < 2 or len(problem.lengths) < 2 or plan.micro_batches != 2 or problem.stages > 1:
        return plan
    both = np.array([0, 1])
    return replace(
        plan, member_ranks=np.tile(both, 2), member_offsets=np.array([0, 2, 4]), order=np.array([0, 1, 1, 0]),
        order_offsets=np.concatenate(([0, 2, 4], np.full(problem.ranks - 2, 4))),
    )  # fmt: skip


def _fails_with_many(problem):
    if len(problem.lengths) > 7:
        raise ValueError("too many")
    return _good(problem)


def _even_only(problem):
    if problem.ranks % 2:
        raise hdpsim.InfeasibleError("needs an even number of ranks")
    return _good(problem)


def _checked(function, monkeypatch, **options):
    monkeypatch.setattr(own_strategy, "_registered", {"mine": function})
    return check_strategy(hdpsim.load_scenario("quickstart-8gpu"), "mine", most_ranks=8, **options)


def test_a_good_strategy_keeps_everything(monkeypatch):
    found = _checked(_good, monkeypatch)
    assert not found.broken
    assert set(found.kept.values()) == {found.cases}
    assert found.cases > 60
    assert set(found.seconds) >= {1, 2, 8}


@pytest.mark.parametrize(
    ("function", "promise", "lengths", "ranks"),
    [
        (_forgets_long_ones, "tokens", (1, 2), 1),
        (_packs_in_pairs, "capacity", (1, CAPACITY_TOKENS), 1),
        (_counts_its_calls(), "repeats", (1,), 3),
        (_crosses, "deadlock", (1, 1), 2),
        (_fails_with_many, "runs", (1,) * 8, 1),
    ],
)
def test_what_breaks_is_found_and_made_small(monkeypatch, function, promise, lengths, ranks):
    found = _checked(function, monkeypatch)
    assert promise in [one.promise for one in found.broken]
    (one,) = [one for one in found.broken if one.promise == promise]
    assert (sorted(one.case.lengths), one.case.ranks, one.case.stages) == (sorted(lengths), ranks, 1)
    assert one.message


def test_what_the_strategy_refuses_is_no_fault(monkeypatch):
    found = _checked(_even_only, monkeypatch)
    assert not found.broken
    assert list(found.refused) == ["needs an even number of ranks"]
    assert found.cases == found.kept["runs"] + sum(found.refused.values())


@pytest.mark.parametrize("name", ["static", "hdp-naive"])
def test_shipped_strategies_keep_everything(name):
    found = check_strategy(hdpsim.load_scenario("quickstart-8gpu"), name, most_ranks=3)
    assert not found.broken


@pytest.mark.parametrize(("function", "code"), [(_good, 0), (_packs_in_pairs, 3)])
def test_the_command_ends_with_what_it_found(monkeypatch, function, code):
    monkeypatch.setattr(own_strategy, "_registered", {"mine": function})
    result = CliRunner().invoke(cli, ["check-strategy", "mine", "--ranks", "2", "--json"])
    assert result.exit_code == code, result.output
    document = json.loads(result.stdout)
    assert document["kept"] == (code == 0)
    assert [one["promise"] for one in document["broken"]] == ["capacity"] * (code == 3)
    if code:
        assert "breaks what plans promise: capacity" in result.stderr
        words = CliRunner().invoke(cli, ["check-strategy", "mine", "--ranks", "2"]).stdout
        assert "capacity: 2 sequences (1, 4,096) on 1 rank of 4,096 tokens, 1 stage:" in words


def test_a_strategy_that_refuses_everything_was_not_checked(monkeypatch):
    def refuses(problem):
        raise hdpsim.InfeasibleError("not today")

    monkeypatch.setattr(own_strategy, "_registered", {"mine": refuses})
    result = CliRunner().invoke(cli, ["check-strategy", "mine", "--ranks", "2"])
    assert result.exit_code == 3
    assert "refuses every case, so nothing was checked:\n  not today" in result.stderr


def test_the_command_needs_a_strategy():
    result = CliRunner().invoke(cli, ["check-strategy", "missing_module:plan"])
    assert result.exit_code == 2
    assert "cannot import missing_module" in result.stderr
