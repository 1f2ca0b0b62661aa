"""Keys of a campaign that change nothing, told from the other keys alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hdpsim.cost_models.reliability.failures import FailureProfile
from hdpsim.experiments.scenario.schema import KEYS
from hdpsim.simulator.campaign.diagnosis import TESTS


def idle_keys(values: Mapping[str, Any], profile: FailureProfile) -> tuple[str, ...]:
    """One sentence for every key of *values* (without `campaign.`) that is not the default and changes nothing."""
    note_by_key: dict[str, str] = {}
    for why, names in _rules(values, profile):
        for name in names.split() if why else ():
            key = KEYS[f"campaign.{name}"]
            if values[name] != key.default:
                note_by_key.setdefault(
                    name, f"campaign.{name} = {key.dump(values[name])} changes nothing: {why}"
                )
    return tuple(note_by_key.values())


def _rules(values: Mapping[str, Any], profile: FailureProfile) -> Iterator[tuple[str, str]]:
    """Why some keys change nothing (an empty text: they may), and their names."""
    flaps = "" if values["link_flaps_per_day"] else "link_flaps_per_day is 0"
    yield flaps, "link_flap_mean nccl_timeout nccl_retries adaptive_retransmission"
    evicted = any(cause.evict for cause in profile.causes)
    overlooks = evicted and (values["diagnosis_misses"] or set(values["diagnosis_tests"]) != set(TESTS))
    yield "" if values["manual_share"] or overlooks else "manual_share is 0", "manual"
    by_hand = "manual_share is 1" if values["manual_share"] == 1.0 else ""
    yield by_hand, "diagnosis diagnosis_tests diagnosis_misses diagnosis_false_positives"
    yield "" if evicted else f"no failure of {profile.title} takes a node out", "diagnosis_misses"
    yield "" if overlooks else "no fault is overlooked", "fault_recurrence diagnosis_rounds"
    stragglers = values["straggler_share"] > 0.0 or values["straggler_mttf"] is not None
    yield "" if stragglers else "no node is slow", "straggler_factor straggler_misses"
    looks = stragglers or values["straggler_false_positives"]
    yield "" if looks else "no node is slow", "straggler_detection"
    yield "straggler_mttf is never" if values["straggler_mttf"] is None else "", "straggler_recovery"
    given = {name: values[name] is not None for name in _DERIVED}
    yield "group_initialisation is given" if given["group_initialisation"] else "", "startup"
    yield "checkpoint_load is given" if given["checkpoint_load"] else "", "readers"
    both = given["checkpoint_load"] and given["checkpoint_upload"]
    yield "checkpoint_load and checkpoint_upload are given" if both else "", "storage_bandwidth"
    noticed = {cause.detection for cause in profile.causes}
    nobody = f"no failure of {profile.title} is noticed by"
    yield "" if "heartbeat" in noticed else f"{nobody} a heartbeat", "heartbeat heartbeat_misses"
    yield "" if "hang" in noticed else f"{nobody} a timeout", "hang_timeout"
    mistaken = values["diagnosis_false_positives"] or values["straggler_false_positives"]
    evicts = stragglers or evicted or mistaken
    yield "" if evicts else f"no failure of {profile.title} takes a node out", "repair spares"


_DERIVED = ("group_initialisation", "checkpoint_load", "checkpoint_upload")
"""Times that are derived from other keys unless they are given."""
