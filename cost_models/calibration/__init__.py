"""What real kernels and links reach of their datasheets."""
