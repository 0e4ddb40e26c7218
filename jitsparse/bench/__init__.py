"""Measuring: how calls are timed, beside which peers, and how the figures are written down."""

from __future__ import annotations
