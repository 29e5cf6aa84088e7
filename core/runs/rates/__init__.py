"""Rates of the devices of this machine: measured, kept, and taken up as roofs."""
