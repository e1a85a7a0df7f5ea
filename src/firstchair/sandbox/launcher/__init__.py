"""What starts, watches and ends commands: a small process of its own, standard library only, started with ``-I -S``.

    this process ──socket──→ server ──fork──→ keeper ──clone──→ init ──fork──→ the command ──→ its children
      client.py              server.py        keeper.py         init.py        command.py
      one socket a keeper    holds nothing    input, output,    pid 1 of its   limits, system call
                                              clock, kill       namespaces,    filter, exec
                                                                mounts, usage

A run is ended by killing init: the kernel then kills every process in its pid namespace and lets init's death be
seen only when all are gone. The keeper does so when the clock says it, when the socket closes (a cancelled run, a
caller that died), and always before it answers. The server is forked from, so that a run costs no start of a Python;
a keeper waits for further runs over its socket when it has answered.
"""
