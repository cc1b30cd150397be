"""What several files share beneath the layers.

Caches, the fused loss, loops, the backend in use, and all private names of Keras.
"""
