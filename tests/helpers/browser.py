"""Debian's Chromium without a window, driven over its debugging pipe; nothing else is needed to test a page."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-background-networking", "--hide-scrollbars", "--window-size=1440,1400",
    "--force-device-scale-factor=1", "--lang=en-US",
)  # fmt: skip
WITHIN = 600.0  # seconds until an answer: only a browser that hangs takes so long, on the slowest machine too


class Browser:
    """A browser with one tab. `problems` are errors of the page, `requests` the addresses that it asked for."""

    def __init__(self, folder: Path, **environment: str) -> None:
        ours_in, theirs_out = self._pipe()
        theirs_in, ours_out = self._pipe()
        quiet = (os.POSIX_SPAWN_OPEN, 2, str(folder / "chromium.log"), os.O_WRONLY | os.O_CREAT, 0o600)
        given = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4), quiet]
        line = [PROGRAM, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
        self.process = os.posix_spawn(PROGRAM, line, os.environ | environment, file_actions=given, setpgroup=0)
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._rest, self._number, self._session = ours_in, ours_out, b"", 0, None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    @staticmethod
    def _pipe() -> tuple[int, int]:
        """Return a pipe on numbers other than 3 and 4, which the browser uses itself."""
        ends = os.pipe()
        high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
        for end in ends:
            os.close(end)
        return high[0], high[1]

    def close(self) -> None:
        """End the browser and all that it started."""
        os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self._in)
        os.close(self._out)

    def ask(self, method: str, **params):
        """Return the answer to a command of the debugging protocol, and record events that arrive before it."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, (method, said["error"])
                return said["result"]

    def _next(self):
        end = time.monotonic() + WITHIN
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            piece = os.read(self._in, 1 << 20) if ready else b""
            assert piece, "the browser says nothing"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        said = json.loads(text)
        params = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(params["exceptionDetails"].get("exception", {}).get("description", str(params)))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
        return said

    def open(self, path: Path) -> None:
        """Show a page from disk, and wait until it is ready."""
        self.problems.clear()
        self.requests.clear()
        self.ask("Page.navigate", url=path.as_uri())
        self.until("document.documentElement?.dataset.ready")

    def until(self, condition: str) -> None:
        """Wait until an expression of the page's script is true."""
        end = time.monotonic() + WITHIN
        while not self.value(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.02)

    def value(self, expression: str):
        """Return the value of an expression of the page's script, after its promise has been kept."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return self.value(f"document.querySelector({selector!r}).textContent")

    def click(self, x: float, y: float) -> None:
        """Click at a point of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, selector: str) -> None:
        """Click on the middle of an element."""
        box = f"document.querySelector({selector!r})"
        self.value(f"{box}.scrollIntoView({{block: 'nearest'}})")
        x, y = self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box}.getBoundingClientRect())"
        )
        self.click(x, y)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option, or set a slider or a field."""
        self.value(
            f"((one) => {{ one.value = {value!r}; for (const kind of ['input', 'change']) "
            f"one.dispatchEvent(new Event(kind, {{bubbles: true}})); }})(document.querySelector({selector!r}))"
        )

    def key(self, key: str, *, shift: bool = False) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift)

    def screenshot(self, path: Path, last: str) -> None:
        """Write a picture of the page from its top to the end of an element, so that nothing is cut off."""
        wide, high = self.value(
            f"[innerWidth, scrollY + document.querySelector({last!r}).getBoundingClientRect().bottom + 16]"
        )
        clip = {"x": 0, "y": 0, "width": wide, "height": high, "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
