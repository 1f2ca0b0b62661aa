"""Published systems reproduced: ByteScale and MegaScale."""
