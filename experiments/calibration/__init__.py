"""Constants fitted on measurements."""
