"""EGS for Airflow. Importing this package imports nothing else: Airflow loads it in every one of its processes."""

from __future__ import annotations

__version__ = "0.1.0"
