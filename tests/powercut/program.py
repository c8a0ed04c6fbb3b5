"""imagelet under test: its commands, its daemon, and syncs of it that are removed on purpose."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

from disks import Failed

COMMAND_SECONDS = 60
START_SECONDS = 20
STOP_SECONDS = 20


class Outcome:
    def __init__(self, status, output, errors):
        self.status, self.output, self.errors = status, output, errors

    @property
    def is_success(self):
        return self.status == 0


class Program:
    """The program on one store, with one configuration."""

    def __init__(self, binary, folder, store, settings, injection=(), state="state"):
        self.binary, self.folder, self.store, self.injection = binary, pathlib.Path(folder), store, list(injection)
        #: The folder of records, decisions and names.
        self.state = pathlib.Path(store) / state
        self.config, self.socket = self.folder / "config.yaml", self.folder / "socket"
        self.config.write_text(f"apiVersion: imagelet.dev/v1alpha1\nkind: ImageletConfiguration\n{settings}")
        self.environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "IMAGELET_CONFIG": str(self.config)}

    def command(self, *arguments):
        """Runs a command on the store itself."""
        return self.execute("--store", str(self.store), *arguments)

    def client(self, *arguments, seconds=COMMAND_SECONDS):
        """Runs a command that asks the daemon."""
        return self.execute("--endpoint", f"unix://{self.socket}", *arguments, seconds=seconds)

    def execute(self, *arguments, seconds=COMMAND_SECONDS):
        command = [*self.injection, str(self.binary), *map(str, arguments)]
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return Outcome("none", "", f"no end after {seconds} s")
        return Outcome(done.returncode, done.stdout, done.stderr)

    def killed(self, seconds, *arguments):
        """Runs a command on the store and kills it after a while, if it has not ended before."""
        command = [str(self.binary), "--store", str(self.store), *map(str, arguments)]
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()

    def killed_pull(self, process, name, seconds):
        """Kills the daemon so long after a client has asked it for a pull; whether the client was answered before."""
        pull = (self.binary, "--endpoint", f"unix://{self.socket}", "pull", "-q", "--policy", "Always", name)
        client = subprocess.Popen(
            [str(word) for word in pull], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(seconds)
        process.kill()
        process.wait()
        return client.wait() == 0

    @contextlib.contextmanager
    def daemon(self, is_killed=False):
        """A running daemon, ended in good order or killed."""
        self.socket.unlink(missing_ok=True)
        log = self.folder / "serve.log"
        command = [*self.injection, str(self.binary), "serve", "--socket", str(self.socket)]
        with log.open("w") as errors:
            process = subprocess.Popen(command, env=self.environment, stdout=errors, stderr=errors)
        try:
            end = time.monotonic() + START_SECONDS
            while not self.socket.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise Failed(f"the daemon does not start ({process.returncode}): {log.read_text()[-2000:]}")
                time.sleep(0.01)
            yield process
            if not is_killed:
                self.stop(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def stop(self, process):
        # A tracer passes no signal on: the daemon is its only child.
        target = int(children(process.pid)[0]) if self.injection else process.pid
        os.kill(target, signal.SIGTERM)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"the daemon does not end within {STOP_SECONDS} s") from None
        if status != 0:
            raise Failed(f"the daemon ends with {status}: {(self.folder / 'serve.log').read_text()[-2000:]}")


def children(parent):
    return pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
