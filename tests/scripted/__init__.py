"""A recipe whose trainer follows a script: it reports, sleeps, exits or dies on command.

Set EVENKEEL_RECIPES=tests.scripted.recipe; nothing here imports Paddle. See `trainer.py` for the commands.
"""
