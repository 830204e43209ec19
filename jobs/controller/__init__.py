"""The controller: one loop of idempotent actions over the database, which is the truth.

Killed at any line and started again, it goes on: what an action has not committed it does again, and what
it has committed it finds done. Two at a time do no harm (each change is guarded by a filtered update or a
unique rule), they only do some work twice.
"""
