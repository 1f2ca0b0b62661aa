"""How long single kernels take."""
