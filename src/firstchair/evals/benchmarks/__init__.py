"""Public benchmarks, run by Inspect against any endpoint.

    catalogue      what each benchmark is and needs
    tasks          its Inspect task, over the download or over local records
    samples        what Inspect logged of a sample, as a row and as a session
    summary        rows to means with intervals, cost and latency
    run            the run directory: rows.jsonl, sessions.jsonl, summary.json, inspect/

Only ``tasks`` and ``run`` import Inspect, and only when they are used.
"""
