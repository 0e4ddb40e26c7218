"""The kernel families: their variants, which are legal for a problem, the choice, the launch."""
