"""The admin port: a JSON API and a small web console for slots, keys, ledger, live calls and sessions."""
