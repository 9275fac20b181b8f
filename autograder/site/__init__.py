"""The course as a web site: lessons as released, with what a run of the reference showed, never its code.

runs -> lessons, documents -> pages (the sources of Sphinx) -> building (the site, searched for solutions)
"""
