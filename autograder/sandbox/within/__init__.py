"""What runs inside a sandbox, between the program that serves requests and the ranks: the only files of the
grader that are seen there. They import nothing else of it.
"""
