"""The Ray actors of a job: engines, tool dispatchers, the grader pool, the learner group and weight sync.

Code that depends on jobs, run folders or the API belongs in `cluster` and `serve`.
"""
