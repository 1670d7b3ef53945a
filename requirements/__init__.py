"""The pinned packages: their lists with the hashes of their files, and the tools that write and describe these lists.

Imports nothing of ours and is in no wheel.
"""
