"""Widgets for more than one screen."""
