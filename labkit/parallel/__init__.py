"""What lessons 03, 04 and 07 build, in their final form: the parts that lesson 09 puts together.

Where one of those lessons, or lesson 06, is checked or graded, this folder is taken away.
"""

from __future__ import annotations

from labkit.parallel.parts import Parts as Parts
from labkit.parallel.parts import is_cut as is_cut
from labkit.parallel.parts import library_parts as library_parts
