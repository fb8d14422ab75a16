"""PyTorch's attention beside FlashLab's, in one process: the worker of `flashlab compare --peers`.

`flashlab compare --peers torch` starts `python -m flashlab.peers`; lines of JSON go both ways
(protocol.py). It is not meant to be called by hand, and imports nothing until it is.
"""
