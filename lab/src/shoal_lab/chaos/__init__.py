"""`shoal chaos`: kills, stops, hangs and starves Shoal's processes, and checks that no promise is broken.

    workers   ProcessVectorEnv: Python and C environments, on_fault="restart" and "raise"
    ring      writers of a ReplayBuffer
    parents   trainers, with their workers

Exit status 0: every invariant (chaos/rounds.py has them) held in every round.
"""

__all__: list[str] = []
