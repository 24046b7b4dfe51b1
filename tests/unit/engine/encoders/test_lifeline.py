"""A process ends when its engine has: by the connection, or by its parent."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys

ENCODER = (
    "import sys, time; from brim.engine.encoders.lifeline import end_with_engine; "
    "end_with_engine(int(sys.argv[1])); print('there', flush=True); time.sleep(60)"
)


def test_a_process_that_listens_to_nobody_ends_quietly_with_the_connection() -> None:
    ours, theirs = socket.socketpair()
    descriptor = theirs.fileno()
    command = [sys.executable, "-c", ENCODER, str(descriptor)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with theirs, subprocess.Popen(command, pass_fds=[descriptor], text=True, **pipes) as encoder:
        assert encoder.stdout is not None
        assert encoder.stdout.readline() == "there\n"
        assert encoder.poll() is None
        ours.close()
        assert encoder.communicate(timeout=30) == ("", "")
    assert encoder.returncode == 0


def test_a_connection_that_somebody_else_keeps_open_does_not_keep_it_alive() -> None:
    ours, theirs = socket.socketpair()
    descriptor = theirs.fileno()
    script = f"{shlex.join([sys.executable, '-c', ENCODER, str(descriptor)])} & echo $!; wait"
    with ours, theirs, subprocess.Popen(["sh", "-c", script], pass_fds=[descriptor], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        encoder = int(engine.stdout.readline())
        assert engine.stdout.readline() == b"there\n"
        engine.send_signal(signal.SIGKILL)
        try:
            assert engine.communicate(timeout=30) == (b"", None)  # the encoder had the other end of it
        except subprocess.TimeoutExpired:
            os.kill(encoder, signal.SIGKILL)
            raise
