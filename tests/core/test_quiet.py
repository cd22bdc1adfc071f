import subprocess
import sys


def test_what_native_code_writes_meanwhile_is_gone_and_what_comes_after_is_there():
    code = (
        "import os\n"
        "from pipeline.core.quiet import silent_output\n"
        "with silent_output(1, 2):\n"
        "    os.write(1, b'out within ')\n"
        "    os.write(2, b'err within ')\n"
        "with silent_output(2):\n"
        "    os.write(1, b'out beside ')\n"
        "os.write(1, b'out after')\n"
        "os.write(2, b'err after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("out beside out after", "err after")
