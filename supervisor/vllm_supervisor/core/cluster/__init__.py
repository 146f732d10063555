"""Decisions of several nodes that serve one model together: who may begin, who is ready, and one fate for all.

Values in, values out, as everywhere in core. Rank 0 is the head; the other nodes speak to it alone.
"""
