"""Verbs that play a step, a run or a recorded job, and say where its time goes."""

from __future__ import annotations

from hdpsim.experiments.cli.command_from_verb import verb
from hdpsim.experiments.cli.options import json_option

simulate = verb("running", "simulate")

compare = verb("running", "compare")

explain = verb("running", "explain", output=[json_option])

replay = verb("running", "replay")

replay_ops = verb("running", "replay_ops")

campaign = verb("running", "campaign")
