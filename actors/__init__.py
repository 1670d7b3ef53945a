"""The Ray actors of a job: engines, tool dispatchers, the grader pool, the learner group and weight sync.

Nothing here knows jobs, run folders or the API: those live in `cluster` and `serve`.
"""
