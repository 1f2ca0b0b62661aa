"""Verbs that play a step, a run or a recorded job, and say where its time goes."""
