"""An emulated Tenstorrent mesh: chips, a command queue, events, paged KV caches, and models that run on it.

``device`` opens the mesh, ``model`` is the class a registry names, ``rules`` is what the emulator holds users to.
"""
