"""``demo``: the tour."""

from __future__ import annotations

from pawl.cli.call import Call, Interrupted


def demo(call: Call) -> int:
    from pawl.cli.tour import Tour

    try:
        return Tour(json=call.json).run()
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the demo has cleaned up after itself") from None
