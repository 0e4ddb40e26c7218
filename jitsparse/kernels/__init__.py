"""The kernel families: variants, which of them are legal for a problem, choice and launch."""
