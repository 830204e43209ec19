"""One detached process per attempt and host: starts the ranks, watches them, sends what they write.

claim.py      this attempt here, and its devices, belong to one supervisor
prepare.py    copies the dataset and the weights to start from to the host's own disk
launch.py     the launcher's command and the ranks' allow-listed environment
processes.py  kills, reaps and finds every process of an attempt
verdict.py    from what is known of the ranks to one reason
publish.py    checkpoints and artefacts to the shared storage
lifeline.py   beats, requests and the lease
relay.py      the files' bytes to the controller
supervise.py  the order of it all
"""
