"""`doctor --measure`: what the devices of this machine can do."""
