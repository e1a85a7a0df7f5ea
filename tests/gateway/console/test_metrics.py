"""The metrics on the admin port."""


def test_metrics_are_for_keys_that_may_read(console):
    answer = console.ask("GET", "/metrics", scope="traces")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# TYPE firstchair_spool_lag_seconds gauge\n" in answer.text
    bearer = {"authorization": f"Bearer {console.secrets['traces']}"}  # as Prometheus sends it
    assert console.client.get("/metrics", headers=bearer).status_code == 200
    assert console.ask("GET", "/metrics", scope="call").status_code == 403
    assert console.client.get("/metrics").status_code == 401
