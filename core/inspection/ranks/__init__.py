"""A folder of ranks: its files recognised, decoded one after another, merged."""
