"""Verbs that play a step, a run or a recorded job, and say where its time goes."""

from __future__ import annotations

from hdpsim.experiments.cli.options import json_option
from hdpsim.experiments.cli.verb import verb

simulate = verb("running", "simulate")

compare = verb("running", "compare")

explain = verb("running", "explain", output=[json_option])

replay = verb("running", "replay")

replay_ops = verb("running", "replay_ops")

campaign = verb("running", "campaign")
