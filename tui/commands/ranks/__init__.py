"""`inspect FOLDER`: what it prints of the ranks of one job."""
