"""A function with one `with egs.gpu():` block at its top level, cut into the parts before it, in it and after it.

For adapters whose framework runs each phase as a task of its own: what each part gets and hands on is found from the
function's source. How a value travels, and what a part is there, is the adapter's.
"""
