"""The files of several ranks put side by side: matched, aligned, split."""
