"""The cost of one transformer layer, part by part."""
