"""A headless Chromium that tests look at pages with, over a pipe: no port, no driver, nothing to install beside it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WIDTH, HEIGHT = 1440, 900
ANSWER_S = 30.0
PAGE_S = 60.0

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


class Browser:
    """One page of one browser, told what to do in Chrome's DevTools protocol."""

    def __init__(self, folder: Path) -> None:
        to_browser, self._out = _pipe()
        self._in, from_browser = _pipe()
        command = ["chromium", *_FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        # Chromium reads from descriptor 3 and writes to 4, whichever they are here.
        shell = ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command]
        log = (folder.parent / "chromium.log").open("wb")
        fds = (to_browser, from_browser)
        self._process = subprocess.Popen(shell, pass_fds=fds, stdout=log, stderr=log, start_new_session=True)
        for descriptor in fds:
            os.close(descriptor)
        log.close()
        self._buffer, self._number, self._session = b"", 0, ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until_s = time.monotonic() + ANSWER_S
        while True:
            answer = self._next(until_s)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _next(self, until_s: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until_s - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, f"the browser has ended with code {self._process.poll()}"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def value(self, script: str) -> Any:
        """What a JavaScript expression comes to in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, address: str) -> None:
        """A page whose address differs behind the # alone is loaded anew, too."""
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=address)

    def text(self) -> str:
        return self.value("document.body ? document.body.innerText : ''") or ""

    def wait_until(self, is_so: Callable[[], Any]) -> None:
        until_s = time.monotonic() + PAGE_S
        while not is_so():
            assert time.monotonic() < until_s, f"the page says: {self.text()[:3000]}"
            time.sleep(0.2)

    def wait_for(self, *words: str) -> str:
        """The page's text, once it has all of these in it."""
        self.wait_until(lambda: all(word in self.text() for word in words))
        return self.text()

    def click(self, selector: str) -> None:
        """Clicks the first element of a CSS selector, as soon as there is one."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.wait_until(lambda: self.value(f"(e => {{ if (e) e.click(); return !!e; }})({found})"))

    def type(self, placeholder: str, text: str) -> None:
        """Types into the field that says so while it is empty, as soon as there is one."""
        field = f"document.querySelector({json.dumps(f'input[placeholder={json.dumps(placeholder)}]')})"
        # React hears of a value only if it was set behind its back, and an event says so.
        write = "Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(e, t);"
        tell = "e.dispatchEvent(new Event('input', {bubbles: true}));"
        script = f"((e, t) => {{ if (e) {{ {write} {tell} }} return !!e; }})({field}, {json.dumps(text)})"
        self.wait_until(lambda: self.value(script))

    def picture(self, file: Path, height: int = HEIGHT) -> None:
        """Writes the top of the page as it looks, as a PNG."""
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._session = ""
        try:
            self.ask("Browser.close")
            self._process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)


def _pipe() -> tuple[int, int]:
    """Descriptors beyond those that the browser's are put in place of."""
    low = os.pipe()
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in low]
    for descriptor in low:
        os.close(descriptor)
    return high[0], high[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("chromium") / "profile")
    yield opened
    opened.close()
