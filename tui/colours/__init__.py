"""Colours of the screens: themes for each number of colours, and the one that a user chose."""
