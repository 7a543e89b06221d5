"""The settings of the tools service."""

from pydantic import FilePath

from rewardfleet.services import SERVICES
from rewardfleet_server.run_state.settings import RunStateSettings
from rewardfleet_server.settings import setting


class ToolsSettings(RunStateSettings):
    """`rewardfleet serve tools`."""

    flags = (*RunStateSettings.flags, "tool_families")

    # One line per setting.
    # fmt: off
    port: int = setting(SERVICES["tools"].port, "TCP port. 0 picks a free one and prints it.", ge=0, le=65535, metavar="PORT")
    tool_families: FilePath | None = setting(None, 'JSON file ({"tool": "family"}) with the families of tools: search, calculate or other. The labels and options of a request come before it.', metavar="FILE")
    # fmt: on
