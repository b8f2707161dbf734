"""What this machine can run, and how to fix what it cannot: facts are collected, then judged by pure functions.

Imports no tensor library, so that it answers where one is broken: imports are tried in processes of their own.
"""
