"""`shoal chaos`: kills, stops, hangs and starves Shoal's processes and checks the invariants.

    workers   ProcessVectorEnv: Python and C environments, on_fault="restart" and "raise"
    ring      writers of a ReplayBuffer
    parents   trainers, with their workers

Exit status 0: every invariant (see chaos/rounds.py) held in every round.
"""

__all__: list[str] = []
