"""Map the folders of the checkout to the packages of ``sysbench``."""

from setuptools import find_packages, setup

FOLDERS = ("core", "profiles", "tui")

setup(
    packages=[f"sysbench.{name}" for name in find_packages(include=[f"{top}*" for top in FOLDERS])],
    package_dir={f"sysbench.{top}": top for top in FOLDERS},
)
