"""The kernel families: their variants, which are legal for a problem, the default choice, the launch."""
