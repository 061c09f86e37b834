"""The gateway: agents point their ``base_url`` at it, and every call becomes an experience.

Bytes to the client equal the upstream's, except where documented. The gateway knows lessons only through a hook.
"""
