"""ByteScale's planners as the paper prints them."""
