"""Scenarios, commands, comparisons, reports and plots: all input and output of hdpsim, and no physics."""
